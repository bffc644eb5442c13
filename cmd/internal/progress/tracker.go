package progress

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trainer"
)

const (
	rateWindow = 10 * time.Second // rates are over this much of the past
	etaWindow  = 2 * time.Minute  // the pace of steps is over this much
)

// sample is the run's counters at one time.
type sample struct {
	at                     time.Time
	episodes, tokens, step int64
}

// Tracker makes a Status out of the coordinator's records, with the rates that
// one look alone does not tell. Its zero value is ready. It is not safe for concurrent use.
type Tracker struct {
	past []sample
}

// Status returns what the records say at a time. Steps and evals may hold those
// of other runs and come in any order. The caller knows more about sandboxes
// and waiting, and sets those fields itself.
func (t *Tracker) Status(at time.Time, run *raftlog.Run, steps []*raftlog.Step, evals []*raftlog.EvalResult) Status {
	c := run.GetCounters()
	s := Status{
		Run: run.GetId(), State: state.StateName(run.GetState()), Step: run.GetHead(), Steps: run.GetConfig().GetSteps(),
		Head: run.GetHead(), Live: run.GetLive(), LagRun: c.GetMaxLag(), LagBound: int64(run.GetConfig().GetLagMax()),
		Pass: c.GetEpisodesPassed(), Fail: c.GetEpisodesFailed(), Indeterminate: c.GetEpisodesIndeterminate(), Lost: c.GetAttemptsLost(),
	}
	s.addSteps(committed(run.GetId(), steps))
	for _, e := range evals {
		if e.Run != run.GetId() {
			continue
		}
		v := Eval{Suite: e.Suite, Version: e.Version, Reward: math.NaN(), Episodes: int64(e.Scored), Planned: int64(e.Episodes), Done: e.Done}
		if e.Scored > 0 {
			v.Reward = state.Reward(e)
		}
		s.Evals = append(s.Evals, v)
	}
	slices.SortStableFunc(s.Evals, func(a, b Eval) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Suite, b.Suite))
	})
	t.rates(&s, sample{at: at, episodes: c.GetEpisodesSettled(), tokens: c.GetTokens(), step: s.Step})
	return s
}

// committed returns a run's committed steps by number.
func committed(run string, steps []*raftlog.Step) []*raftlog.Step {
	var out []*raftlog.Step
	for _, st := range steps {
		if st.Run == run && st.State == raftlog.StepState_STEP_STATE_COMMITTED {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b *raftlog.Step) int { return cmp.Compare(a.Step, b.Step) })
	return out
}

func (s *Status) addSteps(steps []*raftlog.Step) {
	for _, st := range steps {
		reward, ok := st.Metrics[trainer.RewardMean]
		if !ok {
			reward = math.NaN()
		}
		s.Rewards = append(s.Rewards, reward)
		s.LagMean, s.LagMax = st.Metrics[trainer.LagMean], int64(st.Metrics[trainer.LagMax])
	}
}

// rates compares the counters with those of the past.
func (t *Tracker) rates(s *Status, now sample) {
	t.past = append(t.past, now)
	// The newest sample that is older than the window stays: a look a second must not shorten it.
	for len(t.past) > 2 && now.at.Sub(t.past[1].at) >= etaWindow {
		t.past = t.past[1:]
	}
	near := t.past[0]
	for _, p := range t.past {
		if now.at.Sub(p.at) < rateWindow {
			break
		}
		near = p
	}
	if took := now.at.Sub(near.at).Seconds(); took > 0 {
		s.EpisodesPerSecond = float64(now.episodes-near.episodes) / took
		s.TokensPerSecond = float64(now.tokens-near.tokens) / took
	}
	far := t.past[0]
	if took, made := now.at.Sub(far.at), now.step-far.step; made > 0 && s.Steps > now.step {
		s.ETA = time.Duration(float64(took) / float64(made) * float64(s.Steps-now.step))
	}
}
