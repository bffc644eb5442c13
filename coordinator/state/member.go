package state

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// setMember records how a node of the coordinator is reached. Saying the same again changes nothing.
func (s *State) setMember(m *raftlog.Member) *raftlog.Result {
	switch {
	case !ValidName(m.GetId()):
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("coordinator node %q: use letters, digits, '-', '_' and '.'", m.GetId()))
	case m.Raft == "":
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("coordinator node %s names no raft address", m.Id))
	case m.Level < 1:
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("coordinator node %s says that it knows commands of level %d: the lowest is 1", m.Id, m.Level))
	}
	m = proto.CloneOf(m)
	m.SinceNs = s.clock.NowNs
	if old, found := s.peers.Get(m.Id); found {
		m.SinceNs = old.SinceNs
		if proto.Equal(old, m) {
			return ok()
		}
		m.SinceNs = s.clock.NowNs
	}
	s.peers.Set(m.Id, m)
	return ok()
}

func (s *State) removeMember(id string) *raftlog.Result {
	if _, found := s.peers.Delete(id); !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no coordinator node %q", id))
	}
	return ok()
}

// Members returns the coordinator's nodes that have said how they are reached, by id.
func (s *State) Members() []*raftlog.Member { return s.peers.Values() }

// Member returns a node of the coordinator, or nil.
func (s *State) Member(id string) *raftlog.Member { m, _ := s.peers.Get(id); return m }
