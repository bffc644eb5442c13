package state

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// keptFrom returns the first step whose batch a rollback may still need: the
// newest full version at or below live is known to be good, and all that was
// trained on top of it can be trained again. math.MaxInt64 when none is kept.
func (s *State) keptFrom(r *raftlog.Run) int64 {
	if terminal(r.State) || !s.atLeast(2) {
		return math.MaxInt64
	}
	for v := r.Live; v > 0; v-- {
		if s.resumable(r.Id, v) {
			return v
		}
	}
	return 0
}

// resumable reports whether a gang can go on from a version.
func (s *State) resumable(run string, v int64) bool {
	x, found := s.versions.Get(numberKey(run, v))
	return found && x.Full && x.State != raftlog.VersionState_VERSION_STATE_SUPERSEDED && x.State != raftlog.VersionState_VERSION_STATE_REJECTED
}

// kept reports whether a group that has ended stays for a rollback.
func (s *State) kept(g *raftlog.Group) bool {
	if g.State != raftlog.GroupState_GROUP_STATE_CONSUMED || g.Suite != "" {
		return false
	}
	r, found := s.runs.Get(g.Run)
	return found && g.Step >= s.keptFrom(r)
}

// release forgets the batches of steps from up to, but not including, to that were kept and are mirrored.
func (s *State) release(run string, from, to int64) {
	for n := from; n < to; n++ {
		st, found := s.steps.Get(numberKey(run, n))
		if !found {
			return
		}
		for _, id := range st.Groups {
			k := groupKey(run, id)
			if g, is := s.groups.Get(k); is && g.EndedEvent > 0 && g.EndedEvent <= s.clock.Mirrored {
				s.forgetGroup(k)
			}
		}
	}
}

// rollback gives up the versions above to and opens a new lineage on it. The
// batches of the steps that made them are assigned again, each to its step, so
// they come back in the same order; what is admitted and not yet trained stays
// behind them. Engines keep serving what they serve, and nothing is admitted
// until that version is there again on the new lineage (see room).
func (s *State) rollback(b *raftlog.Rollback) *raftlog.Result {
	r, found := s.runs.Get(b.Run)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", b.Run))
	}
	if why := s.cannotRollBack(r, b.To); why != "" {
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s cannot go back to version %d: %s", r.Id, b.To, why))
	}
	s.publish.Delete(r.Id) // whatever was being published is superseded
	if g, is := s.gangs.Get(r.Id); is && g.Lease != nil {
		g = proto.CloneOf(g)
		g.Lease = nil
		s.gangs.Set(r.Id, g)
	}
	lineage := r.Lineage + 1
	s.emit(r.Id, &raftlog.Event{Event: &raftlog.Event_RolledBack{RolledBack: &raftlog.RolledBack{To: b.To, Lineage: lineage, Reason: b.Reason}}})
	for v := b.To + 1; v <= r.Head; v++ {
		s.setVersion(r.Id, v, raftlog.VersionState_VERSION_STATE_SUPERSEDED, b.Reason)
		s.versionEvent(r.Id, v, "superseded", b.Reason)
	}
	var groups, members int64
	for n := b.To; n < r.Head; n++ {
		g, m := s.assignAgain(r.Id, n, lineage)
		groups, members = groups+g, members+m
	}
	head := r.Head
	s.update(r.Id, func(r *raftlog.Run) {
		r.Lineage, r.Head, r.BatchWaitNs = lineage, b.To, 0
		r.Counters.GroupsConsumed -= groups
		r.Counters.MembersConsumed -= members
		r.Counters.Rollbacks++
		r.ProgressNs, r.Progress = s.clock.NowNs, fmt.Sprintf("rolled back from version %d to %d", head, b.To)
	})
	s.forgetEvals(r.Id, b.To)
	return ok()
}

func (s *State) cannotRollBack(r *raftlog.Run, to int64) string {
	switch from := s.keptFrom(r); {
	case terminal(r.State):
		return "it has ended: " + StateName(r.State)
	case to >= r.Head || to < 0:
		return fmt.Sprintf("its newest version is %d", r.Head)
	case to < from:
		return fmt.Sprintf("the batches before version %d are no longer kept", from)
	case !s.resumable(r.Id, to):
		return "it is no full checkpoint of this lineage"
	}
	for n := to; n < r.Head; n++ {
		st, found := s.steps.Get(numberKey(r.Id, n))
		if !found || st.State != raftlog.StepState_STEP_STATE_COMMITTED {
			return fmt.Sprintf("step %d was not committed", n)
		}
		for _, id := range st.Groups {
			if _, is := s.groups.Get(groupKey(r.Id, id)); !is {
				return fmt.Sprintf("the batch of step %d is no longer kept", n)
			}
		}
	}
	return ""
}

// assignAgain turns a committed step into one that waits for its gang, with the same batch.
func (s *State) assignAgain(run string, n, lineage int64) (groups, members int64) {
	old, _ := s.steps.Get(numberKey(run, n))
	s.putStep(&raftlog.Step{
		Run: run, Step: n, Lineage: lineage, State: raftlog.StepState_STEP_STATE_ASSIGNED,
		Groups: old.Groups, AssignedNs: s.clock.NowNs,
	})
	for _, id := range old.Groups {
		g := s.changeGroup(run, id, func(g *raftlog.Group) {
			s.ended.Delete(seqKey(g.EndedEvent))
			g.State, g.Step, g.EndedEvent = raftlog.GroupState_GROUP_STATE_ASSIGNED, n, 0
		})
		groups, members = groups+1, members+int64(g.Size)
	}
	return groups, members
}

// forgetEvals ends and forgets the evaluations of versions above to: those
// that take their numbers are evaluated anew.
func (s *State) forgetEvals(run string, to int64) {
	for _, g := range list(&s.evaluating, run+"/") {
		if g.Pin > to {
			s.dropGroup(g, fmt.Sprintf("version %d was superseded", g.Pin), false)
		}
	}
	for _, e := range s.Evals(run) {
		if e.Version > to {
			k := evalKey(run, e.Suite, e.Version)
			s.evals.Delete(k)
			s.note(KindEval, k)
		}
	}
	s.update(run, func(r *raftlog.Run) {
		r.Best, r.Stopping = "", false
		for _, e := range s.Evals(run) {
			if e.Done {
				s.judgeEval(r, e)
			}
		}
	})
}
