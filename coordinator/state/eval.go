package state

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func evalKey(run, suite string, v int64) string {
	return fmt.Sprintf("%s/%012d/%s", run, v, suite)
}

func (s *State) putEval(e *raftlog.EvalResult) {
	k := evalKey(e.Run, e.Suite, e.Version)
	s.evals.Set(k, e)
	s.note(KindEval, k)
}

// planEvals opens the evaluation groups of a version that is due: at version
// 0, every so many versions, and at the last one, be it early. They are outside pacing and
// batches and sample from exactly that version.
func (s *State) planEvals(run string, v int64) {
	r, _ := s.runs.Get(run)
	for _, e := range r.Config.Evals {
		if v != 0 && v != r.Config.Steps && !r.Stopping && (e.Every <= 0 || v%e.Every != 0) {
			continue
		}
		k := evalKey(run, e.Suite, v)
		if _, found := s.evals.Get(k); found {
			continue
		}
		tasks := int32(len(e.Tasks))
		groups := tasks
		if e.Episodes > 0 {
			groups = min(tasks, max(1, e.Episodes/e.Samples))
		}
		s.putEval(&raftlog.EvalResult{Run: run, Suite: e.Suite, Version: v, Episodes: groups * e.Samples})
		for t := range groups {
			r, _ = s.runs.Get(run)
			s.openGroup(r, &raftlog.Group{Run: run, Env: e.Env, Task: t, Suite: e.Suite, Pin: v, Size: e.Samples, LiveAtAdmission: v, Bound: v})
		}
	}
}

// scoreEval adds a settled member to its evaluation and closes it after the last one.
func (s *State) scoreEval(g *raftlog.Group, ep *raftlog.Episode) {
	k := evalKey(g.Run, g.Suite, g.Pin)
	e, found := s.evals.Get(k)
	if !found || e.Done {
		return
	}
	e = proto.CloneOf(e)
	e.Settled++
	if ep.Reward != nil {
		e.Scored++
		e.RewardSum += *ep.Reward
	}
	if ep.Verdict == string(outcome.Pass) {
		e.Passed++
	}
	e.Done = e.Settled >= e.Episodes
	s.putEval(e)
	if e.Done {
		s.evalDone(e)
	}
}

// Reward is the mean reward of an evaluation over its scored episodes; 0 when there are none.
func Reward(e *raftlog.EvalResult) float64 {
	if e.Scored == 0 {
		return 0
	}
	return e.RewardSum / float64(e.Scored)
}

func (s *State) evalDone(e *raftlog.EvalResult) {
	reward := Reward(e)
	s.emit(e.Run, &raftlog.Event{Event: &raftlog.Event_EvalDone{EvalDone: &raftlog.EvalDone{
		Suite: e.Suite, Version: e.Version, Episodes: e.Episodes, Scored: e.Scored, Reward: reward, Passed: e.Passed,
	}}})
	s.update(e.Run, func(r *raftlog.Run) {
		r.ProgressNs, r.Progress = s.clock.NowNs, fmt.Sprintf("version %d was evaluated", e.Version)
		s.judgeEval(r, e)
	})
	if r, _ := s.runs.Get(e.Run); r.Stopping {
		s.stopAdmitted(e.Run)
	}
}

// judgeEval compares a finished evaluation with the best and with what the run is to reach.
func (s *State) judgeEval(r *raftlog.Run, e *raftlog.EvalResult) {
	if e.Scored == 0 {
		return
	}
	var v int64
	var best float64
	reward := Reward(e)
	if n, _ := fmt.Sscanf(r.Best, "%d %g", &v, &best); n < 2 || reward > best {
		r.Best = fmt.Sprintf("%d %g", e.Version, reward)
	}
	if mean, done := s.versionReward(e.Run, e.Version); done && r.Config.StopEvalReward != nil && mean >= *r.Config.StopEvalReward {
		r.Stopping = true
	}
}

// stopAdmitted drops the training groups of a run that needs no more; an assigned batch is still trained.
func (s *State) stopAdmitted(run string) {
	for _, g := range list(&s.active, run+"/") {
		if g.State != raftlog.GroupState_GROUP_STATE_ASSIGNED {
			s.dropGroup(g, "the run needs no more groups", false)
		}
	}
}

func (s *State) evalsOpen(run string) bool {
	for _, k := range under(&s.evals, run+"/") {
		if e, _ := s.evals.Get(k); !e.Done {
			return true
		}
	}
	return false
}

// Evals returns a run's evaluations by version.
func (s *State) Evals(run string) []*raftlog.EvalResult { return list(&s.evals, run+"/") }

// list returns the records below a prefix, in key order.
func list[R any](t *table[R], prefix string) []R {
	var out []R
	t.Ascend(prefix, func(k string, r R) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		out = append(out, r)
		return true
	})
	return out
}

// versionReward is the mean reward over all suites of a version, each scored
// episode counted once; done is false while one of them is measured.
func (s *State) versionReward(run string, v int64) (mean float64, done bool) {
	var sum float64
	var scored int32
	for _, e := range list(&s.evals, numberKey(run, v)+"/") {
		if !e.Done {
			return 0, false
		}
		sum, scored = sum+e.RewardSum, scored+e.Scored
	}
	return sum / float64(max(1, scored)), scored > 0
}
