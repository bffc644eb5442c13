package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestRepeatReturnsTheFirstResult(t *testing.T) {
	m := fleet(t)
	lease := &raftlog.Proposal{Client: "w", Seq: 7, Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: m.ref(RoleRollout), Count: 3}}}}
	first := m.propose(lease)
	require.Len(t, first.GetLeaseEpisodes().Grants, 3)
	before := m.s.Fork()
	m.now += second
	again := m.propose(lease)
	require.True(t, proto.Equal(first, again))
	require.Empty(t, changes(before, m.s))

	// The number names the request: whatever else it carries, it was answered.
	other := m.propose(&raftlog.Proposal{Client: "w", Seq: 7, Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}})
	require.True(t, proto.Equal(first, other))
	stale := m.propose(&raftlog.Proposal{Client: "w", Seq: 6, Op: lease.Op})
	require.Equal(t, raftlog.Code_CODE_STALE_SEQ, stale.Code)
	require.Contains(t, stale.Message, "behind 7")
	require.Empty(t, changes(before, m.s))
	require.Len(t, m.propose(&raftlog.Proposal{Client: "w", Seq: 8, Op: lease.Op}).GetLeaseEpisodes().Grants, 3)
	require.Len(t, m.propose(&raftlog.Proposal{Client: "v", Seq: 1, Op: lease.Op}).GetLeaseEpisodes().Grants, 2)
}

func TestRefusalIsRememberedToo(t *testing.T) {
	m := fleet(t)
	p := &raftlog.Proposal{Client: "c", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "late", Action: "pause"}}}}
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.propose(p).Code)
	m.run = "late"
	m.create(config())
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.propose(p).Code, "a repeat has the first answer")
}

// The rows are part of the snapshot: a repeat after a restart is still a repeat.
func TestRepeatAfterRestore(t *testing.T) {
	m := fleet(t)
	p := &raftlog.Proposal{Client: "w", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: m.ref(RoleRollout), Count: 3}}}}
	first := m.propose(p)
	m.s = restored(t, m.s)
	require.True(t, proto.Equal(first, m.propose(p)))
	require.Equal(t, 3, m.s.leased.Len())
}

func TestClientsAreForgottenByLogTime(t *testing.T) {
	m := newMachine(t)
	p := &raftlog.Proposal{Client: "w", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "x", Action: "pause"}}}}
	m.propose(p)
	m.now += clientSession - 1
	require.False(t, m.tick())
	m.now++
	require.True(t, m.tick())
	require.Zero(t, m.s.clients.Len())
}

func TestUnknownOperation(t *testing.T) {
	m := newMachine(t)
	require.False(t, Known(nil))
	require.False(t, Known(&raftlog.Op{}))
	require.True(t, Known(&raftlog.Op{Op: &raftlog.Op_Tick{}}))
	require.Equal(t, raftlog.Code_CODE_INVALID, m.apply(&raftlog.Op{}).Code)
	require.Equal(t, raftlog.Code_CODE_INVALID, m.apply(nil).Code)
}
