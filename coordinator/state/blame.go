package state

import (
	"fmt"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// blameTask counts a failure of the task's own doing (or of its verifier or
// environment) and applies the short-group rule. After max_attempts failures
// without a success between them the task is quarantined. What takes several
// members of a group at once counts once: it says no more about the task than
// what takes one of them.
// sealed tells that the failure is the verifier's, of a sealed attempt.
func (s *State) blameTask(ep *raftlog.Episode, why outcome.EndReason, message string, sealed bool) {
	r, _ := s.runs.Get(ep.Run)
	g, found := s.groups.Get(groupKey(ep.Run, ep.Group))
	if !found || terminal(r.State) {
		return
	}
	env := r.Config.Envs[g.Env]
	if g.Suite != "" { // an evaluation must end: the member counts as unscored
		if ep.Failures >= env.MaxAttempts {
			s.settleUnscored(ep, sealed)
		}
		return
	}
	count := int32(0)
	if ep.Failures > g.Waves {
		g = s.changeGroup(g.Run, g.Id, func(g *raftlog.Group) { g.Waves = ep.Failures })
		count = s.countFailure(g, fmt.Sprintf("%s: %s", why, message))
	}
	switch {
	case count >= env.MaxAttempts:
		s.quarantine(g, string(why))
	case env.ShortGroup == "drop":
		s.dropGroup(g, "short: "+string(why), true)
	case env.ShortGroup == "keep" && s.usable(g) >= max(1, env.KeepMin):
		s.settleUnscored(ep, sealed)
	}
}

// usable counts the members that have not failed for good.
func (s *State) usable(g *raftlog.Group) int32 {
	var n int32
	for _, ep := range s.members(g) {
		if ep.Disposition != string(outcome.Drop) && ep.Failures == 0 {
			n++
		}
	}
	return n
}

// settleUnscored ends a member without a reward. counted tells that its
// indeterminate verdict is in the counters already.
func (s *State) settleUnscored(ep *raftlog.Episode, counted bool) {
	ep = cloneEpisode(ep)
	ep.State, ep.Verdict, ep.Disposition = raftlog.EpisodeState_EPISODE_STATE_SETTLED, string(outcome.Indeterminate), string(outcome.Drop)
	s.putEpisode(ep)
	if !counted {
		s.update(ep.Run, func(r *raftlog.Run) { r.Counters.EpisodesIndeterminate++ })
	}
	s.settled(ep, ep.LastFailure, "")
}

func (s *State) countFailure(g *raftlog.Group, reason string) int32 {
	var count int32
	s.update(g.Run, func(r *raftlog.Run) {
		f := failure(r, g.Env, g.Task)
		f.Count++
		f.Reason = reason
		count = f.Count
	})
	return count
}

// failure returns the row of a task in a private copy of a run, making it if needed.
func failure(r *raftlog.Run, env, task int32) *raftlog.TaskFailures {
	for _, f := range r.Failures {
		if f.Env == env && f.Task == task {
			return f
		}
	}
	f := &raftlog.TaskFailures{Env: env, Task: task}
	r.Failures = append(r.Failures, f)
	return f
}

// forgive clears a task's failures after one of its episodes was judged.
func (s *State) forgive(g *raftlog.Group) {
	r, _ := s.runs.Get(g.Run)
	for i, f := range r.Failures {
		if f.Env == g.Env && f.Task == g.Task && !f.Quarantined {
			s.update(g.Run, func(r *raftlog.Run) { r.Failures = append(r.Failures[:i], r.Failures[i+1:]...) })
			return
		}
	}
}

func (s *State) quarantine(g *raftlog.Group, why string) {
	r, _ := s.runs.Get(g.Run)
	if !quarantined(r, g.Env, g.Task) { // another open group of the task may have been first
		s.update(g.Run, func(r *raftlog.Run) { failure(r, g.Env, g.Task).Quarantined = true })
		s.emit(g.Run, &raftlog.Event{Event: &raftlog.Event_Quarantined{Quarantined: &raftlog.TaskQuarantined{
			Env: g.Env, Task: s.taskRef(r, g), Reason: why,
		}}})
	}
	s.dropGroup(g, "task quarantined: "+why, false)
}
