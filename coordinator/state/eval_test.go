package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// suite is an evaluation of three tasks, two samples each.
func suite(every int64, episodes int32) func(*raftlog.RunConfig) {
	return func(c *raftlog.RunConfig) {
		c.Evals = []*raftlog.EvalConfig{{Suite: "held-out", Tasks: []*raftlog.TaskRef{{Id: "e0"}, {Id: "e1"}, {Id: "e2"}}, Samples: 2, Episodes: episodes, Every: every}}
	}
}

func (m *machine) evaluated() []int64 {
	var out []int64
	for _, e := range m.s.Evals(m.run) {
		out = append(out, e.Version)
	}
	return out
}

// evaluate plays all queued evaluation episodes with a reward.
func (m *machine) evaluate(reward float64) int {
	m.t.Helper()
	n := 0
	for m.evaluationNext() {
		m.seal(m.lease(1)[0])
		m.judge(reward)
		n++
	}
	return n
}

func (m *machine) evaluationNext() bool {
	ep := m.s.nextQueued(m.run)
	return ep != nil && m.group(ep.Group).Suite != ""
}

func TestEvaluationsAtZeroEveryAndLast(t *testing.T) {
	for name, tc := range map[string]struct {
		every int64
		want  []int64
	}{"every second": {2, []int64{0, 2, 4, 5}}, "first and last": {0, []int64{0, 5}}, "each": {1, []int64{0, 1, 2, 3, 4, 5}}} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, suite(tc.every, 0), func(c *raftlog.RunConfig) { c.Steps, c.LagMax, c.GroupsPerStep = 5, 0, 1 })
			g := m.join()
			for range 5 {
				m.evaluate(1)
				m.complete(2)
				m.step(g)
				if m.r().Head < 5 {
					m.publishNow()
				}
			}
			require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State, "the last evaluation is not done")
			require.True(t, m.take(g).Ended, "but the trainer is not needed any more")
			m.publishNow()
			require.Equal(t, 6, m.evaluate(1))
			require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
			require.Equal(t, tc.want, m.evaluated())
		})
	}
}

func TestEvaluationScores(t *testing.T) {
	m := fleet(t, suite(0, 0), func(c *raftlog.RunConfig) { c.Envs[0].MaxAttempts, c.Envs[0].VerifyRetries = 2, 0 })
	require.EqualValues(t, 6, m.s.Evals(m.run)[0].Episodes)
	require.Zero(t, m.r().Counters.GroupsAdmitted, "evaluations are outside pacing")
	grants := m.lease(6)
	for i, g := range grants {
		require.Equal(t, "held-out", g.Suite, "evaluations go first")
		require.Zero(t, g.Pin)
		require.Equal(t, []string{"e0", "e1", "e2"}[i/2], g.TaskRef.Id)
		if i > 0 {
			m.seal(g)
		}
	}
	wrong := sealed("stop", 0, 0)
	wrong.MinVersion, wrong.MaxVersion = 0, 1
	require.Equal(t, raftlog.Code_CODE_INVALID, m.sealAs(grants[0], wrong), "tokens of another version")
	for i, j := range m.leaseJobs(9) {
		m.settle(j, []float64{1, 0, 0.5, 0.5, 1}[i])
	}
	// The member that fails for good is left out of the mean, not scored 0.
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[0], "env_crash"))
	again := m.lease(1)[0]
	require.Equal(t, "held-out", again.Suite)
	m.seal(again)
	require.Equal(t, raftlog.Code_CODE_OK, m.failJob(m.leaseJobs(1)[0], "verifier_crash"))
	e := m.s.Evals(m.run)[0]
	require.True(t, e.Done)
	require.EqualValues(t, 6, e.Settled)
	require.EqualValues(t, 5, e.Scored)
	require.EqualValues(t, 4, e.Passed)
	require.InDelta(t, 0.6, Reward(e), 1e-12)
	require.Zero(t, Reward(&raftlog.EvalResult{}))
	require.Equal(t, "0 0.6", m.r().Best)
	require.Empty(t, m.r().Failures, "an evaluation quarantines no training task")
	ev := events(m.s, func(e *raftlog.Event) *raftlog.EvalDone { return e.GetEvalDone() })
	require.Len(t, ev, 1)
	require.InDelta(t, 0.6, ev[0].Reward, 1e-12)
	for _, g := range ended(m.s) {
		require.Equal(t, "evaluated", g.Outcome)
	}
}

func TestEvaluationOfSomeTasks(t *testing.T) {
	for name, tc := range map[string]struct{ episodes, want int32 }{
		"all": {0, 6}, "four": {4, 4}, "rounded down": {5, 4}, "at least one task": {1, 2}, "more than there are": {99, 6},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.create(config(suite(1, tc.episodes)))
			require.Equal(t, tc.want, m.s.Evals(m.run)[0].Episodes)
			require.Len(t, m.s.Episodes(m.run), int(tc.want))
		})
	}
}

func TestNothingScoredIsNotBest(t *testing.T) {
	m := fleet(t, suite(1, 1), func(c *raftlog.RunConfig) {
		c.Envs[0].MaxAttempts, c.StopEvalReward = 1, proto.Float64(0)
	})
	for _, g := range m.lease(2) {
		require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(g, "env_crash"))
	}
	require.True(t, m.s.Evals(m.run)[0].Done)
	require.Empty(t, m.r().Best)
	require.False(t, m.r().Stopping, "nothing was measured")
}

// A task whose episodes never end is left out; the run does not wait for it for ever.
func TestEvaluationThatNeverEnds(t *testing.T) {
	m := fleet(t, suite(0, 2), func(c *raftlog.RunConfig) { c.EpisodeDeadlineNs, c.NoProgressNs = 300*second, 400*second })
	for i := range 3 {
		grants := m.lease(2)
		require.Equal(t, "held-out", grants[0].Suite)
		require.Equal(t, "held-out", grants[1].Suite, "try %d", i)
		m.advance(305 * second)
	}
	e := m.s.Evals(m.run)[0]
	require.True(t, e.Done)
	require.Zero(t, e.Scored)
	require.Empty(t, m.r().Failures)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
	require.Empty(t, m.lease(1)[0].Suite)
}

// stopWhen: no more groups, the assigned batch is trained, the last version is evaluated, and the run has succeeded.
func TestStopWhen(t *testing.T) {
	m := fleet(t, suite(2, 0), func(c *raftlog.RunConfig) { c.Steps, c.StopEvalReward = 50, proto.Float64(0.9) })
	g := m.join()
	require.Equal(t, 6, m.evaluate(0.2))
	m.complete(8)
	m.step(g)
	m.step(g) // version 2, which is evaluated
	m.publishNow()
	evals := m.lease(6)
	m.complete(4)
	require.True(t, m.take(g).Ready, "step 2 is assigned")
	open := m.lease(1)[0]
	require.Empty(t, open.Suite)
	for _, x := range evals {
		m.seal(x)
	}
	m.judge(1)
	require.True(t, m.r().Stopping)
	require.Equal(t, "2 1", m.r().Best)
	require.Equal(t, "the run needs no more groups", m.group(open.Group).Reason)
	require.Empty(t, m.leaseResult(1).Grants)
	require.Zero(t, m.s.Work(m.run).Episodes)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State, "a batch is out")
	m.commit(g, 2)
	require.True(t, m.take(g).Ended)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State, "the last version is evaluated too")
	require.Equal(t, 6, m.evaluate(0.9))
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
	require.Equal(t, "evaluation reward reached 0.9 after 3 steps", m.r().Reason)
	require.Equal(t, []int64{0, 2, 3}, m.evaluated())
}

// The evaluation that stops the run may come when newer versions exist: the newest is what the user gets.
func TestStopWhenWithoutABatchOut(t *testing.T) {
	m := fleet(t, suite(2, 0), func(c *raftlog.RunConfig) { c.Steps, c.LagMax, c.StopEvalReward = 50, 2, proto.Float64(0.9) })
	g := m.join()
	require.Equal(t, 6, m.evaluate(0.2))
	m.complete(12)
	for range 3 {
		m.step(g)
	}
	require.Equal(t, []int64{0, 2}, m.evaluated())
	require.Equal(t, 12, m.evaluate(1), "version 2 stops the run, so version 3 follows")
	require.Equal(t, []int64{0, 2, 3}, m.evaluated())
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
}
