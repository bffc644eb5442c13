package coordinator

import (
	"bytes"
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A node whose RPCs answer and whose other port cannot be reached never votes: the cluster goes on without it.
func TestJoinWantsEntriesReceived(t *testing.T) {
	leader := startTCP(t, t.TempDir(), "n1", "", "")
	_, err := leader.Init(t.Context())
	require.NoError(t, err)
	deaf := startTCP(t, t.TempDir(), "n2", "", "", func(c *Config) {
		tr, err := NewTransport(t.Context(), TransportConfig{Node: c.Node, Listen: "127.0.0.1:0", Advertise: "127.0.0.1:1", Timeout: time.Second, Logger: c.Logger})
		require.NoError(t, err)
		require.NoError(t, c.Transport.(*Transport).Close())
		c.Transport = tr
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = leader.Join(ctx, deaf.cfg.Address)
	require.ErrorContains(t, err, "has not caught up")
	propose(t, leader.Node, "c", 1, registerOp("h"))
	require.NoError(t, leader.Remove(t.Context(), "n2"))
}

// A voter that has lost its directory is no voter any more: joining it again as
// it was would give its vote to someone who has forgotten what it acknowledged.
func TestJoinRefusesAVoterWithoutItsData(t *testing.T) {
	nodes := trio(t)
	lost := nodes[1]
	lost.stop(t)
	again := startTCP(t, t.TempDir(), "n2", lost.cfg.Address, lost.raft)
	_, err := nodes[0].Join(t.Context(), again.cfg.Address)
	require.ErrorContains(t, err, "its directory is empty: rlctl cluster remove n2 first")
	require.NoError(t, nodes[0].Remove(t.Context(), "n2"))
	_, err = nodes[0].Join(t.Context(), again.cfg.Address)
	require.NoError(t, err)
}

// A node that moves keeps its data and its vote; the cluster follows it.
func TestJoinFollowsANodeThatMoved(t *testing.T) {
	nodes := trio(t)
	moves := nodes[1]
	moves.stop(t)
	for i := range 2 * catchUpSlack {
		propose(t, nodes[0].Node, "c", uint64(i+1), registerOp("h"))
	}
	there := startTCP(t, moves.cfg.Dir, "n2", "", "")
	require.NotEqual(t, moves.raft, there.raft)
	_, err := nodes[0].Join(t.Context(), there.cfg.Address)
	require.NoError(t, err)
	at, known := nodes[0].addressOf("n2")
	require.True(t, known)
	require.Equal(t, there.raft, string(at))
	m, err := nodes[0].Members(t.Context())
	require.NoError(t, err)
	for _, x := range m.Members {
		require.Equal(t, "voter", x.Suffrage)
		require.True(t, x.Reachable, x.Failure)
	}
}

// A removal that was cut off after raft had it is ended by the same command.
func TestRemoveIsEndedByTheSameCommand(t *testing.T) {
	nodes := trio(t)
	require.NoError(t, nodes[0].reconfigure(func(prev uint64) raft.Future { return nodes[0].Node.raft.RemoveServer("n2", prev, time.Minute) }))
	require.NotNil(t, read(t, nodes[0].Node).Member("n2"))
	require.NoError(t, nodes[0].Remove(t.Context(), "n2"))
	require.Nil(t, read(t, nodes[0].Node).Member("n2"))
	require.ErrorIs(t, nodes[0].Remove(t.Context(), "n2"), ErrNoMember)
}

// A run whose record in the store goes beyond a restored snapshot is ended,
// also when the restore itself makes events, for leases that it ends.
func TestRestoreEndsRunsThatWentFurther(t *testing.T) {
	store := newMemoryStore()
	n := startTCP(t, t.TempDir(), "n1", "", "", func(c *Config) { c.Mirror, c.MirrorEvery = store, time.Millisecond })
	_, err := n.Init(t.Context())
	require.NoError(t, err)
	propose(t, n.Node, "c", 1, createRun("r"))
	var file bytes.Buffer
	require.NoError(t, n.Save(t.Context(), &file))
	propose(t, n.Node, "c", 2, cancelRun("r"))
	require.Eventually(t, func() bool { return n.MirrorLag().Waiting == 0 }, time.Minute, time.Millisecond)
	_, err = n.Restore(t.Context(), &file, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return read(t, n.Node).Run("r").State == raftlog.RunState_RUN_STATE_FAILED }, time.Minute, time.Millisecond)
	require.Contains(t, read(t, n.Node).Run("r").Reason, "train the same work twice")
	require.NoError(t, n.Err())
}

// A restore that was cut off where others may not have it is not gone on from; alone it is the state.
func TestRestoreThatWasCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		nodes int
		want  error
	}{"alone": {1, nil}, "one of three": {3, fsm.ErrRestoreCut}} {
		t.Run(name, func(t *testing.T) {
			var nodes []*tcpNode
			if c.nodes == 1 {
				nodes = []*tcpNode{startTCP(t, t.TempDir(), "n1", "", "")}
				_, err := nodes[0].Init(t.Context())
				require.NoError(t, err)
			} else {
				nodes = trio(t)
			}
			propose(t, nodes[0].Node, "c", 1, registerOp("h"))
			var file bytes.Buffer
			require.NoError(t, nodes[0].Save(t.Context(), &file))
			_, err := nodes[0].Restore(t.Context(), &file, false)
			require.NoError(t, err)
			require.NoError(t, nodes[0].dir.MarkRestoring(1)) // as it is until the others have it
			nodes[0].stop(t)
			cfg := nodes[0].cfg
			l, err := net.Listen("tcp", cfg.Address)
			require.NoError(t, err)
			require.NoError(t, l.Close())
			cfg.Transport, err = NewTransport(t.Context(), TransportConfig{Node: "n1", Listen: nodes[0].raft, Timeout: time.Second, Logger: cfg.Logger})
			require.NoError(t, err)
			n, err := Open(t.Context(), cfg)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.NoError(t, n.Close())
			_, err = os.Stat(cfg.Dir + "/restoring.json")
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}
