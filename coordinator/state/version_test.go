package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestPublish(t *testing.T) {
	m := newMachine(t)
	m.registerAll()
	m.create(config())
	require.EqualValues(t, -1, m.r().Live)
	p := m.leasePublish()
	require.True(t, p.Ready)
	require.Zero(t, p.Version)
	require.Equal(t, "m0", p.Manifest)
	require.EqualValues(t, -1, p.Live)
	require.Len(t, p.Engines, 1)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_STAGING, m.version(0).State)
	require.Equal(t, "another publisher", m.leasePublish().WaitsFor)
	require.False(t, m.s.Work(m.run).Publish)
	require.Equal(t, raftlog.Code_CODE_INVALID, m.finishPublish(p, true, "").Code, "nobody serves it")
	other := &raftlog.LeasePublishResult{Version: 1, Fence: p.Fence}
	require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(other, true, "", "engine-1").Code, "the lease is of version 0")
	require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(p, true, "", "engine-1").Code)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(p, true, "", "engine-1").Code)
	require.Zero(t, m.r().Live)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_LIVE, m.version(0).State)
	require.Equal(t, "a committed version", m.leasePublish().WaitsFor)

	m.register(RolePublisher, "publisher-2", 1)
	g := m.join()
	m.complete(8)
	m.step(g)
	p = m.leasePublish()
	require.EqualValues(t, 1, p.Version)
	require.Zero(t, p.Live)
	m.step(g) // a commit while version 1 is being published
	require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(p, true, "", "engine-1").Code)
	require.EqualValues(t, 2, m.leasePublish().Version)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_RETIRED, m.version(0).State)
}

func TestPublishSkipsToTheNewest(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.Steps, c.PublishEvery = 3, 5, 2 })
	g := m.join()
	m.complete(16)
	m.step(g)
	require.False(t, m.leasePublish().Ready, "every second version")
	for range 3 {
		m.step(g)
	}
	m.publishNow()
	require.EqualValues(t, 4, m.r().Live)
	for v := range int64(4) {
		require.Equal(t, raftlog.VersionState_VERSION_STATE_RETIRED, m.version(v).State)
	}
	m.complete(4)
	m.step(g)
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
}

// The old version keeps serving when a publisher dies or is too slow, and its word comes too late.
func TestPublisherThatDies(t *testing.T) {
	for name, lose := range map[string]func(*machine){
		"deadline":     func(m *machine) { m.advance(120 * second) },
		"lease":        func(m *machine) { m.advance(LeaseTTL, "publish/r") },
		"came back":    func(m *machine) { m.register(RolePublisher, "publisher-1", 2) },
		"left":         func(m *machine) { m.leave(RolePublisher); m.register(RolePublisher, "publisher-1", 2) },
		"another came": func(m *machine) { m.leave(RolePublisher); m.register(RolePublisher, "publisher-2", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t)
			g := m.join()
			m.complete(8)
			m.step(g)
			p, ref := m.leasePublish(), m.ref(RolePublisher)
			lose(m)
			now := m.ref(RolePublisher)
			m.nodes[RolePublisher] = ref
			require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(p, true, "", "engine-1").Code)
			require.Zero(t, m.r().Live)
			require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
			m.nodes[RolePublisher] = now
			require.True(t, m.s.Work(m.run).Publish)
			q := m.leasePublish()
			require.EqualValues(t, 1, q.Version)
			require.Greater(t, q.Fence, p.Fence)
			require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(q, true, "", "engine-1").Code)
			require.EqualValues(t, 1, m.r().Live)
		})
	}
}

// A rejected version pauses the run; resuming tries it again, or a newer one.
func TestRejectedVersion(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax = 0 })
	g := m.join()
	m.complete(4)
	m.step(g)
	require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(m.leasePublish(), false, "probes are far off").Code)
	require.Equal(t, raftlog.RunState_RUN_STATE_PAUSED, m.r().State)
	require.Equal(t, "version 1 was rejected: probes are far off", m.r().Reason)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_REJECTED, m.version(1).State)
	require.Equal(t, "probes are far off", m.version(1).Reason)
	require.Zero(t, m.r().Live, "version 0 keeps serving")
	require.False(t, m.leasePublish().Ready)
	ev := events(m.s, func(e *raftlog.Event) *raftlog.VersionChanged { return e.GetVersionChanged() })
	require.Equal(t, "rejected", ev[len(ev)-1].State)
	m.control("resume", "")
	require.True(t, m.s.Work(m.run).Publish)
	m.publishNow()
	require.EqualValues(t, 1, m.r().Live)
	m.lease(4)
}

func TestRejectedVersionStaysRejectedInHistory(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	m.step(g)
	p := m.leasePublish()
	require.True(t, m.take(g).Ready)
	m.finishPublish(p, false, "bad")
	m.commit(g, 1)
	m.control("resume", "")
	m.publishNow()
	require.EqualValues(t, 2, m.r().Live)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_REJECTED, m.version(1).State, "what was never served is not retired")
	require.Equal(t, "bad", m.version(1).Reason)
}

// Ready engines that were not switched in time are fenced out; draining ones and newcomers that serve it are not.
func TestEngineThatMissedTheSwitchIsFenced(t *testing.T) {
	m := fleet(t)
	for _, name := range []string{"engine-2", "engine-3"} {
		m.register(RoleEngine, name, 1)
	}
	third := m.ref(RoleEngine)
	m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: third, EngineVersion: 0, Draining: true}}})
	g := m.join()
	m.complete(8)
	m.step(g)
	p := m.leasePublish()
	require.Len(t, p.Engines, 2)
	require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(p, true, "", "engine-1").Code)
	state := func(name string) (raftlog.NodeState, int64) {
		n, _ := m.s.nodes.Get(nodeKey(RoleEngine, name))
		return n.State, n.Version
	}
	st, v := state("engine-1")
	require.Equal(t, raftlog.NodeState_NODE_STATE_READY, st)
	require.EqualValues(t, 1, v)
	st, v = state("engine-2")
	require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, st)
	require.EqualValues(t, -1, v)
	st, _ = state("engine-3")
	require.Equal(t, raftlog.NodeState_NODE_STATE_DRAINING, st)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.register(RoleEngine, "engine-2", 1).Code)
	require.Equal(t, raftlog.Code_CODE_OK, m.register(RoleEngine, "engine-2", 2).Code)
	m.lease(1)
}

func TestNoEpisodeWithoutAnEngineOfTheLiveVersion(t *testing.T) {
	m := fleet(t)
	m.lease(1)
	m.register(RoleEngine, "engine-1", 2)
	require.Equal(t, "an engine that serves the live version", m.leaseResult(1).WaitsFor)
	require.Zero(t, m.s.Work(m.run).Episodes)
	require.Contains(t, m.s.Why(m.run), "an engine that serves version 0: none does")
	m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: m.ref(RoleEngine), EngineVersion: 0}}})
	m.lease(1)
}
