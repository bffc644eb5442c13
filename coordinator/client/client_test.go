package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a coordinator whose process can be killed and started again at one address.
type fleet struct {
	t      *testing.T
	dir    string
	socket string
	node   *coordinator.Node
	served chan error
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), socket: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fleet) start() {
	f.t.Helper()
	cfg := coordinator.DefaultConfig(f.dir)
	cfg.SegmentBytes, cfg.Election = 256<<10, 20*time.Millisecond
	var err error
	f.node, err = coordinator.Open(f.t.Context(), cfg)
	require.NoError(f.t, err)
	l, err := net.Listen("unix", f.socket)
	require.NoError(f.t, err)
	n := f.node
	go func() { f.served <- n.Serve(l) }()
}

func (f *fleet) stop() {
	require.NoError(f.t, f.node.Close())
	require.NoError(f.t, <-f.served)
}

func (f *fleet) client(change func(*Config)) *Client {
	f.t.Helper()
	cfg := DefaultConfig("test", "unix:"+f.socket)
	if change != nil {
		change(&cfg)
	}
	c, err := New(f.t.Context(), cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, c.Close()) })
	return c
}

// lossy passes proposals on and loses the answers of the first tries.
type lossy struct {
	pb.CoordinatorServer
	lose  atomic.Int32
	tries atomic.Int32
	err   error
}

func (s *lossy) Propose(ctx context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	s.tries.Add(1)
	r, err := s.CoordinatorServer.Propose(ctx, p)
	if s.lose.Add(-1) >= 0 {
		return nil, s.err
	}
	return r, err
}

// serve puts a service of the test's on a loopback address.
func serve(t *testing.T, s pb.CoordinatorServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := grpc.NewServer()
	pb.RegisterCoordinatorServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); require.NoError(t, <-served) })
	return l.Addr().String()
}

// Whatever happens to answers, an operation is applied once: the result of a
// lease shows it, because a second one would raise the fence.
func TestLostAnswersApplyOnce(t *testing.T) {
	for name, err := range map[string]error{
		"connection broke": status.Error(codes.Unavailable, "transport is closing"),
		"server timed out": status.Error(codes.DeadlineExceeded, "deadline"),
		"something else":   status.Error(codes.Internal, "reset"),
		"not a status":     errors.New("odd"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			s := &lossy{CoordinatorServer: f.node.Service(), err: err}
			s.lose.Store(3)
			c := f.client(func(c *Config) { c.Addresses = []string{serve(t, s)} })
			r, err := c.Register(t.Context(), &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: "h", Incarnation: 1}})
			require.NoError(t, err)
			require.Equal(t, int32(4), s.tries.Load())
			v, err := c.View(t.Context(), "", pb.Kind_KIND_NODE, pb.Kind_KIND_CLOCK)
			require.NoError(t, err)
			require.Equal(t, r.Fence+1, v.Records[0].GetClock().NextFence, "one fence was minted")
			require.Equal(t, r.Fence, v.Records[1].GetNode().Fence)
		})
	}
}

func TestDeadlineSaysWhy(t *testing.T) {
	f := newFleet(t)
	s := &lossy{CoordinatorServer: f.node.Service(), err: status.Error(codes.Unavailable, "the network is made of string")}
	s.lose.Store(1 << 30)
	c := f.client(func(c *Config) { c.Addresses = []string{serve(t, s)}; c.Timeout = time.Second })
	_, err := c.Register(t.Context(), &raftlog.Register{})
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "made of string")
	require.ErrorContains(t, err, "Register")

	nobody := f.client(func(c *Config) {
		c.Addresses = []string{"unix:" + filepath.Join(t.TempDir(), "none")}
		c.Timeout = 50 * time.Millisecond
	})
	_, err = nobody.Why(t.Context(), "r")
	require.ErrorIs(t, err, ErrUnavailable)
}

// A server that never answers is asked again, not waited for until the end.
func TestUnansweredTriesAreRepeated(t *testing.T) {
	f := newFleet(t)
	stuck := &stuckOnce{CoordinatorServer: f.node.Service()}
	c := f.client(func(c *Config) { c.Addresses = []string{serve(t, stuck)}; c.Attempt = 20 * time.Millisecond })
	_, err := c.CreateRun(t.Context(), runOp("r").GetCreateRun())
	require.NoError(t, err)
}

type stuckOnce struct {
	pb.CoordinatorServer
	once sync.Once
}

func (s *stuckOnce) Propose(ctx context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	s.once.Do(func() { <-ctx.Done() })
	return s.CoordinatorServer.Propose(ctx, p)
}

func TestKindsOfRefusal(t *testing.T) {
	f := newFleet(t)
	c := f.client(nil)
	_, err := c.CreateRun(t.Context(), runOp("r").GetCreateRun())
	require.NoError(t, err)
	other := runOp("r").GetCreateRun()
	other.SpecDigest = "sha256:other"
	_, err = c.CreateRun(t.Context(), other)
	require.ErrorIs(t, err, ErrConflict)
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, refused.Code())
	require.ErrorIs(t, c.ControlRun(t.Context(), "none", "pause", ""), ErrNotFound)
	require.ErrorIs(t, c.ControlRun(t.Context(), "r", "dance", ""), ErrInvalid)
	_, err = c.LeaseJobs(t.Context(), &raftlog.LeaseJobs{Node: &raftlog.NodeRef{Role: state.RoleVerifier, Name: "v", Incarnation: 1}})
	require.ErrorIs(t, err, lease.ErrFenced)
	_, err = c.Why(t.Context(), "none")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = c.View(t.Context(), "none")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = c.Propose(t.Context(), &raftlog.Op{})
	require.ErrorIs(t, err, ErrInvalid)
	big := runOp("big").GetCreateRun()
	big.Spec = make([]byte, 20<<20)
	_, err = c.CreateRun(t.Context(), big)
	require.ErrorIs(t, err, ErrInvalid)
	text, err := c.Why(t.Context(), "r")
	require.NoError(t, err)
	require.Contains(t, text, "Run r")
	st, err := c.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, "leader", st.State)
	v, err := c.StaleView(t.Context(), "r", pb.Kind_KIND_RUN)
	require.NoError(t, err)
	require.True(t, v.Stale)
	require.Len(t, v.Records, 1)
}

// follower refuses everything as a node that does not lead.
type follower struct {
	pb.UnimplementedCoordinatorServer
}

func (follower) Propose(context.Context, *raftlog.Proposal) (*raftlog.Result, error) {
	s, err := status.New(codes.Unavailable, "ask the leader").WithDetails(&pb.Refusal{Reason: pb.Reason_REASON_NOT_LEADER, Leader: "n9"})
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}

func TestFollowsTheLeader(t *testing.T) {
	f := newFleet(t)
	c := f.client(func(c *Config) {
		c.Addresses = []string{serve(t, follower{}), "unix:" + filepath.Join(t.TempDir(), "down"), "unix:" + f.socket}
	})
	for range 3 {
		_, err := c.CreateRun(t.Context(), runOp("r").GetCreateRun())
		require.NoError(t, err)
	}
	_, now := c.peers.current()
	require.Equal(t, 2, now, "and stays with it")
}

// More callers than lanes share them; numbers never go back on an id.
func TestLanesAreShared(t *testing.T) {
	f := newFleet(t)
	c := f.client(func(c *Config) { c.Lanes = 3 })
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			_, err := c.Register(t.Context(), &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", i), Incarnation: 1}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	v, err := c.View(t.Context(), "", pb.Kind_KIND_NODE)
	require.NoError(t, err)
	require.Len(t, v.Records, 30)
	require.Len(t, c.lanes, 3)

	alone := f.client(nil)
	for range 5 {
		_, err := alone.CreateRun(t.Context(), runOp("r").GetCreateRun())
		require.NoError(t, err)
	}
	require.Len(t, alone.lanes, 1, "calls one after the other use one row of the state")
}

// A coordinator that is killed and comes back is found again by calls, watchers and sessions.
func TestRestartOfTheCoordinator(t *testing.T) {
	f := newFleet(t)
	c := f.client(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := c.Watch(ctx, "r")
	require.Empty(t, (<-changes).State)
	s, err := c.NewSession(t.Context(), SessionConfig{Role: state.RoleTrainer, Name: "t", Run: "r", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = c.CreateRun(t.Context(), runOp("r").GetCreateRun())
	require.NoError(t, err)
	require.Equal(t, "running", (<-changes).State)
	g, err := s.JoinGang(t.Context(), "r")
	require.NoError(t, err)

	f.stop()
	result := make(chan error, 1)
	go func() { result <- c.ControlRun(t.Context(), "r", "pause", "restart") }() // sent into the outage
	f.start()
	require.NoError(t, <-result)
	for c := range changes {
		if c.State == "paused" {
			break
		}
	}
	s.Renew()
	v, err := c.View(t.Context(), "r", pb.Kind_KIND_GANG)
	require.NoError(t, err)
	require.Equal(t, g.Fence, v.Records[0].GetGang().Lease.Fence, "the lease outlived the coordinator")
	require.NoError(t, s.Close(t.Context()))
	cancel()
	for range changes { //nolint:revive // until it is closed
	}
}

// A receiver that does not receive finds the newest change, not the oldest.
func TestWatchKeepsTheNewest(t *testing.T) {
	out := make(chan Change, 1)
	for i := range 10 {
		replace(out, Change{Revision: uint64(i)})
	}
	require.Equal(t, uint64(9), (<-out).Revision)
	require.Empty(t, out)
}

func TestClosedClient(t *testing.T) {
	f := newFleet(t)
	c, err := New(t.Context(), DefaultConfig("test", "unix:"+f.socket))
	require.NoError(t, err)
	changes := c.Watch(t.Context(), "")
	<-changes
	require.NoError(t, c.Close())
	for range changes { //nolint:revive // until it is closed
	}
	_, err = c.CreateRun(t.Context(), runOp("r").GetCreateRun())
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestConfig(t *testing.T) {
	require.NoError(t, DefaultConfig("a", "unix:x").Validate())
	bad := DefaultConfig("")
	bad.Lanes = 0
	err := bad.Validate()
	require.ErrorContains(t, err, "addresses")
	require.ErrorContains(t, err, "name")
	require.ErrorContains(t, err, "lanes")
	_, err = New(t.Context(), bad)
	require.Error(t, err)
}
