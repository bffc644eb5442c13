package state

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// The roles of a token.
const (
	TokenAdmin    = "admin"
	TokenOperator = "operator"
	TokenViewer   = "viewer"
	TokenWorker   = "worker"
)

// setToken lets a person or a program in. A token's secret never changes; what else is said of it may.
func (s *State) setToken(t *raftlog.Token) *raftlog.Result {
	switch {
	case !ValidName(t.GetId()):
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("token %q: use letters, digits, '-', '_' and '.'", t.GetId()))
	case len(t.Sum) != sha256.Size:
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("token %s: the sum of its secret has %d bytes, SHA-256 has %d", t.Id, len(t.Sum), sha256.Size))
	case t.ExpiresNs < 0 || (t.ExpiresNs > 0 && t.ExpiresNs <= s.clock.NowNs):
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("token %s would be expired from the start: give it a time in the future", t.Id))
	}
	switch t.Role {
	case TokenAdmin, TokenOperator, TokenViewer, TokenWorker:
	default:
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("token %s: role %q is not known: use admin, operator, viewer or worker", t.Id, t.Role))
	}
	t = proto.CloneOf(t)
	t.CreatedNs = s.clock.NowNs
	if old, found := s.tokens.Get(t.Id); found {
		if !bytes.Equal(old.Sum, t.Sum) {
			return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("token %s exists with another secret: remove it first", t.Id))
		}
		t.CreatedNs = old.CreatedNs
	}
	s.tokens.Set(t.Id, t)
	return ok()
}

func (s *State) removeToken(id string) *raftlog.Result {
	if _, found := s.tokens.Delete(id); !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no token %q", id))
	}
	return ok()
}

// expiredTokens are those that let nobody in any more at log time now.
func (s *State) expiredTokens(now int64) []string {
	var out []string
	s.tokens.Scan(func(id string, t *raftlog.Token) bool {
		if t.ExpiresNs > 0 && t.ExpiresNs <= now {
			out = append(out, id)
		}
		return true
	})
	return out
}

func (s *State) forgetTokens(now int64) {
	for _, id := range s.expiredTokens(now) {
		s.tokens.Delete(id)
	}
}

// Tokens returns all tokens by id, expired ones too until the next Tick.
func (s *State) Tokens() []*raftlog.Token { return s.tokens.Values() }

// Token returns a token, or nil.
func (s *State) Token(id string) *raftlog.Token { t, _ := s.tokens.Get(id); return t }
