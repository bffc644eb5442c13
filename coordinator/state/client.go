package state

import (
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

const (
	idleStep    = 60 * second // the index of idle clients moves one at most so often
	forgetsMost = 1000        // clients that one Tick forgets, so that none takes long
)

// idleKey orders clients by when they were seen, roughly: exact times would
// cost two more changes of a tree with every command.
func idleKey(c *raftlog.Client) string {
	return seqKey(uint64(max(0, c.SeenNs)/idleStep)) + "/" + c.Id
}

func (s *State) putClient(c *raftlog.Client) {
	old, found := s.clients.Set(c.Id, c)
	if found && old.SeenNs/idleStep == c.SeenNs/idleStep {
		return
	}
	if found {
		s.idle.Delete(idleKey(old))
	}
	s.idle.Set(idleKey(c), struct{}{})
}

func (s *State) dropClient(c *raftlog.Client) {
	s.clients.Delete(c.Id)
	s.idle.Delete(idleKey(c))
}

// idleClients returns up to limit clients that may be forgotten at log time now.
func (s *State) idleClients(now int64, limit int) []*raftlog.Client {
	var out []*raftlog.Client
	s.idle.Scan(func(k string, _ struct{}) bool {
		c, _ := s.clients.Get(k[len(seqKey(0))+1:])
		if c.SeenNs+clientSession <= now {
			out = append(out, c)
		}
		// Those of the next step were seen later than all of this one.
		return len(out) < limit && max(0, c.SeenNs)/idleStep <= max(0, now-clientSession)/idleStep
	})
	return out
}

func (s *State) forgetClients(now int64) {
	most := s.clients.Len()
	if s.atLeast(2) {
		most = forgetsMost
	}
	for _, c := range s.idleClients(now, max(1, most)) {
		s.dropClient(c)
	}
}
