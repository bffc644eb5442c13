package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"time"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// prefix makes a token that got into a log or a repository easy to find.
const prefix = "rlf_"

var encoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// GenerateToken makes an id, a secret of 256 random bits, and its SHA-256: the
// bearer gets TokenText(id, secret), the state the id and the sum.
func GenerateToken() (id, secret string, sum [sha256.Size]byte) {
	var b [40]byte
	_, _ = rand.Read(b[:]) // never fails
	id = strings.ToLower(encoding.EncodeToString(b[:8]))
	secret = strings.ToLower(encoding.EncodeToString(b[8:]))
	return id, secret, sha256.Sum256([]byte(secret))
}

// TokenText is what the bearer shows.
func TokenText(id, secret string) string { return prefix + id + "_" + secret }

// parseToken splits a token's text; what it returns has not been checked.
func parseToken(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok || len(text) > 256 {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	return id, secret, ok && id != "" && secret != ""
}

// CheckToken reads a token's text before it is used, for a clear word to who mistyped it.
func CheckToken(text string) error {
	if _, _, ok := parseToken(text); !ok {
		return errors.New("auth: token: it does not look like one: a token is rlf_, an id, _ and a secret, as rlctl cluster token create printed it")
	}
	return nil
}

// errToken is the one answer to an unknown id and a wrong secret: which ids exist is nobody's business.
var errToken = errors.New("auth: token: it is not known, or was removed: ask an admin for one (rlctl cluster token create) and give it with --token or RLFLEET_TOKEN")

// admit finds the bearer of a token in the state. now is log time.
func admit(text string, find func(id string) *raftlog.Token, now int64) (Identity, error) {
	id, secret, ok := parseToken(text)
	if !ok {
		return Identity{}, errToken
	}
	t := find(id)
	sum := sha256.Sum256([]byte(secret))
	// The comparison runs for an unknown id too, so that both take the same time.
	want := [sha256.Size]byte{}
	copy(want[:], t.GetSum())
	if same := subtle.ConstantTimeCompare(sum[:], want[:]); t == nil || len(t.Sum) != sha256.Size || same != 1 {
		return Identity{}, errToken
	}
	if t.ExpiresNs != 0 && now >= t.ExpiresNs {
		return Identity{}, fmt.Errorf("auth: token %s: it expired %s ago: ask an admin for a new one (rlctl cluster token create)", id, time.Duration(now-t.ExpiresNs).Round(time.Second))
	}
	who := Identity{Role: Role(t.Role), Name: id}
	if who.Role == Coordinator || !known(who.Role) {
		return Identity{}, fmt.Errorf("auth: token %s: its role %q is not one for tokens: ask an admin for a new one", id, t.Role)
	}
	return who, nil
}
