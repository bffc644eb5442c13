package coordinator

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// tcpNode is a node with real sockets.
type tcpNode struct {
	*Node
	cfg     Config
	raft    string
	serving chan error
}

// startTCP opens a node of a cluster; an empty address picks one.
func startTCP(t *testing.T, dir, id, rpc, raftAt string, mods ...func(*Config)) *tcpNode {
	t.Helper()
	or := func(s string) string {
		if s == "" {
			return "127.0.0.1:0"
		}
		return s
	}
	cfg := testConfig(dir)
	tr, err := NewTransport(t.Context(), TransportConfig{Node: id, Listen: or(raftAt), Timeout: time.Second, Logger: cfg.Logger})
	require.NoError(t, err)
	l, err := net.Listen("tcp", or(rpc))
	require.NoError(t, err)
	cfg.Node, cfg.Cluster, cfg.Transport, cfg.Address, cfg.Election = id, true, tr, l.Addr().String(), 300*time.Millisecond
	cfg.Dial = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	for _, m := range mods {
		m(&cfg)
	}
	n, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	out := &tcpNode{Node: n, cfg: cfg, raft: string(tr.LocalAddr()), serving: make(chan error, 1)}
	go func() { out.serving <- n.Serve(l) }()
	t.Cleanup(func() { out.stop(t) })
	return out
}

func (n *tcpNode) stop(t *testing.T) {
	t.Helper()
	if n.isClosed() {
		return
	}
	require.NoError(t, n.Close())
	require.NoError(t, <-n.serving)
}

// trio is a cluster of three nodes that were initialised and joined.
func trio(t *testing.T, mods ...func(*Config)) []*tcpNode {
	t.Helper()
	var out []*tcpNode
	for i := range 3 {
		out = append(out, startTCP(t, t.TempDir(), fmt.Sprint("n", i+1), "", "", mods...))
	}
	id, err := out[0].Init(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, id)
	for _, n := range out[1:] {
		require.Equal(t, "new", n.Status().State)
		got, err := out[0].Join(t.Context(), n.cfg.Address)
		require.NoError(t, err)
		require.Equal(t, n.cfg.Node, got)
	}
	return out
}

func tcpLeader(t *testing.T, nodes []*tcpNode) *tcpNode {
	t.Helper()
	var found *tcpNode
	require.Eventually(t, func() bool {
		for _, n := range nodes {
			if _, err := n.currentReign(); err == nil && !n.isClosed() {
				found = n
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	return found
}

// A cluster is made, loses its leader, gets it back, and goes on: over real sockets.
func TestClusterFailsOver(t *testing.T) {
	nodes := trio(t)
	first := nodes[0]
	for i := range 10 {
		propose(t, first.Node, "c", uint64(i+1), registerOp(fmt.Sprint("h", i)))
	}
	m, err := first.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, m.Members, 3)
	for _, x := range m.Members {
		require.Equal(t, "voter", x.Suffrage)
		require.True(t, x.Reachable, x.Failure)
		require.NotEmpty(t, x.Member.Address)
	}
	require.Eventually(t, func() bool { return first.level() == first.cfg.level }, time.Minute, time.Millisecond, "every voter knows the newest commands")

	first.stop(t)
	second := tcpLeader(t, nodes[1:])
	require.Len(t, read(t, second.Node).Nodes(), 10)
	propose(t, second.Node, "c", 11, registerOp("h10"))

	back := startTCP(t, first.cfg.Dir, "n1", first.cfg.Address, first.raft)
	require.Eventually(t, func() bool {
		s, _ := back.Stale()
		return len(s.Nodes()) == 11
	}, time.Minute, time.Millisecond)
	require.Equal(t, m.Cluster, back.Status().Cluster)
}

// What must not happen to a cluster is refused in a sentence and changes nothing.
func TestClusterRefuses(t *testing.T) {
	nodes := trio(t)
	leader := nodes[0]
	refused := func(err error, want string) {
		t.Helper()
		require.Error(t, err)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := leader.Init(t.Context())
	refused(err, "is part of cluster")
	_, err = nodes[1].Init(t.Context())
	refused(err, "is part of cluster")
	_, err = nodes[1].Join(t.Context(), leader.cfg.Address)
	require.ErrorIs(t, err, ErrNotLeader)
	_, err = leader.Join(t.Context(), "127.0.0.1:1")
	refused(err, "does not answer")
	refused(leader.Remove(t.Context(), "n9"), "no such node")
	refused(leader.Transfer(t.Context(), "n9"), "no node n9")
	refused(leader.Adopt("other", "n1"), "belongs to cluster")

	other := startTCP(t, t.TempDir(), "x1", "", "")
	_, err = other.Init(t.Context())
	require.NoError(t, err)
	_, err = leader.Join(t.Context(), other.cfg.Address)
	refused(err, "belongs to cluster")
	refused(other.Remove(t.Context(), "x1"), "last voter")

	twin := startTCP(t, t.TempDir(), "n2", "", "")
	_, err = leader.Join(t.Context(), twin.cfg.Address)
	refused(err, "node n2 runs at")

	old := startTCP(t, t.TempDir(), "n4", "", "", func(c *Config) { c.level = 1 })
	require.Eventually(t, func() bool { return leader.level() == 2 }, time.Minute, time.Millisecond)
	_, err = leader.Join(t.Context(), old.cfg.Address)
	refused(err, "upgrade its binary first")

	nodes[1].stop(t)
	refused(leader.Remove(t.Context(), "n3"), "no majority")
	require.NoError(t, leader.Remove(t.Context(), "n2"), "the one that is gone may go")
	m, err := leader.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, m.Members, 2)
}

// A leader that is removed hands over, and the next one removes it: it ends with a sentence.
func TestRemoveLeader(t *testing.T) {
	nodes := trio(t)
	require.ErrorIs(t, nodes[0].Remove(t.Context(), "n1"), ErrNotLeader)
	next := tcpLeader(t, nodes[1:])
	require.NoError(t, next.Remove(t.Context(), "n1"))
	m, err := next.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, m.Members, 2)
	propose(t, next.Node, "c", 1, registerOp("h"))
	<-nodes[0].Done()
	require.ErrorContains(t, nodes[0].Err(), "was removed")
}

// A saved snapshot brings a cluster back to its moment; leases and fences of after it are void.
func TestRestoreBringsTheStateBack(t *testing.T) {
	nodes := trio(t)
	leader := nodes[0]
	propose(t, leader.Node, "c", 1, registerOp("kept"))
	var file bytes.Buffer
	require.NoError(t, leader.Save(t.Context(), &file))
	after := propose(t, leader.Node, "c", 2, registerOp("lost")).GetRegister().Fence
	for name, bad := range map[string][]byte{"cut": file.Bytes()[:file.Len()-9], "not ours": []byte("PK\x03\x04 an archive of some kind")} {
		_, err := leader.Restore(t.Context(), bytes.NewReader(bad), false)
		require.Error(t, err, name)
		require.Len(t, read(t, leader.Node).Nodes(), 2, "nothing was changed")
	}
	_, err := leader.Restore(t.Context(), bytes.NewReader(file.Bytes()), false)
	require.NoError(t, err)
	now := tcpLeader(t, nodes)
	s := read(t, now.Node)
	require.Len(t, s.Nodes(), 1)
	require.Equal(t, uint64(1), s.Clock().Epoch)
	res := propose(t, now.Node, "d", 1, &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: &raftlog.NodeRef{Role: "host", Name: "new", Incarnation: 1}, Agents: 1}}})
	require.Greater(t, res.GetRegister().Fence, after)
	for _, n := range nodes {
		require.Eventually(t, func() bool {
			s, _ := n.Stale()
			return s.Clock().Epoch == 1 && len(s.Nodes()) == 2 && len(s.Members()) == 3
		}, time.Minute, time.Millisecond)
	}

	other := startTCP(t, t.TempDir(), "x1", "", "")
	_, err = other.Init(t.Context())
	require.NoError(t, err)
	_, err = other.Restore(t.Context(), bytes.NewReader(file.Bytes()), false)
	require.ErrorContains(t, err, "--foreign")
	_, err = other.Restore(t.Context(), bytes.NewReader(file.Bytes()), true)
	require.NoError(t, err)
	require.Equal(t, other.cluster(), read(t, other.Node).Clock().Cluster, "the id is the new cluster's")
}
