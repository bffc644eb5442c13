package state

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// epochShift puts the epoch above all fences that one epoch can mint.
const epochShift = 48

// Reborn returns what a snapshot becomes that is restored by hand into a
// cluster. What happened after the snapshot is unknown, so nobody keeps
// anything of it: every node is fenced and registers again, every lease ends,
// and fences go on above all that were ever issued. Runs, their groups and
// assigned batches stay; the nodes of the coordinator announce themselves.
func (s *State) Reborn(cluster string, epoch uint64) *State {
	r := s.Fork()
	c := cloneClock(s.clock)
	c.Cluster, c.Epoch = cluster, max(epoch, c.Epoch+1)
	c.NextFence = max(c.NextFence, c.Epoch<<epochShift+1)
	c.RestoredEvent = c.NextEvent - 1
	c.Level = max(c.Level, 2) // where epochs came in
	c.Term, c.GraceNs = 0, 0  // another log, whose terms begin anew
	r.clock = c
	for _, n := range r.nodes.Values() {
		if n.State != raftlog.NodeState_NODE_STATE_FENCED {
			r.endNodeLeases(n, outcome.LeaseExpired)
			r.fence(n)
		}
	}
	r.peers.Clear()
	return r
}

// WithTokensOf gives a restored state the tokens of the cluster as it is: what
// was revoked since stays revoked, and another cluster's let nobody in.
func (s *State) WithTokensOf(now *State) *State {
	s.tokens.Clear()
	back := s.clock.NowNs - now.clock.NowNs // log time begins anew with the snapshot's
	for _, t := range now.Tokens() {
		t = proto.CloneOf(t)
		t.CreatedNs += back
		if t.ExpiresNs != 0 {
			t.ExpiresNs += back
		}
		s.tokens.Set(t.Id, t)
	}
	return s
}

// diverged ends a run whose record in the store goes beyond the restored
// snapshot: steps that were committed there would be trained again, on other
// data. What it still had to say is dropped; its place in the store is taken.
func (s *State) diverged(d *raftlog.Diverged) *raftlog.Result {
	r, found := s.runs.Get(d.Run)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", d.Run))
	}
	last := s.clock.RestoredEvent
	if last == 0 {
		last = s.clock.NextEvent - 1
	}
	s.endRun(r.Id, raftlog.RunState_RUN_STATE_FAILED, fmt.Sprintf(
		"its record in the store goes on to event %d, beyond the restored snapshot, which ends at event %d: to go on would train the same work twice", d.Stored, last))
	var waiting []string
	s.outbox.Scan(func(k string, e *raftlog.Event) bool {
		if e.Run == d.Run {
			waiting = append(waiting, k)
		}
		return true
	})
	for _, k := range waiting {
		s.dropEvent(k)
	}
	for _, g := range s.Groups(d.Run) { // no event of theirs will be mirrored
		s.ended.Delete(seqKey(g.EndedEvent))
		s.forgetGroup(groupKey(g.Run, g.Id))
	}
	return ok()
}
