package state

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// joinGang makes a trainer the gang of a run. A new gang fences the old one, also
// its own trainer's, and gets the same batch again.
func (s *State) joinGang(j *raftlog.JoinGang) *raftlog.Result {
	n := s.node(RoleTrainer, j.GetNode())
	if n == nil {
		return fencedNode(j.GetNode())
	}
	r, found := s.runs.Get(j.Run)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", j.Run))
	}
	if terminal(r.State) {
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s has ended: %s", r.Id, StateName(r.State)))
	}
	g := &raftlog.Gang{Run: j.Run}
	if old, is := s.gangs.Get(j.Run); is {
		if old.Lease != nil && old.Lease.Holder != n.Name {
			return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s has a gang: %s holds it", r.Id, old.Lease.Holder))
		}
		g.Epoch = old.Epoch
	}
	g.Epoch++
	g.Lease = s.grant(n)
	s.gangs.Set(j.Run, g)
	s.awaitBatch(j.Run)
	v, _ := s.versions.Get(numberKey(j.Run, r.Head))
	return &raftlog.Result{Result: &raftlog.Result_JoinGang{JoinGang: &raftlog.JoinGangResult{
		Epoch: g.Epoch, Fence: g.Lease.Fence, TtlNs: LeaseTTL, Head: r.Head, Manifest: v.Manifest, Lineage: r.Lineage,
	}}}
}

// gang returns the gang that a trainer names, or why it is not the gang.
func (s *State) gang(run string, ref *raftlog.NodeRef, epoch, fence uint64) string {
	g, found := s.gangs.Get(run)
	if !found || g.Epoch != epoch || !holds(g.Lease, ref, fence) {
		return fmt.Sprintf("gang epoch %d with fence %d does not hold run %s", epoch, fence, run)
	}
	return ""
}

func (s *State) putStep(st *raftlog.Step) {
	k := numberKey(st.Run, st.Step)
	s.steps.Set(k, st)
	s.note(KindStep, k)
}

// takeBatch gives the gang the batch of step head: the assigned one again if there is one.
func (s *State) takeBatch(t *raftlog.TakeBatch) *raftlog.Result {
	r, found := s.runs.Get(t.Run)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", t.Run))
	}
	res := &raftlog.TakeBatchResult{Step: r.Head, RunState: StateName(r.State)}
	result := &raftlog.Result{Result: &raftlog.Result_TakeBatch{TakeBatch: res}}
	if terminal(r.State) {
		res.Ended = true
		return result
	}
	if why := s.gang(t.Run, t.Node, t.Epoch, t.Fence); why != "" {
		return refuse(raftlog.Code_CODE_FENCED, why)
	}
	st, assigned := s.steps.Get(numberKey(t.Run, r.Head))
	if !assigned {
		if r.Head >= r.Config.Steps || r.Stopping {
			res.Ended = true
			return result
		}
		if r.State == raftlog.RunState_RUN_STATE_PAUSED {
			res.WaitsFor = "the run to be resumed: it is paused"
			return result
		}
		if st, res.WaitsFor = s.assign(r, t.Epoch); st == nil {
			return result
		}
	}
	if st.GangEpoch != t.Epoch {
		st = proto.CloneOf(st)
		st.GangEpoch, st.Lineage = t.Epoch, r.Lineage // a rollback may lie between
		s.putStep(st)
	}
	res.Ready = true
	for _, id := range st.Groups {
		res.Groups = append(res.Groups, s.batchGroup(t.Run, id))
	}
	return result
}

func (s *State) batchGroup(run string, id uint64) *raftlog.BatchGroup {
	g, _ := s.groups.Get(groupKey(run, id))
	b := &raftlog.BatchGroup{Group: id, Env: g.Env, Task: g.Task}
	for _, ep := range s.members(g) {
		b.Members = append(b.Members, &raftlog.BatchMember{
			Index: ep.Index, Attempt: ep.Attempt, Verdict: ep.Verdict, Disposition: ep.Disposition,
			Reward: ep.Reward, Sealed: ep.Sealed, VerdictRow: ep.VerdictRow,
		})
	}
	return b
}

// pick chooses the batch of step n: the B complete groups with the earliest
// deadlines, if what stays behind still fits, that is if for every d at most
// (d − n)·B of the other outstanding groups have a deadline ≤ d. Without a
// choice it says what it waits for. overdue are open groups whose end would
// make the rest fit: no more than that takes, the longest admitted first.
// Groups past their deadline and complete are stale and take no part.
func (s *State) pick(r *raftlog.Run) (batch, overdue []*raftlog.Group, wait string) {
	b, n := int(r.Config.GroupsPerStep), r.Head
	var rest []*raftlog.Group
	complete := 0
	for _, g := range s.outstanding(r) { // earliest deadline first
		if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE {
			if deadline(r, g) < n {
				continue
			}
			complete++
			if len(batch) < b {
				batch = append(batch, g)
				continue
			}
		}
		rest = append(rest, g)
	}
	dropped := map[uint64]bool{}
	for i, g := range rest {
		d := deadline(r, g)
		if i+1 < len(rest) && deadline(r, rest[i+1]) == d {
			continue
		}
		excess := int64(i+1-len(overdue)) - max(0, d-n)*int64(b)
		for _, late := range rest[:i+1] {
			if excess > 0 && late.State == raftlog.GroupState_GROUP_STATE_OPEN && !dropped[late.Id] {
				dropped[late.Id] = true
				overdue = append(overdue, late)
				excess--
			}
		}
	}
	switch {
	case len(batch) < b:
		wait = fmt.Sprintf("groups: %d of %d complete", complete, b)
	case len(overdue) > 0:
		wait = fmt.Sprintf("%d slow groups that step %d must still train", len(overdue), n)
	}
	return batch, overdue, wait
}

// assign fixes the batch of the next step, or says what it waits for.
func (s *State) assign(r *raftlog.Run, epoch uint64) (*raftlog.Step, string) {
	s.dropStale(r)
	r, _ = s.runs.Get(r.Id)
	batch, _, wait := s.pick(r)
	if wait != "" {
		if r.BatchWaitNs == 0 {
			s.awaitBatch(r.Id)
		}
		return nil, wait
	}
	st := &raftlog.Step{
		Run: r.Id, Step: r.Head, Lineage: r.Lineage, State: raftlog.StepState_STEP_STATE_ASSIGNED,
		GangEpoch: epoch, AssignedNs: s.clock.NowNs,
	}
	for _, g := range batch {
		st.Groups = append(st.Groups, g.Id)
		s.changeGroup(g.Run, g.Id, func(g *raftlog.Group) {
			g.State, g.Step = raftlog.GroupState_GROUP_STATE_ASSIGNED, st.Step
		})
	}
	s.putStep(st)
	s.update(r.Id, func(r *raftlog.Run) { r.BatchWaitNs = 0 })
	return st, ""
}

// awaitBatch starts the clock of deadlines.batch unless a batch is out or none is needed.
func (s *State) awaitBatch(id string) {
	s.update(id, func(r *raftlog.Run) {
		r.BatchWaitNs = 0
		if _, assigned := s.steps.Get(numberKey(id, r.Head)); !assigned && r.Head < r.Config.Steps && !r.Stopping {
			r.BatchWaitNs = s.clock.NowNs
		}
	})
}

// dropStale enforces the bound (invariant I2) on what is complete: no token older than head − S is ever assigned.
func (s *State) dropStale(r *raftlog.Run) {
	for _, g := range s.outstanding(r) {
		if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE && deadline(r, g) < r.Head {
			s.update(r.Id, func(r *raftlog.Run) { r.Counters.Stale++ })
			s.dropGroup(g, "stale: older than the lag bound", r.Config.RequeueStale)
		}
	}
}

// commitStep consumes the batch and creates the next version in one entry.
func (s *State) commitStep(c *raftlog.CommitStep) *raftlog.Result {
	r, found := s.runs.Get(c.Run)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", c.Run))
	}
	done := &raftlog.Result{Result: &raftlog.Result_CommitStep{CommitStep: &raftlog.CommitStepResult{Version: c.Step + 1}}}
	st, found := s.steps.Get(numberKey(c.Run, c.Step))
	if found && st.State == raftlog.StepState_STEP_STATE_COMMITTED {
		if st.Manifest == c.Manifest && st.Ledger == c.Ledger {
			return done
		}
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("step %d is committed with another checkpoint", c.Step))
	}
	if why := s.gang(c.Run, c.Node, c.Epoch, c.Fence); why != "" {
		return refuse(raftlog.Code_CODE_FENCED, why)
	}
	switch {
	case !found || c.Step != r.Head || terminal(r.State):
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("step %d is not assigned", c.Step))
	case st.GangEpoch != c.Epoch:
		return refuse(raftlog.Code_CODE_FENCED, fmt.Sprintf("step %d belongs to gang epoch %d", c.Step, st.GangEpoch))
	case c.Manifest == "" || c.Ledger == "":
		return refuse(raftlog.Code_CODE_INVALID, "a step names its checkpoint and its ledger")
	}
	st = proto.CloneOf(st)
	st.State, st.Manifest, st.Ledger, st.Metrics, st.CommittedNs = raftlog.StepState_STEP_STATE_COMMITTED, c.Manifest, c.Ledger, c.Metrics, s.clock.NowNs
	s.putStep(st)
	s.putVersion(&raftlog.PolicyVersion{
		Run: c.Run, Version: c.Step + 1, Lineage: r.Lineage, State: raftlog.VersionState_VERSION_STATE_COMMITTED,
		Manifest: c.Manifest, Full: c.Full, CommittedNs: s.clock.NowNs,
	})
	s.emit(c.Run, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{
		Step: c.Step, Lineage: r.Lineage, Groups: st.Groups, Manifest: c.Manifest, Ledger: c.Ledger, Metrics: c.Metrics,
	}}})
	kept := s.keptFrom(r)
	s.consume(r, st)
	r, _ = s.runs.Get(c.Run)
	s.release(c.Run, kept, min(r.Head, s.keptFrom(r)))
	s.awaitBatch(c.Run)
	s.planEvals(c.Run, c.Step+1)
	s.finish(c.Run)
	return done
}

func (s *State) consume(r *raftlog.Run, st *raftlog.Step) {
	var lag int64
	var members int64
	for _, id := range st.Groups {
		g, _ := s.groups.Get(groupKey(r.Id, id))
		for _, ep := range s.members(g) {
			if v := ep.Sealed.GetMinVersion(); ep.Sealed != nil && v >= 0 && ep.Disposition == "train" {
				lag = max(lag, st.Step-v)
			}
			members++
		}
		s.endGroup(g, "consumed", "", st.Step, "")
		s.trained(g)
	}
	s.update(r.Id, func(r *raftlog.Run) {
		r.Head = st.Step + 1
		r.Counters.GroupsConsumed += int64(len(st.Groups))
		r.Counters.MembersConsumed += members
		r.Counters.MaxLag = max(r.Counters.MaxLag, lag)
		r.ProgressNs, r.Progress = s.clock.NowNs, fmt.Sprintf("step %d was committed", st.Step)
	})
}

// Steps returns a run's steps in order.
func (s *State) Steps(run string) []*raftlog.Step { return list(&s.steps, run+"/") }
