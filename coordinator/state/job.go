package state

import (
	"fmt"
	"math"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// readyKey orders the jobs to lease: the one that has waited longest first, so
// that one which cannot be judged does not keep the others waiting.
func readyKey(j *raftlog.VerifyJob) string {
	return seqKey(uint64(max(0, j.QueuedNs))) + "/" + memberKey(j.Run, j.Group, j.Index)
}

func (s *State) putJob(j *raftlog.VerifyJob) {
	s.dropJob(j)
	k := memberKey(j.Run, j.Group, j.Index)
	c := s.counts[j.Run]
	if j.State == raftlog.JobState_JOB_STATE_QUEUED {
		s.ready.Set(readyKey(j), struct{}{})
		c.jobs++
	} else {
		s.judged.Set(k, struct{}{})
		s.ends.Set(s.endKey(j.Run, j.Lease, endOfJob, k), struct{}{})
		c.judged++
	}
	s.counts[j.Run] = c
	s.jobs.Set(k, j)
}

// dropJob takes a job out of the table, the derived sets and its reservation.
func (s *State) dropJob(j *raftlog.VerifyJob) {
	k := memberKey(j.Run, j.Group, j.Index)
	old, found := s.jobs.Get(k)
	if !found {
		return
	}
	c := s.counts[j.Run]
	if old.State == raftlog.JobState_JOB_STATE_QUEUED {
		s.ready.Delete(readyKey(old))
		c.jobs--
	} else {
		s.judged.Delete(k)
		s.ends.Delete(s.endKey(j.Run, old.Lease, endOfJob, k))
		c.judged--
		s.used(j.Run, old.Lease)
		if old.Host != "" {
			s.adjust(old.Host, true, -1)
		}
	}
	s.counts[j.Run] = c
	s.jobs.Delete(k)
}

// leaseJobs grants up to count verify jobs, the longest waiting first, each with a reserved sandbox.
func (s *State) leaseJobs(l *raftlog.LeaseJobs) *raftlog.Result {
	n := s.node(RoleVerifier, l.GetNode())
	if n == nil {
		return fencedNode(l.GetNode())
	}
	res := &raftlog.LeaseJobsResult{TtlNs: LeaseTTL}
	if n.State == raftlog.NodeState_NODE_STATE_DRAINING {
		res.WaitsFor, l = "the end of its drain", &raftlog.LeaseJobs{}
	}
	for range l.Count {
		first, _, found := s.ready.Min()
		if !found {
			res.WaitsFor = "a sealed episode"
			break
		}
		host := s.freeHost(true)
		if host == nil {
			res.WaitsFor = "a free verifier sandbox"
			break
		}
		s.adjust(host.Name, true, 1)
		k := first[len(seqKey(0))+1:]
		j, _ := s.jobs.Get(k)
		j = cloneJob(j)
		j.State, j.Lease, j.Host = raftlog.JobState_JOB_STATE_LEASED, s.grant(n), host.Name
		s.putJob(j)
		r, _ := s.runs.Get(j.Run)
		g, _ := s.groups.Get(groupKey(j.Run, j.Group))
		ep, _ := s.episodes.Get(k)
		res.Grants = append(res.Grants, &raftlog.JobGrant{
			Run: j.Run, Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Lease.Fence, Env: g.Env,
			Task: s.taskRef(r, g), Suite: g.Suite, Artifacts: ep.Sealed.GetArtifacts(), EndReason: ep.Sealed.GetEndReason(),
			Host: host.Name, HostAddress: host.Address, Tries: j.Tries,
		})
	}
	return &raftlog.Result{Result: &raftlog.Result_LeaseJobs{LeaseJobs: res}}
}

// heldJob returns the job that a holder names, or why it is not the holder.
func (s *State) heldJob(run string, ref *raftlog.NodeRef, group uint64, index, attempt int32, fence uint64) (*raftlog.VerifyJob, string) {
	j, found := s.jobs.Get(memberKey(run, group, index))
	if !found {
		return nil, "the episode is settled or its group has ended"
	}
	if j.State != raftlog.JobState_JOB_STATE_LEASED || j.Attempt != attempt || !holds(j.Lease, ref, fence) {
		return nil, fmt.Sprintf("verify job of attempt %d is not held with fence %d", attempt, fence)
	}
	return j, ""
}

// settleJobs commits verdicts; each settles its episode for good.
func (s *State) settleJobs(m *raftlog.SettleJobs) *raftlog.Result {
	res := &raftlog.ItemsResult{}
	for _, it := range m.Items {
		code, msg := s.settleOne(m.Run, m.Node, it)
		res.Codes, res.Messages = append(res.Codes, code), append(res.Messages, msg)
	}
	return &raftlog.Result{Result: &raftlog.Result_Items{Items: res}}
}

func (s *State) settleOne(run string, ref *raftlog.NodeRef, it *raftlog.SettleItem) (raftlog.Code, string) {
	j, why := s.heldJob(run, ref, it.Group, it.Index, it.Attempt, it.Fence)
	if j == nil {
		return raftlog.Code_CODE_FENCED, why
	}
	v := outcome.Verdict(it.Verdict)
	if v != outcome.Pass && v != outcome.Fail {
		return raftlog.Code_CODE_INVALID, fmt.Sprintf("verdict %q does not settle an episode: report it as failed", it.Verdict)
	}
	if it.Reward == nil || math.IsNaN(*it.Reward) || math.IsInf(*it.Reward, 0) {
		return raftlog.Code_CODE_INVALID, "a verdict needs a finite reward"
	}
	r, _ := s.runs.Get(run)
	g, _ := s.groups.Get(groupKey(run, it.Group))
	ep, _ := s.episodes.Get(memberKey(run, it.Group, it.Index))
	on := map[outcome.EndReason]outcome.Disposition{}
	for k, d := range r.Config.Envs[g.Env].LimitsOn {
		on[outcome.EndReason(k)] = outcome.Disposition(d)
	}
	ep = cloneEpisode(ep)
	ep.State, ep.Verdict, ep.Reward, ep.VerdictRow = raftlog.EpisodeState_EPISODE_STATE_SETTLED, it.Verdict, it.Reward, it.VerdictRow
	ep.Disposition = string(outcome.Decide(outcome.EndReason(ep.Sealed.EndReason), v, on))
	s.putEpisode(ep)
	s.dropJob(j)
	s.forgive(g)
	s.settled(ep, it.Reason, ep.Sealed.EndReason)
	return raftlog.Code_CODE_OK, ""
}

// settled does the bookkeeping of a member that has just settled.
func (s *State) settled(ep *raftlog.Episode, reason, end string) {
	s.emit(ep.Run, &raftlog.Event{Event: &raftlog.Event_Settled{Settled: &raftlog.EpisodeSettled{
		Group: ep.Group, Index: ep.Index, Attempt: ep.Attempt, Verdict: ep.Verdict, Disposition: ep.Disposition,
		Reward: ep.Reward, VerdictRow: ep.VerdictRow, Reason: reason, EndReason: end,
	}}})
	s.update(ep.Run, func(r *raftlog.Run) {
		c := r.Counters
		c.EpisodesSettled++
		c.Tokens += ep.Sealed.GetTokens()
		switch outcome.Verdict(ep.Verdict) {
		case outcome.Pass:
			c.EpisodesPassed++
		case outcome.Fail:
			c.EpisodesFailed++
		}
		if ep.Disposition == string(outcome.Mask) {
			c.Masked++
		}
		r.ProgressNs, r.Progress = s.clock.NowNs, "an episode was judged"
	})
	g, found := s.groups.Get(groupKey(ep.Run, ep.Group))
	if !found {
		return
	}
	if g.Suite != "" {
		s.scoreEval(g, ep)
	}
	s.recount(ep.Run, ep.Group)
	if g.Suite != "" {
		s.finish(ep.Run)
	}
}

// failJobs reports that no verdict could be reached.
func (s *State) failJobs(m *raftlog.FailJobs) *raftlog.Result {
	res := &raftlog.ItemsResult{}
	for _, it := range m.Items {
		j, why := s.heldJob(m.Run, m.Node, it.Group, it.Index, it.Attempt, it.Fence)
		code := raftlog.Code_CODE_OK
		switch class, err := outcome.Class(outcome.EndReason(it.Reason)); {
		case j == nil:
			code = raftlog.Code_CODE_FENCED
		case err != nil:
			code, why = raftlog.Code_CODE_INVALID, err.Error()
		case outcome.EndReason(it.Reason) == outcome.UploadFailed: // what it was to judge is gone
			ep, _ := s.episodes.Get(memberKey(j.Run, j.Group, j.Index))
			s.dropJob(j)
			s.loseAttempt(ep, outcome.UploadFailed, it.Message)
		case class == outcome.ClassVerifier || class == outcome.ClassEnvironment || class == outcome.ClassTask:
			s.failJob(j, outcome.EndReason(it.Reason), it.Message)
		default:
			s.requeueJob(j, it.Reason+": "+it.Message, false)
		}
		res.Codes, res.Messages = append(res.Codes, code), append(res.Messages, why)
	}
	return &raftlog.Result{Result: &raftlog.Result_Items{Items: res}}
}

// failJob retries a verifier; when its retries are spent the verdict is
// indeterminate and the attempt is lost: never a reward (invariant I5).
func (s *State) failJob(j *raftlog.VerifyJob, why outcome.EndReason, message string) {
	r, _ := s.runs.Get(j.Run)
	g, _ := s.groups.Get(groupKey(j.Run, j.Group))
	if j.Tries < r.Config.Envs[g.Env].VerifyRetries {
		s.requeueJob(j, string(why)+": "+message, true)
		return
	}
	ep, _ := s.episodes.Get(memberKey(j.Run, j.Group, j.Index))
	s.dropJob(j)
	s.loseAttempt(ep, why, message)
}

// requeueJob puts a job back; counted failures use up its retries.
func (s *State) requeueJob(j *raftlog.VerifyJob, why string, counted bool) {
	c := cloneJob(j)
	c.State, c.Lease, c.Host, c.LastFailure = raftlog.JobState_JOB_STATE_QUEUED, nil, "", why
	c.QueuedNs = s.clock.NowNs
	if counted {
		c.Tries++
	}
	s.putJob(c)
}
