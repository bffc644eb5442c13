package state

import (
	"cmp"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func isActive(g *raftlog.Group) bool {
	if g == nil || g.Suite != "" {
		return false
	}
	switch g.State {
	case raftlog.GroupState_GROUP_STATE_OPEN, raftlog.GroupState_GROUP_STATE_COMPLETE, raftlog.GroupState_GROUP_STATE_ASSIGNED:
		return true
	}
	return false
}

func (s *State) putGroup(g *raftlog.Group) {
	k := groupKey(g.Run, g.Id)
	old, _ := s.groups.Get(k)
	was, is := isActive(old), isActive(g)
	if was != is {
		c := s.counts[g.Run]
		if is {
			c.outstanding++
		} else {
			s.active.Delete(k)
			c.outstanding--
		}
		s.counts[g.Run] = c
	}
	if is {
		s.active.Set(k, g)
	}
	if g.Suite != "" {
		if g.State == raftlog.GroupState_GROUP_STATE_OPEN {
			s.evaluating.Set(k, g)
		} else {
			s.evaluating.Delete(k)
		}
	}
	s.groups.Set(k, g)
	s.note(KindGroup, k)
}

// changeGroup changes a group through a function on a private copy.
func (s *State) changeGroup(run string, id uint64, change func(*raftlog.Group)) *raftlog.Group {
	g, found := s.groups.Get(groupKey(run, id))
	if !found {
		return nil
	}
	g = cloneGroup(g)
	change(g)
	s.putGroup(g)
	return g
}

// members returns the episodes of a group by index.
func (s *State) members(g *raftlog.Group) []*raftlog.Episode {
	out := make([]*raftlog.Episode, 0, g.Size)
	s.episodes.Ascend(groupKey(g.Run, g.Id)+"/", func(_ string, ep *raftlog.Episode) bool {
		if ep.Group != g.Id || ep.Run != g.Run {
			return false
		}
		out = append(out, ep)
		return true
	})
	return out
}

// recount refreshes what a group derives from its members, and completes it when all have settled.
func (s *State) recount(run string, id uint64) {
	g, found := s.groups.Get(groupKey(run, id))
	if !found || g.State != raftlog.GroupState_GROUP_STATE_OPEN {
		return
	}
	var sealed, settled int32
	bound := int64(-1)
	atMost := func(v int64) {
		if bound < 0 || v < bound {
			bound = v
		}
	}
	for _, ep := range s.members(g) {
		switch ep.State {
		case raftlog.EpisodeState_EPISODE_STATE_SETTLED:
			settled++
			fallthrough
		case raftlog.EpisodeState_EPISODE_STATE_SEALED:
			sealed++
			if ep.Sealed.GetTokens() > 0 { // never assumed: if a worker was given an older engine, the tokens decide
				atMost(ep.Sealed.MinVersion)
			}
		default:
			atMost(ep.Floor)
		}
	}
	g = cloneGroup(g)
	g.Sealed, g.Settled, g.Bound = sealed, settled, g.LiveAtAdmission
	if bound >= 0 {
		g.Bound = bound
	}
	if settled == g.Size {
		g.State, g.CompleteNs = raftlog.GroupState_GROUP_STATE_COMPLETE, s.clock.NowNs
	}
	s.putGroup(g)
	if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE && g.Suite != "" {
		s.endGroup(g, "evaluated", "", -1, "")
	}
}

// endGroup consumes or drops a group: its members' leases end and the reason
// is written down. cut is the end reason of members that are not settled yet.
func (s *State) endGroup(g *raftlog.Group, how, reason string, step int64, cut outcome.EndReason) {
	for _, ep := range s.members(g) {
		if ep.State != raftlog.EpisodeState_EPISODE_STATE_SETTLED {
			s.cutMember(ep, reason, cut)
		}
	}
	seq := s.emit(g.Run, &raftlog.Event{Event: &raftlog.Event_GroupEnded{GroupEnded: &raftlog.GroupEnded{
		Group: g.Id, Outcome: how, Reason: reason, Step: step,
	}}})
	s.changeGroup(g.Run, g.Id, func(g *raftlog.Group) {
		g.State, g.Reason, g.EndedEvent = raftlog.GroupState_GROUP_STATE_CONSUMED, reason, seq
		if how == "dropped" {
			g.State = raftlog.GroupState_GROUP_STATE_DROPPED
		}
		g.Step = step
	})
	s.ended.Set(seqKey(seq), groupKey(g.Run, g.Id))
}

// cutMember settles a member whose group ends before it. A sealed attempt is
// acknowledged: that it is lost is an event of its own (invariant I3).
func (s *State) cutMember(ep *raftlog.Episode, reason string, cut outcome.EndReason) {
	if j, found := s.jobs.Get(memberKey(ep.Run, ep.Group, ep.Index)); found {
		s.dropJob(j)
	}
	if ep.State == raftlog.EpisodeState_EPISODE_STATE_SEALED {
		s.attemptLost(ep, cut)
	}
	c := cloneEpisode(ep)
	c.State, c.Lease, c.Host, c.WaitsFor = raftlog.EpisodeState_EPISODE_STATE_SETTLED, nil, "", ""
	c.Verdict, c.Disposition, c.LastFailure = string(outcome.NotRun), string(outcome.Drop), reason
	s.putEpisode(c)
}

// dropGroup ends a group untrained. requeue brings its task back, within the run's limit.
func (s *State) dropGroup(g *raftlog.Group, reason string, requeue bool) {
	s.dropGroupAs(g, reason, requeue, outcome.StaleCancel)
}

func (s *State) dropGroupAs(g *raftlog.Group, reason string, requeue bool, cut outcome.EndReason) {
	s.endGroup(g, "dropped", reason, -1, cut)
	if g.Suite != "" {
		return
	}
	if cut != outcome.Cancelled { // with its run, which says nothing of the task
		requeue = s.mayRequeue(g, requeue)
	}
	s.update(g.Run, func(r *raftlog.Run) {
		r.Counters.GroupsDropped++
		if requeue {
			r.Requeues = append(r.Requeues, &raftlog.Requeue{Env: g.Env, Task: g.Task, Times: g.Requeued + 1})
		}
	})
}

// dropOpen drops every group of a run that has not ended.
func (s *State) dropOpen(run, reason string) {
	open := append(list(&s.active, run+"/"), list(&s.evaluating, run+"/")...)
	slices.SortFunc(open, func(a, b *raftlog.Group) int { return cmp.Compare(a.Id, b.Id) })
	for _, g := range open {
		s.dropGroupAs(g, reason, false, outcome.Cancelled)
	}
}

// forgetGroup removes an ended group and its episodes once its end is mirrored.
func (s *State) forgetGroup(key string) {
	g, found := s.groups.Get(key)
	if !found {
		return
	}
	for _, ep := range s.members(g) {
		s.episodes.Delete(memberKey(ep.Run, ep.Group, ep.Index))
	}
	s.groups.Delete(key)
	s.note(KindGroup, key)
}

// outstanding returns the training groups of a run that have not ended, earliest deadline first.
func (s *State) outstanding(r *raftlog.Run) []*raftlog.Group {
	out := list(&s.active, r.Id+"/")
	slices.SortStableFunc(out, func(a, b *raftlog.Group) int { return cmp.Compare(a.Bound, b.Bound) }) // keys are in id order
	return out
}

// deadline is the last step that may train the group.
func deadline(r *raftlog.Run, g *raftlog.Group) int64 { return g.Bound + int64(r.Config.LagMax) }
