package state

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestCreateRun(t *testing.T) {
	create := func(id, digest string, c *raftlog.RunConfig) *raftlog.Op {
		return &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: id, SpecDigest: digest, Config: c, Manifest: "m0"}}}
	}
	suite := func(mod func(*raftlog.EvalConfig)) func(*raftlog.RunConfig) {
		return func(c *raftlog.RunConfig) {
			e := &raftlog.EvalConfig{Suite: "held-out", Tasks: c.Envs[0].Tasks, Samples: 1}
			mod(e)
			c.Evals = append(c.Evals, e)
		}
	}
	for name, tc := range map[string]struct {
		id     string
		config *raftlog.RunConfig
		want   string // part of the message; empty when it is accepted
	}{
		"plain":              {"run-1", config(), ""},
		"no name":            {"", config(), "run name"},
		"path in the name":   {"a/b", config(), "run name"},
		"hidden":             {".a", config(), "run name"},
		"no config":          {"a", nil, "no configuration"},
		"no steps":           {"a", config(func(c *raftlog.RunConfig) { c.Steps = 0 }), "at least 1"},
		"negative lag":       {"a", config(func(c *raftlog.RunConfig) { c.LagMax = -1 }), "lag at least 0"},
		"publishes too late": {"a", config(func(c *raftlog.RunConfig) { c.PublishEvery = 3 }), "publish.every"},
		"no concurrency":     {"a", config(func(c *raftlog.RunConfig) { c.Concurrency = 0 }), "concurrency"},
		"no env":             {"a", config(func(c *raftlog.RunConfig) { c.Envs = nil }), "needs an env"},
		"no tasks":           {"a", config(func(c *raftlog.RunConfig) { c.Envs[0].Tasks = nil }), "needs tasks"},
		"no weight":          {"a", config(func(c *raftlog.RunConfig) { c.Envs[0].Weight = 0 }), "positive weight"},
		"weight not finite":  {"a", config(func(c *raftlog.RunConfig) { c.Envs[0].Weight = math.NaN() }), "positive weight"},
		"eval of no env":     {"a", config(suite(func(e *raftlog.EvalConfig) { e.Env = 1 })), "needs an env"},
		"eval of a negative": {"a", config(suite(func(e *raftlog.EvalConfig) { e.Env = -1 })), "needs an env"},
		"eval without tasks": {"a", config(suite(func(e *raftlog.EvalConfig) { e.Tasks = nil })), "needs an env"},
		"two evals, a name":  {"a", config(suite(func(*raftlog.EvalConfig) {}), suite(func(*raftlog.EvalConfig) {})), "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			r := m.apply(create(tc.id, "sha256:spec", tc.config))
			if tc.want == "" {
				require.Equal(t, raftlog.Code_CODE_OK, r.Code, r.Message)
				require.Equal(t, tc.id, r.GetCreateRun().Id)
				return
			}
			require.Equal(t, raftlog.Code_CODE_INVALID, r.Code)
			require.Contains(t, r.Message, tc.want)
		})
	}
}

func TestCreateRunAgain(t *testing.T) {
	m := newMachine(t)
	m.create(config())
	before := m.s.Fork()
	m.create(config())
	require.Empty(t, changes(before, m.s), "the same experiment is the same run")
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: "r", SpecDigest: "sha256:other", Config: config()}}})
	require.Equal(t, raftlog.Code_CODE_CONFLICT, r.Code)
	require.Contains(t, r.Message, "another experiment")
}

func TestPauseHoldsAdmissionAndBatches(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(4)
	require.Equal(t, raftlog.Code_CODE_OK, m.control("pause", "lunch").Code)
	require.Equal(t, "run is paused", m.leaseResult(1).WaitsFor)
	b := m.take(g)
	require.False(t, b.Ready, "a paused run gives out no new batch")
	require.Contains(t, b.WaitsFor, "paused")
	require.Equal(t, "paused", b.RunState)
	require.False(t, m.s.Work(m.run).Batch)
	m.now += 2000 * second
	m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: 1})
	require.NotEqual(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)

	m.registerFresh()
	require.Equal(t, raftlog.Code_CODE_OK, m.control("resume", "").Code)
	require.Equal(t, "resumed", m.r().Progress)
	require.True(t, m.take(m.join()).Ready)
}

// registerFresh registers every role anew, after all leases ran out.
func (m *machine) registerFresh() {
	m.tick()
	for role, n := range m.nodes {
		v := int64(-1)
		if old, found := m.s.nodes.Get(nodeKey(role, n.Name)); found && role == RoleEngine {
			v = max(old.Version, m.r().GetLive())
		}
		m.register(role, n.Name, n.Incarnation+1)
		if role == RoleEngine {
			m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: m.ref(role), EngineVersion: v}}})
		}
	}
}

func TestPausedRunFinishesItsBatch(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(4)
	require.True(t, m.take(g).Ready)
	m.control("pause", "lunch")
	require.True(t, m.take(g).Ready, "an assigned batch is still the trainer's")
	m.commit(g, 0)
	require.False(t, m.take(g).Ready)
}

func TestControlOfEndedRun(t *testing.T) {
	m := fleet(t)
	grants := m.lease(4)
	m.seal(grants[0])
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.apply(&raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "none", Action: "pause"}}}).Code)
	require.Equal(t, raftlog.Code_CODE_INVALID, m.control("explode", "").Code)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.control("remove", "").Code, "a running run is not removed")
	require.Equal(t, raftlog.Code_CODE_OK, m.control("cancel", "enough").Code)
	require.Equal(t, raftlog.RunState_RUN_STATE_CANCELLED, m.r().State)
	require.Equal(t, "enough", m.r().Reason)
	for _, a := range []string{"pause", "resume", "cancel", "fail"} {
		require.Equal(t, raftlog.Code_CODE_CONFLICT, m.control(a, "").Code)
	}
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(grants[1], sealed("stop", 0, 0)), "leases ended with the run")
	require.Empty(t, m.leaseJobs(8))
	host, _ := m.s.nodes.Get("host/host-1")
	require.Zero(t, host.AgentsReserved)
	ended := events(m.s, func(e *raftlog.Event) *raftlog.RunEnded { return e.GetRunEnded() })
	require.Len(t, ended, 1)
	require.Equal(t, "cancelled", ended[0].State)
}

func TestRemoveRun(t *testing.T) {
	m := fleet(t)
	m.complete(3)
	m.control("cancel", "enough")
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.control("remove", "").Code, "its events are not yet in the store")
	m.mirrorAll()
	m.run = "other" // a run that keeps writing events must not keep the first one
	m.create(config())
	m.run = "r"
	require.Equal(t, raftlog.Code_CODE_OK, m.control("remove", "").Code)
	require.Nil(t, m.s.Run("r"))
	require.Empty(t, m.s.Versions("r"))
	require.Empty(t, m.s.Groups("r"))
	require.Empty(t, m.s.Episodes("r"))
	require.NotNil(t, m.s.Run("other"))
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.control("remove", "").Code)
	m.create(config())
	require.EqualValues(t, 1, m.r().NextGroup, "the name is free again")
}

func (m *machine) mirrorAll() {
	m.t.Helper()
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: m.s.Clock().NextEvent - 1}}})
}

func TestMirroredRemovesEndedGroups(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	b := m.step(g)
	m.publishNow() // what a rollback could need stays longer, see TestRollbackKeepsWhatItNeeds
	all := m.s.Outbox(1 << 20)
	require.Equal(t, all[:3], m.s.Outbox(3))
	var last uint64
	for _, e := range all {
		if e.GetGroupEnded() != nil {
			last = e.Seq
		}
	}
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: last - 1}}})
	require.Nil(t, m.group(b.Groups[0].Group), "its end is in the store")
	require.NotNil(t, m.group(b.Groups[1].Group), "its end is not")
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 1 << 60}}})
	require.Equal(t, m.s.Clock().NextEvent-1, m.s.Clock().Mirrored, "never ahead of what exists")
	require.Empty(t, m.s.Outbox(10))
	require.Len(t, m.s.Groups(m.run), 2, "complete groups stay")
	require.Len(t, m.s.Episodes(m.run), 4)
	before := m.s.Fork()
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 3}}})
	require.Empty(t, changes(before, m.s), "a late report changes nothing")
}

func TestRunEndsByStepsNotBefore(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Steps = 2 })
	g := m.join()
	m.complete(8)
	require.Empty(t, m.leaseResult(1).Grants, "no group that no step is left to train")
	m.step(g)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
	m.step(g)
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
	require.Equal(t, "2 steps committed", m.r().Reason)
	b := m.take(g)
	require.True(t, b.Ended)
	require.Equal(t, "succeeded", b.RunState)
}

func TestDrawFollowsWeightsAndEpochs(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) {
		c.Steps, c.GroupsPerStep, c.LagMax = 100, 40, 0
		a, b := env("a"), env("b")
		a.Weight, a.GroupSize, a.Shuffle = 3, 1, true
		b.GroupSize = 1
		c.Envs = []*raftlog.EnvConfig{a, b}
	})
	seen := map[string]int{}
	for _, g := range m.lease(40) {
		seen[g.TaskRef.Id]++
	}
	total := map[byte]int{}
	for id, n := range seen {
		total[id[0]] += n
		want := map[byte]int{'a': 3, 'b': 1}[id[0]]
		require.Equal(t, want, n, "task %s: every task once an epoch", id)
	}
	require.Equal(t, map[byte]int{'a': 30, 'b': 10}, total)
}
