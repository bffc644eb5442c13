package state

import (
	"fmt"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// queueKey orders the queue: evaluations first, then by group and member.
func (s *State) queueKey(ep *raftlog.Episode) string {
	order := "1"
	if g, found := s.groups.Get(groupKey(ep.Run, ep.Group)); found && g.Suite != "" {
		order = "0"
	}
	return ep.Run + "/" + order + "/" + memberKey("", ep.Group, ep.Index)
}

// putEpisode stores an episode and keeps the derived sets and reservations.
func (s *State) putEpisode(ep *raftlog.Episode) {
	k := memberKey(ep.Run, ep.Group, ep.Index)
	c := s.counts[ep.Run]
	if old, found := s.episodes.Get(k); found {
		switch old.State {
		case raftlog.EpisodeState_EPISODE_STATE_QUEUED:
			s.queue.Delete(s.queueKey(old))
			c.queued--
		case raftlog.EpisodeState_EPISODE_STATE_LEASED:
			s.leased.Delete(k)
			s.ends.Delete(s.endKey(old.Run, old.Lease, endOfEpisode, k))
			c.leased--
			if ep.State != raftlog.EpisodeState_EPISODE_STATE_LEASED {
				s.used(ep.Run, old.Lease)
			}
			if old.Host != "" && (ep.State != raftlog.EpisodeState_EPISODE_STATE_LEASED || ep.Host != old.Host) {
				s.adjust(old.Host, false, -1)
			}
		}
	}
	switch ep.State {
	case raftlog.EpisodeState_EPISODE_STATE_QUEUED:
		s.queue.Set(s.queueKey(ep), struct{}{})
		c.queued++
	case raftlog.EpisodeState_EPISODE_STATE_LEASED:
		s.leased.Set(k, struct{}{})
		s.ends.Set(s.endKey(ep.Run, ep.Lease, endOfEpisode, k), struct{}{})
		c.leased++
	}
	s.counts[ep.Run] = c
	s.episodes.Set(k, ep)
}

// leaseEpisodes grants up to count episodes, each with a reserved sandbox, admitting groups as pacing allows.
func (s *State) leaseEpisodes(l *raftlog.LeaseEpisodes) *raftlog.Result {
	n := s.node(RoleRollout, l.GetNode())
	if n == nil {
		return fencedNode(l.GetNode())
	}
	res := &raftlog.LeaseEpisodesResult{TtlNs: LeaseTTL}
	result := &raftlog.Result{Result: &raftlog.Result_LeaseEpisodes{LeaseEpisodes: res}}
	if n.State == raftlog.NodeState_NODE_STATE_DRAINING {
		res.WaitsFor = "the end of its drain"
		return result
	}
	for _, id := range s.runs.Keys() {
		if l.Run != "" && id != l.Run {
			continue
		}
		want := int(l.Count) - len(res.Grants)
		if want <= 0 {
			break
		}
		res.WaitsFor = s.leaseFrom(id, n, want, res)
	}
	return result
}

// leaseFrom grants from one run and says what keeps it from granting more.
func (s *State) leaseFrom(id string, n *raftlog.Node, want int, res *raftlog.LeaseEpisodesResult) string {
	r, _ := s.runs.Get(id)
	if r.State != raftlog.RunState_RUN_STATE_RUNNING {
		return "run is " + StateName(r.State)
	}
	if r.Live < 0 || !s.served(r.Live) {
		return "an engine that serves the live version"
	}
	for range want {
		if c := s.counts[id]; int32(c.leased) >= r.Config.Concurrency {
			return "rollout.concurrency"
		}
		host := s.freeHost(false)
		if host == nil { // before admission: a group's bound runs from there
			return "a free sandbox"
		}
		s.admit(id, 1)
		if r, _ = s.runs.Get(id); r.State != raftlog.RunState_RUN_STATE_RUNNING {
			return "run is " + StateName(r.State)
		}
		ep := s.nextQueued(id)
		if ep == nil {
			return s.heldBack(r)
		}
		s.adjust(host.Name, false, 1)
		res.Grants = append(res.Grants, s.grantEpisode(r, ep, n, host))
	}
	return ""
}

// heldBack says why no group is admitted.
func (s *State) heldBack(r *raftlog.Run) string {
	if r.Stopping || (r.Config.Steps-r.Head)*int64(r.Config.GroupsPerStep) <= int64(s.counts[r.Id].outstanding) {
		return "nothing: all groups that the run needs are admitted"
	}
	if s.catchingUp(r) {
		return fmt.Sprintf("admission: after the rollback nothing is admitted until version %d is live again", r.Live)
	}
	if r.Live < r.Head {
		return fmt.Sprintf("admission: the lag bound holds new groups back while version %d is not live", r.Head)
	}
	return fmt.Sprintf("admission: the lag bound holds new groups back until step %d is committed", r.Head)
}

func (s *State) nextQueued(id string) *raftlog.Episode {
	prefix := id + "/"
	var ep *raftlog.Episode
	s.queue.Ascend(prefix, func(k string, _ struct{}) bool {
		if len(k) > len(prefix)+2 && k[:len(prefix)] == prefix {
			ep, _ = s.episodes.Get(id + k[len(prefix)+2:]) // drop "0/" or "1/"
		}
		return false
	})
	return ep
}

func (s *State) grantEpisode(r *raftlog.Run, ep *raftlog.Episode, n, host *raftlog.Node) *raftlog.EpisodeGrant {
	g, _ := s.groups.Get(groupKey(ep.Run, ep.Group))
	ep = cloneEpisode(ep)
	ep.State, ep.Lease, ep.Host = raftlog.EpisodeState_EPISODE_STATE_LEASED, s.grant(n), host.Name
	ep.WaitsFor, ep.WaitsSinceNs = "start", s.clock.NowNs
	s.putEpisode(ep)
	return &raftlog.EpisodeGrant{
		Run: ep.Run, Group: ep.Group, Index: ep.Index, Attempt: ep.Attempt, Fence: ep.Lease.Fence, Seed: ep.Seed,
		Env: g.Env, Task: g.Task, Suite: g.Suite, Pin: g.Pin, Host: host.Name, HostAddress: host.Address,
		Live: r.Live, Size: g.Size, TaskRef: s.taskRef(r, g),
	}
}

// held returns the leased attempt that a holder names, or why it is not the holder.
func (s *State) held(run string, ref *raftlog.NodeRef, group uint64, index, attempt int32, fence uint64) (*raftlog.Episode, string) {
	ep, found := s.episodes.Get(memberKey(run, group, index))
	if !found {
		return nil, "the group has ended"
	}
	if ep.State != raftlog.EpisodeState_EPISODE_STATE_LEASED || ep.Attempt != attempt || !holds(ep.Lease, ref, fence) {
		return nil, fmt.Sprintf("attempt %d is not held with fence %d", attempt, fence)
	}
	return ep, ""
}

// sealEpisodes makes attempts durable results: from here the worker may die.
func (s *State) sealEpisodes(m *raftlog.SealEpisodes) *raftlog.Result {
	res := &raftlog.ItemsResult{}
	var groups []uint64
	for _, it := range m.Items {
		code, msg := s.sealOne(m.Run, m.Node, it)
		res.Codes, res.Messages = append(res.Codes, code), append(res.Messages, msg)
		if code == raftlog.Code_CODE_OK && !slices.Contains(groups, it.Group) {
			groups = append(groups, it.Group)
		}
	}
	for _, g := range groups {
		s.recount(m.Run, g)
	}
	return &raftlog.Result{Result: &raftlog.Result_Items{Items: res}}
}

func (s *State) sealOne(run string, ref *raftlog.NodeRef, it *raftlog.SealItem) (raftlog.Code, string) {
	ep, why := s.held(run, ref, it.Group, it.Index, it.Attempt, it.Fence)
	if ep == nil {
		return raftlog.Code_CODE_FENCED, why
	}
	sealed := it.GetSealed()
	if sealed == nil || !outcome.Judged(outcome.EndReason(sealed.EndReason)) {
		return raftlog.Code_CODE_INVALID, fmt.Sprintf("an episode that ended with %q is not sealed but failed", sealed.GetEndReason())
	}
	if sealed.Steps.GetObject() == "" || sealed.Episode.GetObject() == "" {
		return raftlog.Code_CODE_INVALID, "a sealed episode names its shards"
	}
	g, _ := s.groups.Get(groupKey(run, it.Group))
	if r, _ := s.runs.Get(run); sealed.Tokens > 0 && (sealed.MinVersion < 0 || sealed.MinVersion > sealed.MaxVersion || !s.existed(r, sealed.MaxVersion)) {
		return raftlog.Code_CODE_INVALID, fmt.Sprintf("tokens of versions %d to %d, and %d is the newest", sealed.MinVersion, sealed.MaxVersion, r.Head)
	}
	if g.Pin >= 0 && sealed.Tokens > 0 && (sealed.MinVersion != g.Pin || sealed.MaxVersion != g.Pin) {
		return raftlog.Code_CODE_INVALID, fmt.Sprintf("an evaluation of version %d has tokens of versions %d to %d", g.Pin, sealed.MinVersion, sealed.MaxVersion)
	}
	ep = cloneEpisode(ep)
	ep.State, ep.Sealed, ep.Lease, ep.Host, ep.WaitsFor = raftlog.EpisodeState_EPISODE_STATE_SEALED, sealed, nil, "", ""
	s.putEpisode(ep)
	s.putJob(&raftlog.VerifyJob{
		Run: run, Group: it.Group, Index: it.Index, Attempt: it.Attempt,
		State: raftlog.JobState_JOB_STATE_QUEUED, QueuedNs: s.clock.NowNs,
	})
	s.emit(run, &raftlog.Event{Event: &raftlog.Event_Sealed{Sealed: &raftlog.EpisodeSealed{
		Group: it.Group, Index: it.Index, Attempt: it.Attempt, Sealed: sealed, Suite: g.Suite,
	}}})
	return raftlog.Code_CODE_OK, ""
}

// existed reports whether a version was ever committed; what a rollback superseded was.
func (s *State) existed(r *raftlog.Run, v int64) bool {
	_, found := s.versions.Get(numberKey(r.Id, v))
	return found
}

// failEpisodes reports attempts that ended without a result.
func (s *State) failEpisodes(m *raftlog.FailEpisodes) *raftlog.Result {
	res := &raftlog.ItemsResult{}
	for _, it := range m.Items {
		ep, why := s.held(m.Run, m.Node, it.Group, it.Index, it.Attempt, it.Fence)
		code := raftlog.Code_CODE_OK
		switch class, err := outcome.Class(outcome.EndReason(it.Reason)); {
		case ep == nil:
			code = raftlog.Code_CODE_FENCED
		case err != nil || class == outcome.ClassModel || class == outcome.ClassLimit:
			code, why = raftlog.Code_CODE_INVALID, fmt.Sprintf("%q is not a failure", it.Reason)
		default:
			s.loseAttempt(ep, outcome.EndReason(it.Reason), it.Message)
		}
		res.Codes, res.Messages = append(res.Codes, code), append(res.Messages, why)
	}
	return &raftlog.Result{Result: &raftlog.Result_Items{Items: res}}
}

// loseAttempt ends an attempt without a result. The member is queued again
// under a new attempt; only environment-, verifier- and task-class failures
// count against the task.
func (s *State) loseAttempt(ep *raftlog.Episode, why outcome.EndReason, message string) {
	sealed := ep.State == raftlog.EpisodeState_EPISODE_STATE_SEALED
	s.attemptLost(ep, why)
	r, _ := s.runs.Get(ep.Run)
	ep = cloneEpisode(ep)
	ep.LastFailure = string(why) + ": " + message
	ep.State, ep.Lease, ep.Host, ep.Sealed, ep.WaitsFor = raftlog.EpisodeState_EPISODE_STATE_QUEUED, nil, "", nil, ""
	ep.Attempt++
	ep.QueuedNs, ep.Floor = s.clock.NowNs, max(ep.Floor, r.Live)
	class, _ := outcome.Class(why)
	counted := class == outcome.ClassEnvironment || class == outcome.ClassVerifier || class == outcome.ClassTask
	if counted {
		ep.Failures++
	}
	s.putEpisode(ep)
	s.update(ep.Run, func(r *raftlog.Run) {
		r.Counters.AttemptsLost++
		if sealed { // its verdict was indeterminate
			r.Counters.EpisodesIndeterminate++
		}
	})
	if counted {
		s.blameTask(ep, why, message, sealed)
	}
	s.recount(ep.Run, ep.Group)
}

func (s *State) attemptLost(ep *raftlog.Episode, why outcome.EndReason) {
	s.emit(ep.Run, &raftlog.Event{Event: &raftlog.Event_AttemptLost{AttemptLost: &raftlog.AttemptLost{
		Group: ep.Group, Index: ep.Index, Attempt: ep.Attempt, Reason: string(why),
		Sealed: ep.State == raftlog.EpisodeState_EPISODE_STATE_SEALED,
	}}})
}
