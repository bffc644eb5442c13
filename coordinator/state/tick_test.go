package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Apply re-checks what a Tick ends: one that comes late or twice ends nothing more.
func TestTickChecksAgain(t *testing.T) {
	m := fleet(t)
	g := m.lease(1)[0]
	m.now += LeaseTTL - 1
	require.False(t, m.tick(), "nothing is due yet")
	m.beat()
	m.now++
	require.False(t, m.tick(), "it was renewed in between")
	require.EqualValues(t, 1, m.episode(g.Group, g.Index).Attempt)
	m.now += LeaseTTL
	require.True(t, m.tick())
	require.False(t, m.tick())
	for _, n := range m.s.Nodes() {
		require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, n.State)
	}
	require.EqualValues(t, 2, m.episode(g.Group, g.Index).Attempt)
}

func TestTimeNeverFalls(t *testing.T) {
	m := fleet(t)
	m.lease(1)
	m.s.Apply(&raftlog.Entry{NowNs: 5, Term: 1, Proposals: []*raftlog.Proposal{{Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}}}})
	require.Equal(t, m.now, m.s.Clock().NowNs)
}

// A Tick of a leader that has been replaced does nothing; clients' operations in its entries still count.
func TestHousekeepingOfAnOldLeader(t *testing.T) {
	m := fleet(t)
	m.lease(1)
	m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: 3})
	before := m.s.Fork()
	res := m.s.Apply(&raftlog.Entry{NowNs: m.now + 3600*second, Term: 2, Proposals: []*raftlog.Proposal{
		{Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}},
		{Op: &raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 1}}}},
	}})
	require.Equal(t, raftlog.Code_CODE_CONFLICT, res[0].Code)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, res[1].Code)
	require.Empty(t, changes(before, m.s))
	res = m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: 2, Proposals: []*raftlog.Proposal{
		{Client: "c", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "r", Action: "pause"}}}},
	}})
	require.Equal(t, raftlog.Code_CODE_OK, res[0].Code)
	require.EqualValues(t, 3, m.s.Clock().Term)
}

func TestNoProgressFailsAndNamesTheCulprit(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*machine)
		want string
	}{
		"no trainer":                     {func(m *machine) { m.leave(RoleTrainer) }, "a trainer: none is ready"},
		"no verifier":                    {func(m *machine) { m.leave(RoleVerifier) }, "a verifier: none is ready"},
		"no engine":                      {func(m *machine) { m.leave(RoleEngine) }, "an engine: none is ready"},
		"no host":                        {func(m *machine) { m.leave(RoleHost) }, "an environment host: none is ready"},
		"a slow episode":                 {func(m *machine) { m.lease(1) }, "waiting for model"},
		"a trainer that does not commit": {func(m *machine) { g := m.join(); m.complete(8); m.take(g) }, "the trainer to commit step 0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) { c.BatchDeadlineNs, c.EpisodeDeadlineNs = 0, 0 })
			tc.do(m)
			m.advance(895 * second)
			require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
			require.Contains(t, m.s.Why(m.run), tc.want)
			m.advance(10 * second)
			require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
			require.Contains(t, m.r().Reason, "no progress for 15m0s")
			require.Contains(t, m.r().Reason, tc.want)
			require.False(t, m.tick())
		})
	}
}

// Whatever was going on, a fleet that falls silent loses every lease, and the run ends.
func TestSilenceClearsEverything(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax = 2 })
	g := m.join()
	m.complete(4)
	m.step(g)
	m.leasePublish()
	m.complete(4)
	m.take(g)
	m.seal(m.lease(2)[0])
	m.leaseJobs(1)
	m.now += LeaseTTL
	m.tick()
	require.Empty(t, m.s.leased.Keys())
	require.Empty(t, m.s.judged.Keys())
	require.Nil(t, m.s.Gang(m.run).Lease)
	p, _ := m.s.publish.Get(m.run)
	require.Nil(t, p.Lease)
	m.now += 900 * second
	m.tick()
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
}

func TestPausedRunIsNotStuck(t *testing.T) {
	m := fleet(t)
	m.control("pause", "")
	m.advance(3600 * second)
	require.Equal(t, raftlog.RunState_RUN_STATE_PAUSED, m.r().State)
	m.control("resume", "")
	m.advance(890 * second)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
}
