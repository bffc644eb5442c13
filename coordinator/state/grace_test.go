package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A new leader may be found late: nothing runs out before 2×TTL of its reign,
// not what was renewed long ago, and not what is renewed meanwhile any earlier.
func TestNomad3840_FailOverExpiresNothing(t *testing.T) {
	m := busy(t)
	leased, nodes := m.s.leased.Len(), len(m.s.Nodes())
	require.NotZero(t, leased)
	m.now += LeaseTTL - 1
	require.False(t, m.s.Due(m.now))
	m.term++
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{}}}) // its first entry
	m.now += 2*LeaseTTL - 1
	require.False(t, m.s.Due(m.now))
	require.False(t, m.tick())
	require.Equal(t, leased, m.s.leased.Len())
	m.s = restored(t, m.s)
	require.False(t, m.tick(), "a snapshot knows of it")
	m.beat() // whoever found it by now goes on
	m.now++
	require.False(t, m.s.Due(m.now))
	m.now += LeaseTTL
	require.True(t, m.tick(), "who does not renew is given up after it, as ever")
	require.Zero(t, m.s.leased.Len())
	require.Len(t, m.s.Nodes(), nodes)
}

// A lease is ended by a command of the leader's term, which Apply checks again:
// a leader that was stuck in a write and comes back ends nothing.
func TestEtcd15247_DeposedLeaderExpiresNothing(t *testing.T) {
	m := busy(t)
	leased := m.s.leased.Len()
	m.term++
	m.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{}}})
	m.now += 100 * second
	m.term--
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.apply(&raftlog.Op{Op: &raftlog.Op_Tick{}}).Code)
	require.Equal(t, leased, m.s.leased.Len())
	m.term++
	m.beat()
	require.False(t, m.tick(), "the renewals came before the Tick: Apply sees them")
	require.Equal(t, leased, m.s.leased.Len())
}

// A cluster with voters of level 1 has no grace: they would come to another state.
func TestGraceIsOfLevelTwo(t *testing.T) {
	m := newMachineOf(t, 1)
	m.registerAll()
	m.term++
	m.now += LeaseTTL
	require.True(t, m.s.Due(m.now))
	m.ok(&raftlog.Op{Op: &raftlog.Op_Tick{}})
	require.Zero(t, m.s.Clock().GraceNs)
	require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, m.s.Nodes()[0].State)
}
