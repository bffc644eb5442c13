package coordinator

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// cluster opens three nodes that reach each other in memory.
func cluster(t *testing.T) []*Node {
	t.Helper()
	var servers []raft.Server
	var transports []*raft.InmemTransport
	for i := range 3 {
		address, tr := raft.NewInmemTransport(raft.ServerAddress(fmt.Sprint("a", i)))
		servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprint("n", i)), Address: address})
		transports = append(transports, tr)
	}
	for _, a := range transports {
		for i, b := range transports {
			a.Connect(servers[i].Address, b)
		}
	}
	nodes := make([]*Node, 3)
	var g errgroup.Group
	for i := range nodes {
		g.Go(func() (err error) {
			cfg := testConfig(t.TempDir())
			cfg.Node, cfg.Servers, cfg.Transport, cfg.Election = string(servers[i].ID), servers, transports[i], time.Second
			nodes[i], err = Open(t.Context(), cfg)
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Cleanup(func() {
		for _, n := range nodes {
			require.NoError(t, n.Close())
		}
	})
	return nodes
}

func leaderOf(t *testing.T, nodes []*Node) *Node {
	t.Helper()
	var found *Node
	require.Eventually(t, func() bool {
		for _, n := range nodes {
			if _, err := n.currentReign(); err == nil {
				found = n
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	return found
}

// Three nodes: followers say that they do not lead, a new leader has every
// acknowledged write and never an earlier log time, and a repeat applies once.
func TestThreeNodesLoseTheirLeader(t *testing.T) {
	nodes := cluster(t)
	first := leaderOf(t, nodes)
	for i := range 20 {
		propose(t, first, "c", uint64(i+1), registerOp(fmt.Sprint("h", i)))
	}
	want := read(t, first)
	last := want.Clock()
	var others []*Node
	for _, n := range nodes {
		if n == first {
			continue
		}
		others = append(others, n)
		_, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "x", Seq: 1, Op: registerOp("x")})
		require.ErrorIs(t, err, ErrNotLeader)
		require.Equal(t, Rejected, Classify(err))
		_, _, err = n.Read(t.Context())
		require.ErrorIs(t, err, ErrNotLeader)
		require.NotEqual(t, "leader", n.Status().State)
	}
	require.NoError(t, first.Close())

	second := leaderOf(t, others)
	have := read(t, second).Nodes()
	require.Len(t, have, len(want.Nodes()))
	for i, n := range want.Nodes() {
		require.True(t, proto.Equal(n, have[i]), "%v, %v", n, have[i])
	}
	repeat := propose(t, second, "c", 20, registerOp("something else"))
	require.NotNil(t, repeat.GetRegister())
	require.Equal(t, last.NextFence, read(t, second).Clock().NextFence, "the stored result, not a second registration")
	propose(t, second, "c", 21, registerOp("h20"))
	require.Greater(t, read(t, second).Clock().NowNs, last.NowNs)
	require.Greater(t, read(t, second).Clock().Term, last.Term)
	for _, n := range others {
		require.Eventually(t, func() bool {
			s, _ := n.Stale()
			return len(s.Nodes()) == 21
		}, time.Minute, time.Millisecond, "followers apply the same entries")
	}
}

// A leader that is asked to step down answers proposals with their class, and every acknowledged one survives.
func TestTransferUnderLoad(t *testing.T) {
	nodes := cluster(t)
	leader := leaderOf(t, nodes)
	acknowledged := make(chan int, 1000)
	var g errgroup.Group
	for c := range 8 {
		g.Go(func() error {
			for i := range 100 {
				seq := c*1000 + i
				_, err := leader.Propose(t.Context(), &raftlog.Proposal{Client: fmt.Sprint("c", c), Seq: uint64(i + 1), Op: registerOp(fmt.Sprint("h", seq))})
				switch Classify(err) {
				case Committed:
					acknowledged <- seq
				case Rejected:
					if !errors.Is(err, ErrNotLeader) && !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
						return err
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, leader.raft.LeadershipTransfer().Error())
	require.NoError(t, g.Wait())
	close(acknowledged)
	have := map[string]bool{}
	var last *state.State
	require.Eventually(t, func() bool { // a busy machine may change leaders again
		s, _, err := leaderOf(t, nodes).Read(t.Context())
		last = s
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	for _, n := range last.Nodes() {
		have[n.Name] = true
	}
	for seq := range acknowledged {
		require.True(t, have[fmt.Sprint("h", seq)], "h%d was acknowledged", seq)
	}
}
