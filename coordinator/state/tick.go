package state

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Due reports whether a Tick at log time now would change anything, so that an idle system writes nothing.
func (s *State) Due(now int64) bool {
	due := false
	s.nodes.Scan(func(_ string, n *raftlog.Node) bool {
		due = n.State != raftlog.NodeState_NODE_STATE_FENCED && s.lapsed(n.ExpiryNs, now)
		return !due
	})
	if due {
		return true
	}
	for _, r := range s.runs.Values() {
		if terminal(r.State) {
			continue
		}
		if s.overdueLease(r, now) || s.batchOverdue(r, now) || s.stuck(r, now) || s.expired(r, now) != nil || spent(r) != "" {
			return true
		}
	}
	return len(s.idleClients(now, 1)) > 0 || len(s.expiredTokens(now)) > 0
}

// tick ends what is overdue at the entry's log time.
func (s *State) tick() *raftlog.Result {
	now := s.clock.NowNs
	for _, n := range s.nodes.Values() {
		if n.State != raftlog.NodeState_NODE_STATE_FENCED && s.lapsed(n.ExpiryNs, now) {
			s.endNodeLeases(n, outcome.LeaseExpired)
			s.fence(n)
		}
	}
	for _, r := range s.runs.Values() {
		if terminal(r.State) {
			continue
		}
		s.expireLeases(r, now)
		if r, _ = s.runs.Get(r.Id); s.batchOverdue(r, now) {
			s.dropStragglers(r)
		}
		r, _ = s.runs.Get(r.Id)
		for g := s.expired(r, now); g != nil; g = s.expired(r, now) {
			s.dropGroup(g, "stale: waited longer than lag.ttl", r.Config.RequeueStale)
			r, _ = s.runs.Get(r.Id)
		}
		if why := spent(r); why != "" {
			s.endRun(r.Id, raftlog.RunState_RUN_STATE_FAILED, why)
		} else if s.stuck(r, now) {
			s.endRun(r.Id, raftlog.RunState_RUN_STATE_FAILED, fmt.Sprintf("no progress for %s; %s", seconds(r.Config.NoProgressNs), s.Why(r.Id)))
		}
	}
	s.forgetClients(now)
	s.forgetTokens(now)
	return ok()
}

// lapsed reports whether a lease or a registration is over. After a change of
// leader none is before the grace has passed.
func (s *State) lapsed(expiry, now int64) bool { return max(expiry, s.clock.GraceNs) <= now }

// leaseOverdue says why a lease must end, or "" when it need not.
func (s *State) leaseOverdue(l *raftlog.Lease, deadline, now int64) outcome.EndReason {
	switch {
	case l == nil:
		return ""
	case s.lapsed(l.ExpiryNs, now):
		return outcome.LeaseExpired
	case deadline > 0 && l.GrantedNs+deadline <= now:
		return outcome.PlatformWait
	}
	return ""
}

// What ends with a lease, in the order in which a Tick ends them.
const (
	endOfEpisode = "e"
	endOfJob     = "j"
)

// endKey orders the leases of a run by when they end if they are not renewed,
// so that the few that do are found among all that do not.
func (s *State) endKey(run string, l *raftlog.Lease, kind, key string) string {
	at := l.GetExpiryNs()
	if r, found := s.runs.Get(run); found && r.Config.EpisodeDeadlineNs > 0 {
		at = min(at, l.GetGrantedNs()+r.Config.EpisodeDeadlineNs)
	}
	return run + "/" + seqKey(uint64(max(0, at))) + kind + key
}

// ending returns up to limit episodes and verify jobs of a run whose leases
// have ended at now, each in the order of their keys.
func (s *State) ending(r *raftlog.Run, now int64, limit int) (episodes, jobs []string) {
	prefix := r.Id + "/"
	after := len(prefix) + len(seqKey(0))
	last := prefix + seqKey(uint64(now)) + endOfJob + "~"
	s.ends.Ascend(prefix, func(k string, _ struct{}) bool {
		if k > last || len(episodes)+len(jobs) == limit {
			return false
		}
		key := k[after+1:]
		if k[after:after+1] == endOfEpisode {
			if ep, _ := s.episodes.Get(key); s.leaseOverdue(ep.Lease, r.Config.EpisodeDeadlineNs, now) != "" {
				episodes = append(episodes, key)
			}
		} else if j, _ := s.jobs.Get(key); s.leaseOverdue(j.Lease, r.Config.EpisodeDeadlineNs, now) != "" {
			jobs = append(jobs, key)
		}
		return true
	})
	slices.Sort(episodes)
	slices.Sort(jobs)
	return episodes, jobs
}

func (s *State) overdueLease(r *raftlog.Run, now int64) bool {
	if episodes, jobs := s.ending(r, now, 1); len(episodes)+len(jobs) > 0 {
		return true
	}
	if g, found := s.gangs.Get(r.Id); found && s.leaseOverdue(g.Lease, 0, now) != "" {
		return true
	}
	p, found := s.publish.Get(r.Id)
	return found && s.leaseOverdue(p.Lease, r.Config.PublishDeadlineNs, now) != ""
}

func (s *State) expireLeases(r *raftlog.Run, now int64) {
	d := r.Config.EpisodeDeadlineNs
	episodes, jobs := s.ending(r, now, math.MaxInt)
	for _, k := range episodes {
		ep, found := s.episodes.Get(k)
		if !found || ep.State != raftlog.EpisodeState_EPISODE_STATE_LEASED {
			continue
		}
		if why := s.leaseOverdue(ep.Lease, d, now); why != "" {
			s.loseAttempt(ep, why, "its worker waited for "+ep.WaitsFor)
			if why == outcome.PlatformWait {
				s.giveUpEvaluation(ep)
			}
		}
	}
	for _, k := range jobs {
		if j, found := s.jobs.Get(k); found {
			if why := s.leaseOverdue(j.Lease, d, now); why != "" {
				s.requeueJob(j, string(why), false)
			}
		}
	}
	if g, found := s.gangs.Get(r.Id); found && s.leaseOverdue(g.Lease, 0, now) != "" {
		g = proto.CloneOf(g)
		g.Lease = nil
		s.gangs.Set(r.Id, g)
	}
	if p, found := s.publish.Get(r.Id); found && s.leaseOverdue(p.Lease, r.Config.PublishDeadlineNs, now) != "" {
		p = proto.CloneOf(p)
		p.Lease = nil
		s.publish.Set(r.Id, p)
	}
}

// giveUpEvaluation counts an attempt that ran out of time against a member of
// an evaluation. Training groups have the batch's deadline; an evaluation must
// end by itself, without the member that never does.
func (s *State) giveUpEvaluation(ep *raftlog.Episode) {
	g, found := s.groups.Get(groupKey(ep.Run, ep.Group))
	if !found || g.Suite == "" {
		return
	}
	s.update(ep.Run, func(r *raftlog.Run) {
		r.ProgressNs, r.Progress = s.clock.NowNs, fmt.Sprintf("an evaluation episode ran out of time (%d/%d)", ep.Group, ep.Index)
	})
	r, _ := s.runs.Get(ep.Run)
	ep, _ = s.episodes.Get(memberKey(ep.Run, ep.Group, ep.Index))
	ep = cloneEpisode(ep)
	ep.Failures++
	s.putEpisode(ep)
	if ep.Failures >= r.Config.Envs[g.Env].MaxAttempts {
		s.settleUnscored(ep, false)
	}
}

// batchOverdue reports whether the next batch has waited past deadlines.batch.
func (s *State) batchOverdue(r *raftlog.Run, now int64) bool {
	return r.State == raftlog.RunState_RUN_STATE_RUNNING && r.BatchWaitNs > 0 && r.Config.BatchDeadlineNs > 0 &&
		r.BatchWaitNs+r.Config.BatchDeadlineNs <= now
}

// dropStragglers drops the open groups that keep the overdue batch from fitting; their tasks come back.
func (s *State) dropStragglers(r *raftlog.Run) {
	_, overdue, _ := s.pick(r)
	for _, g := range overdue {
		s.update(r.Id, func(r *raftlog.Run) { r.Counters.Straggler++ })
		s.dropGroup(g, "straggler: not complete when its last step was due", true)
	}
	s.awaitBatch(r.Id)
}

// expired returns a complete group that has waited longer than lag.ttl.
func (s *State) expired(r *raftlog.Run, now int64) *raftlog.Group {
	if r.Config.TtlNs <= 0 || r.State != raftlog.RunState_RUN_STATE_RUNNING {
		return nil
	}
	for _, g := range list(&s.active, r.Id+"/") {
		if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE && g.CompleteNs+r.Config.TtlNs <= now {
			return g
		}
	}
	return nil
}

// stuck is the watchdog of invariant I8: a running run that did not move for its deadline fails.
func (s *State) stuck(r *raftlog.Run, now int64) bool {
	return r.State == raftlog.RunState_RUN_STATE_RUNNING && r.Config.NoProgressNs > 0 && r.ProgressNs+r.Config.NoProgressNs <= now
}
