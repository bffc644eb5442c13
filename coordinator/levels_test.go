package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

func tokenOp(id string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{Token: &raftlog.Token{Id: id, Sum: make([]byte, 32), Role: "viewer"}}}}
}

// proposeAt proposes at a node as a client does.
func proposeAt(t *testing.T, n *tcpNode, seq uint64, op *raftlog.Op) (*raftlog.Result, error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.cfg.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	return pb.NewCoordinatorClient(conn).Propose(t.Context(), &raftlog.Proposal{Client: "admin", Seq: seq, Op: op})
}

// newest returns the highest level of the commands in a node's log, without
// what nodes say of themselves: that is how levels are found.
func newest(t *testing.T, n *Node) (level int32) {
	t.Helper()
	first, err := n.log.FirstIndex()
	require.NoError(t, err)
	last, err := n.log.LastIndex()
	require.NoError(t, err)
	for i := first; i <= last; i++ {
		var l raft.Log
		require.NoError(t, n.log.GetLog(i, &l))
		if l.Type != raft.LogCommand {
			continue
		}
		e, err := fsm.DecodeEntry(l.Data)
		require.NoError(t, err)
		for _, p := range e.Proposals {
			switch o := p.Op.Op.(type) {
			case *raftlog.Op_SetMember:
			case *raftlog.Op_Identify:
				level = max(level, o.Identify.Level)
			default:
				level = max(level, state.LevelOf(p.Op))
			}
		}
	}
	return level
}

// A cluster is upgraded node by node, leaders in between of either version. As
// long as one voter is old no command that it does not know gets into the log,
// whoever leads; once all are new, it does, and stays allowed.
func TestNomad14819_26425_10943_RollingUpgrade(t *testing.T) {
	older := func(c *Config) { c.level = 1 }
	nodes := trio(t, older)
	seq := uint64(0)
	refused := func() {
		t.Helper()
		seq++
		leader := tcpLeader(t, nodes)
		_, err := proposeAt(t, leader, seq, tokenOp("t"))
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.Equal(t, pb.Reason_REASON_LEVEL, reason(t, err))
		require.NotContains(t, err.Error(), "\n")
		propose(t, leader.Node, fmt.Sprint("c", seq), 1, registerOp(fmt.Sprint("h", seq)))
		require.LessOrEqual(t, newest(t, leader.Node), int32(1))
	}
	upgrade := func(i int) {
		t.Helper()
		old := nodes[i]
		old.stop(t)
		nodes[i] = startTCP(t, old.cfg.Dir, old.cfg.Node, old.cfg.Address, old.raft)
		leader := tcpLeader(t, nodes)
		require.Eventually(t, func() bool {
			s, _ := leader.Stale()
			return s.Member(old.cfg.Node).GetLevel() == state.Level
		}, time.Minute, time.Millisecond, "it says that it is newer")
	}
	refused()
	for i := range 2 {
		upgrade(i)
		refused()
	}
	for _, to := range []string{"n1", "n3", "n2"} { // a new leader with an old follower, and an old leader with new ones
		leader := tcpLeader(t, nodes)
		if leader.cfg.Node != to {
			require.NoError(t, leader.Transfer(t.Context(), to))
			require.Eventually(t, func() bool { return tcpLeader(t, nodes).cfg.Node == to }, time.Minute, time.Millisecond)
		}
		refused()
	}

	upgrade(2)
	leader := tcpLeader(t, nodes)
	require.Eventually(t, func() bool { return leader.level() == state.Level }, time.Minute, time.Millisecond)
	seq++
	r, err := proposeAt(t, leader, seq, tokenOp("t"))
	require.NoError(t, err)
	require.Equal(t, raftlog.Code_CODE_OK, r.Code, r.Message)
	for _, n := range nodes {
		require.Eventually(t, func() bool { s, _ := n.Stale(); return s.Token("t") != nil }, time.Minute, time.Millisecond)
		require.NoError(t, n.Err())
	}
}
