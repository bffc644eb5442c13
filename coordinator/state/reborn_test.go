package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (m *machine) diverged(run string, stored uint64) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_Diverged{Diverged: &raftlog.Diverged{Run: run, Stored: stored}}})
}

func TestReborn(t *testing.T) {
	m := busy(t)
	m.term = 40
	m.tick()
	was := m.s
	b := ids(m.take(m.join()))
	before := dump(t, was)
	s := was.Reborn("c2", 3)
	require.Equal(t, before, dump(t, was), "the original stays")
	requireConsistent(t, s)
	c := s.Clock()
	require.Equal(t, "c2", c.Cluster)
	require.EqualValues(t, 3, c.Epoch)
	require.EqualValues(t, 3<<48+1, c.NextFence)
	require.Equal(t, was.Clock().NextEvent-1, c.RestoredEvent)
	require.Empty(t, s.Members())
	require.NotEmpty(t, s.Tokens(), "people keep their way in")
	for _, n := range s.Nodes() {
		require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, n.State)
	}
	require.Zero(t, s.leased.Len()+s.judged.Len())
	require.Nil(t, s.Gang(m.run).Lease)
	require.Equal(t, was.counts[m.run].outstanding, s.counts[m.run].outstanding, "no group is lost")

	old := *m
	m.s, m.term = restored(t, s), 2 // another log begins with low terms
	require.True(t, m.apply(heartbeatOf(old.ref(RoleTrainer))).GetHeartbeat().Fenced)
	for _, role := range roleNames() {
		require.EqualValues(t, 3, m.register(role, role+"-1", 100).GetRegister().Fence>>48, "above all that was issued, also after the snapshot")
	}
	require.Equal(t, b, ids(m.take(m.join())), "the batch that was assigned")
	m.now += 30 * second
	m.tick()
	require.EqualValues(t, 2, m.s.Clock().Term, "housekeeping is not taken for that of an older leader")
	require.EqualValues(t, 4, m.s.Reborn("c3", 1).Clock().Epoch, "an epoch never falls")
}

func heartbeatOf(ref *raftlog.NodeRef) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: ref}}}
}

func TestDiverged(t *testing.T) {
	m := busy(t)
	m.run = "other"
	m.create(config())
	m.run = "r"
	last := m.s.Clock().NextEvent - 1
	m.s = m.s.Reborn("c2", 1)
	require.Equal(t, raftlog.Code_CODE_OK, m.diverged("r", 900).Code)
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
	require.Contains(t, m.r().Reason, "goes on to event 900, beyond the restored snapshot, which ends at event ")
	require.Contains(t, m.r().Reason, "twice")
	require.Equal(t, last, m.s.Clock().RestoredEvent)
	for _, e := range m.s.Outbox(1 << 20) {
		require.Equal(t, "other", e.Run, "it has nothing more to say")
	}
	require.Equal(t, raftlog.Code_CODE_OK, m.diverged("r", 900).Code, "again")
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.diverged("none", 1).Code)
	require.Equal(t, raftlog.Code_CODE_OK, m.control("remove", "").Code)
	require.Empty(t, m.s.Groups("r"))
	require.Empty(t, m.s.Episodes("r"))
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.s.Run("other").State)
}
