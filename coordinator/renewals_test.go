package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

type memoryLog struct{ *raft.InmemStore }

func (memoryLog) Close() error { return nil }

// bubbled opens a node with its log in memory and a connection to it, all inside a bubble.
func bubbled(t *testing.T) (*Node, *grpc.ClientConn, func()) {
	t.Helper()
	cfg := DefaultConfig(t.TempDir())
	cfg.memory = func() logStore { return memoryLog{raft.NewInmemStore()} }
	n, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- n.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	return n, conn, func() {
		require.NoError(t, conn.Close())
		require.NoError(t, n.Close())
		require.NoError(t, <-served)
	}
}

// Renewing 10,000 leases of 100 workers takes about twenty log entries in a TTL,
// four rounds of as many as Apply can take at a time, and no lease is ever close
// to its end.
func TestRenewalsShareEntries(t *testing.T) {
	const workers, each = 100, 100
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		n, conn, end := bubbled(t)
		defer end()
		cfg := client.DefaultConfig("test")
		cfg.Conn = conn
		c, err := client.New(t.Context(), cfg)
		require.NoError(t, err)
		session := func(role, name string, change func(*client.SessionConfig)) *client.Session {
			cfg := client.SessionConfig{Role: role, Name: name, Run: "r", Logger: slog.New(slog.DiscardHandler)}
			if change != nil {
				change(&cfg)
			}
			s, err := c.NewSession(t.Context(), cfg)
			require.NoError(t, err)
			return s
		}
		sessions := []*client.Session{
			session(state.RoleHost, "h", func(c *client.SessionConfig) { c.Agents, c.Verifiers = workers*each, 1 }),
			session(state.RoleEngine, "e", func(c *client.SessionConfig) { c.Version = func() int64 { return 0 } }),
		}
		publisher := session(state.RolePublisher, "p", nil)
		sessions = append(sessions, publisher)
		run := createRun("r").GetCreateRun()
		run.Config.GroupsPerStep, run.Config.LagMax, run.Config.Concurrency = 1000, 2, workers*each
		run.Config.Envs[0].GroupSize = 10
		_, err = c.CreateRun(t.Context(), run)
		require.NoError(t, err)
		p, err := publisher.LeasePublish(t.Context(), "r")
		require.NoError(t, err)
		require.NoError(t, publisher.FinishPublish(t.Context(), &raftlog.FinishPublish{Run: "r", Version: 0, Fence: p.Fence, Accepted: true, Served: []string{"e"}}))
		for w := range workers {
			time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond)))) // nodes start whenever they do
			s := session(state.RoleRollout, fmt.Sprint("w", w), nil)
			g, err := s.LeaseEpisodes(t.Context(), "r", each)
			require.NoError(t, err)
			require.Len(t, g.Grants, each)
			for _, g := range g.Grants {
				s.Hold(lease.Token{Resource: lease.Episode(g.Run, g.Group, g.Index), Fence: lease.Fence(g.Fence), TTL: time.Duration(state.LeaseTTL)}, func() { lost.Add(1) })
			}
			sessions = append(sessions, s)
		}

		const ttls = 2
		before := n.raft.LastIndex()
		for until := time.Now().Add(ttls * time.Duration(state.LeaseTTL)); time.Now().Before(until); {
			time.Sleep(time.Second)
			s, _ := n.Stale()
			now := n.reign.Load().now()
			for _, e := range s.Episodes("r") {
				if e.Lease != nil {
					require.Greater(t, e.Lease.ExpiryNs-now, state.LeaseTTL*3/4-int64(10*time.Millisecond), "renewed each quarter of the TTL")
				}
			}
		}
		entries := n.raft.LastIndex() - before
		t.Logf("%d entries in %d TTLs", entries, ttls)
		require.LessOrEqual(t, entries, uint64(24*ttls))
		require.Equal(t, workers*each, leasedEpisodes(n))
		require.Zero(t, lost.Load())
		for _, s := range sessions {
			require.NoError(t, s.Close(t.Context()))
		}
		require.NoError(t, c.Close())
	})
}

func leasedEpisodes(n *Node) (count int) {
	s, _ := n.Stale()
	for _, e := range s.Episodes("r") {
		if e.Lease != nil {
			count++
		}
	}
	return count
}
