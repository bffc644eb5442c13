package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
)

// diskTrio is three nodes with logs and snapshots on disk and a network in memory.
type diskTrio struct {
	t       *testing.T
	nodes   []*Node
	configs []Config
	network []*raft.InmemTransport
}

func newDiskTrio(t *testing.T) *diskTrio {
	c := &diskTrio{t: t, nodes: make([]*Node, 3), configs: make([]Config, 3), network: make([]*raft.InmemTransport, 3)}
	var servers []raft.Server
	for i := range 3 {
		servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprint("n", i)), Address: raft.ServerAddress(fmt.Sprint("a", i))})
	}
	for i := range c.configs {
		cfg := testConfig(t.TempDir())
		cfg.Node, cfg.Servers, cfg.Election = string(servers[i].ID), servers, 200*time.Millisecond
		cfg.SegmentBytes, cfg.SnapshotAfter, cfg.TrailingLogs = 64<<10, 1<<40, 1
		c.configs[i] = cfg
		c.plug(i)
	}
	var g errgroup.Group
	for i := range c.nodes {
		g.Go(func() (err error) {
			c.nodes[i], err = Open(t.Context(), c.configs[i])
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Cleanup(func() {
		for _, n := range c.nodes {
			require.NoError(t, n.Close())
		}
	})
	return c
}

// plug gives a node a new transport and connects it.
func (c *diskTrio) plug(i int) {
	_, c.network[i] = raft.NewInmemTransport(raft.ServerAddress(fmt.Sprint("a", i)))
	c.configs[i].Transport = c.network[i]
	c.connect(i)
}

func (c *diskTrio) connect(i int) {
	for j, other := range c.network {
		if j != i && other != nil {
			c.network[i].Connect(other.LocalAddr(), other)
			other.Connect(c.network[i].LocalAddr(), c.network[i])
		}
	}
}

func (c *diskTrio) disconnect(i int) {
	for j, other := range c.network {
		if j != i {
			c.network[i].Disconnect(other.LocalAddr())
			other.Disconnect(c.network[i].LocalAddr())
		}
	}
}

// restart closes a node and opens it on a directory.
func (c *diskTrio) restart(i int, dir string) {
	c.t.Helper()
	require.NoError(c.t, c.nodes[i].Close())
	c.configs[i].Dir = dir
	c.plug(i)
	n, err := Open(c.t.Context(), c.configs[i])
	require.NoError(c.t, err)
	c.nodes[i] = n
}

// advance commits writes and compacts the log of the leader, so that whoever missed them is sent a snapshot.
func (c *diskTrio) advance(leader *Node, seq *uint64) {
	c.t.Helper()
	for range 10 {
		*seq++
		propose(c.t, leader, "c", *seq, largeOp(fmt.Sprint("h", *seq%20), 4<<10))
	}
	require.NoError(c.t, leader.Snapshot())
}

func (c *diskTrio) requireEqual(leader *Node) {
	c.t.Helper()
	want := dump(c.t, read(c.t, leader))
	for _, n := range c.nodes {
		require.Eventually(c.t, func() bool {
			require.NoError(c.t, n.Err())
			s, _ := n.Stale()
			return string(dump(c.t, s)) == string(want)
		}, time.Minute, time.Millisecond, "node %s does not catch up", n.cfg.Node)
	}
}

// A follower that is killed between keeping the leader's snapshot and deleting
// its own log starts again, with the snapshot, and follows.
func TestEtcd10219_KillWhileASnapshotIsInstalled(t *testing.T) {
	c := newDiskTrio(t)
	leader := leaderOf(t, c.nodes)
	var seq uint64
	c.advance(leader, &seq)
	c.requireEqual(leader)
	f := 0
	for c.nodes[f] == leader {
		f++
	}
	dir := c.configs[f].Dir
	require.NoError(t, c.nodes[f].Close())
	c.advance(leader, &seq)

	left := make(chan string, 8)
	c.configs[f].faults = func(s raft.LogStore) raft.LogStore {
		keep := func() { left <- killed(t, dir) }
		return &watchedDisk{LogStore: s, before: keep, after: keep}
	}
	c.restart(f, dir)
	c.requireEqual(leader)
	c.configs[f].faults = nil
	copies := []string{<-left, <-left}
	for i, at := range copies {
		s, err := fsm.Open(at)
		require.NoError(t, err, "copy %d", i)
		require.Len(t, s.Nodes(), 20, "copy %d has the snapshot", i)
		c.restart(f, at)
		c.requireEqual(leader)
		c.advance(leader, &seq)
		c.requireEqual(leader)
		c.restart(f, at) // what it wrote after that can be read, too
		c.requireEqual(leader)
	}
}

// A follower that is sent snapshots in short order, cut off in between at any
// moment, ends with the leader's state and starts again with it.
func TestEtcd18055_SnapshotsBackToBackOnDisk(t *testing.T) {
	c := newDiskTrio(t)
	leader := leaderOf(t, c.nodes)
	var seq uint64
	f := 0
	for c.nodes[f] == leader {
		f++
	}
	for i := range 10 {
		c.disconnect(f)
		leader = leaderOf(t, []*Node{c.nodes[(f+1)%3], c.nodes[(f+2)%3]})
		c.advance(leader, &seq)
		c.connect(f)
		if i%2 == 1 { // else the next cut comes at whatever moment this is
			c.requireEqual(leader)
		}
	}
	first, err := c.nodes[f].log.FirstIndex()
	require.NoError(t, err)
	require.NotEqual(t, uint64(1), first, "no snapshot was installed: the log begins at its beginning")
	c.restart(f, c.configs[f].Dir)
	c.requireEqual(leader)
	c.advance(leader, &seq)
	c.requireEqual(leader)
}
