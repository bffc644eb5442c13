package client

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// answering is a node that answers Status and Why with what it is told to.
type answering struct {
	pb.UnimplementedCoordinatorServer
	asked  atomic.Int32
	answer atomic.Value // func() error
}

func (a *answering) Why(context.Context, *pb.WhyRequest) (*pb.WhyResponse, error) {
	a.asked.Add(1)
	if err := a.answer.Load().(func() error)(); err != nil {
		return nil, err
	}
	return &pb.WhyResponse{Text: "because"}, nil
}

// node starts a node; err says what it answers.
func node(t *testing.T, answer func() error) (*answering, string) {
	t.Helper()
	a := &answering{}
	a.answer.Store(answer)
	return a, serve(t, a)
}

func refusal(code codes.Code, r *pb.Refusal) error {
	s, err := status.New(code, "as the test wants it").WithDetails(r)
	if err != nil {
		return err
	}
	return s.Err()
}

// leads names a leader elsewhere.
func leads(address string) func() error {
	return func() error {
		return refusal(codes.Unavailable, &pb.Refusal{Reason: pb.Reason_REASON_NOT_LEADER, LeaderAddress: address})
	}
}

func yes() error { return nil }

func newTestClient(t *testing.T, addresses ...string) *Client {
	t.Helper()
	cfg := DefaultConfig("test", addresses...)
	cfg.Timeout = 5 * time.Second
	c, err := New(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A follower that knows the leader saves the round through the others.
func TestGoesStraightToTheLeader(t *testing.T) {
	leader, at := node(t, yes)
	bystander, bystanderAt := node(t, leads(""))
	follower, followerAt := node(t, leads(at))
	c := newTestClient(t, followerAt, bystanderAt, at)
	for range 3 {
		_, err := c.Why(t.Context(), "r")
		require.NoError(t, err)
	}
	require.Equal(t, int32(1), follower.asked.Load(), "and stays with it")
	require.Zero(t, bystander.asked.Load())
	require.Equal(t, int32(3), leader.asked.Load())
}

// A leader that joined after the client was configured is found, once.
func TestLearnsTheLeadersAddress(t *testing.T) {
	leader, at := node(t, yes)
	follower, followerAt := node(t, leads(at))
	c := newTestClient(t, followerAt)
	for range 3 {
		_, err := c.Why(t.Context(), "r")
		require.NoError(t, err)
	}
	require.Equal(t, 2, c.peers.size())
	require.Equal(t, int32(1), follower.asked.Load())
	require.Equal(t, int32(3), leader.asked.Load())

	// When it no longer leads and knows no other, the round goes on from it.
	leader.answer.Store(leads(""))
	follower.answer.Store(yes)
	_, err := c.Why(t.Context(), "r")
	require.NoError(t, err)
	require.Equal(t, int32(2), follower.asked.Load())
}

// Hints that are wrong cost tries, not the call.
func TestWrongHints(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := l.Addr().String()
	require.NoError(t, l.Close())
	for name, hint := range map[string]string{"a node that is down": gone, "no address": "::::", "elsewhere": "203.0.113.1:1", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			_, leader := node(t, yes)
			_, follower := node(t, leads(hint))
			c := newTestClient(t, follower, leader)
			_, err := c.Why(t.Context(), "r")
			require.NoError(t, err)
		})
	}
	t.Run("itself", func(t *testing.T) {
		var at string
		_, leader := node(t, yes)
		_, at = node(t, func() error { return leads(at)() })
		_, err := newTestClient(t, at, leader).Why(t.Context(), "r")
		require.NoError(t, err)
	})
	t.Run("each other", func(t *testing.T) { // during an election
		var a, b *answering
		var atA, atB string
		a, atA = node(t, func() error { return leads(atB)() })
		b, atB = node(t, func() error {
			if a.asked.Load() >= 3 { // it is elected
				return nil
			}
			return leads(atA)()
		})
		_, err := newTestClient(t, atA, atB).Why(t.Context(), "r")
		require.NoError(t, err)
		require.LessOrEqual(t, a.asked.Load()+b.asked.Load(), int32(8), "with pauses between")
	})
	t.Run("ever new ones", func(t *testing.T) {
		c := newTestClient(t, "127.0.0.1:1")
		c.peers.mu.Lock()
		for i := range 100 {
			c.peers.findLocked(net.JoinHostPort("127.0.0.3", strconv.Itoa(i)))
		}
		c.peers.mu.Unlock()
		require.Equal(t, 1+maxLearned, c.peers.size())
	})
}

// A connection of the caller's leads to one place, whatever that says.
func TestHintsDoNotLeaveACallersConnection(t *testing.T) {
	leader, at := node(t, yes)
	tries := 0
	_, follower := node(t, func() error {
		if tries++; tries < 3 {
			return leads(at)()
		}
		return nil
	})
	conn, err := grpc.NewClient("passthrough:///"+follower, DialOptions()...)
	require.NoError(t, err)
	cfg := DefaultConfig("test")
	cfg.Conn = conn
	c, err := New(t.Context(), cfg)
	require.NoError(t, err)
	_, err = c.Why(t.Context(), "r")
	require.NoError(t, err)
	require.Zero(t, leader.asked.Load())
	require.NoError(t, c.Close())
	require.NoError(t, conn.Close())
}

// Who is refused by every node hears so at once; who is refused by one that lags does not.
func TestRefusedByAllOrByOne(t *testing.T) {
	denies := func() error {
		return refusal(codes.Unauthenticated, &pb.Refusal{Reason: pb.Reason_REASON_UNAUTHENTICATED, Sentence: "the token is not known"})
	}
	a, atA := node(t, denies)
	b, atB := node(t, denies)
	begun := time.Now()
	_, err := newTestClient(t, atA, atB).Why(t.Context(), "r")
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorContains(t, err, "the token is not known")
	require.NotContains(t, err.Error(), "as the test wants it")
	require.Less(t, time.Since(begun), 3*time.Second, "it does not wait for its deadline")
	require.Equal(t, int32(2), a.asked.Load()+b.asked.Load())

	_, knows := node(t, yes)
	_, err = newTestClient(t, atA, knows, atB).Why(t.Context(), "r")
	require.NoError(t, err)

	_, err = newTestClient(t, serveForbidden(t), atA).Why(t.Context(), "r")
	require.ErrorIs(t, err, ErrForbidden)
}

// A command that not all nodes know yet is tried again for a moment, not until the deadline.
func TestLevel(t *testing.T) {
	level := func() error { return refusal(codes.FailedPrecondition, &pb.Refusal{Reason: pb.Reason_REASON_LEVEL}) }
	tries := 0
	_, at := node(t, func() error {
		if tries++; tries < 4 {
			return level()
		}
		return nil
	})
	_, err := newTestClient(t, at).Why(t.Context(), "r")
	require.NoError(t, err)
	_, at = node(t, level)
	c := newTestClient(t, at)
	c.cfg.Attempt, c.cfg.Timeout = 50*time.Millisecond, time.Minute
	_, err = c.Why(t.Context(), "r")
	require.ErrorIs(t, err, ErrLevel)
}

func serveForbidden(t *testing.T) string {
	t.Helper()
	_, at := node(t, func() error {
		return refusal(codes.PermissionDenied, &pb.Refusal{Reason: pb.Reason_REASON_FORBIDDEN})
	})
	return at
}

// Without credentials nothing leaves the machine, not even after a hint.
func TestOnlyLoopbackWithoutCredentials(t *testing.T) {
	for _, a := range []string{"10.0.0.1:7000", "coordinator.example:7000", "0.0.0.0:7000"} {
		_, err := New(t.Context(), DefaultConfig("test", "127.0.0.1:1", a))
		require.ErrorContains(t, err, a)
		require.ErrorContains(t, err, "--tls")
	}
	c := newTestClient(t, "127.0.0.1:1")
	c.peers.mu.Lock()
	defer c.peers.mu.Unlock()
	require.Equal(t, -1, c.peers.findLocked("10.0.0.1:7000"))
	require.Len(t, c.peers.services, 1)
}

// juju/juju#13788: error classes were lost on the way through a server, so that
// calls that should have been repeated were not. Each reason must mean to the
// client, after a hop over TLS, what it meant to the server; a new reason needs a row.
func TestJuju13788_EachClassSurvivesAHop(t *testing.T) {
	want := map[pb.Reason]struct {
		verdict verdict
		kind    error
	}{
		pb.Reason_REASON_UNSPECIFIED:     {again, nil},
		pb.Reason_REASON_NOT_LEADER:      {elsewhere, nil},
		pb.Reason_REASON_STARTING:        {again, nil},
		pb.Reason_REASON_QUEUE_FULL:      {again, nil},
		pb.Reason_REASON_STOPPED:         {elsewhere, nil},
		pb.Reason_REASON_INVALID:         {final, ErrInvalid},
		pb.Reason_REASON_NOT_FOUND:       {final, ErrNotFound},
		pb.Reason_REASON_UNKNOWN_OUTCOME: {again, nil},
		pb.Reason_REASON_UNAUTHENTICATED: {denied, ErrDenied},
		pb.Reason_REASON_FORBIDDEN:       {final, ErrForbidden},
		pb.Reason_REASON_RESYNC:          {final, ErrResync},
		pb.Reason_REASON_LEVEL:           {again, ErrLevel},
	}
	s := &refusing{}
	conn := overTLS(t, s)
	for number := range pb.Reason_name {
		reason := pb.Reason(number)
		require.Contains(t, want, reason)
		// The status code is one that says nothing, so that the reason alone decides.
		sent := &pb.Refusal{Reason: reason, Leader: "n2", LeaderAddress: "n2:1", RetryAfterNs: 7, Sentence: "s"}
		s.err = refusal(codes.Unknown, sent)
		calls := map[string]func() error{
			"unary": func() error {
				_, err := pb.NewCoordinatorClient(conn).Propose(t.Context(), &raftlog.Proposal{})
				return err
			},
			"stream": func() error {
				stream, err := pb.NewCoordinatorClient(conn).Changes(t.Context(), &pb.ChangesRequest{})
				require.NoError(t, err)
				_, err = stream.Recv()
				return err
			},
		}
		for name, call := range calls {
			v, detail, kind := judge(call())
			require.Equal(t, want[reason].verdict, v, "%s %s", reason, name)
			require.Equal(t, want[reason].kind, kind, "%s %s", reason, name)
			require.Equal(t, sent.String(), detail.String(), "%s %s", reason, name)
		}
	}
}

type refusing struct {
	pb.UnimplementedCoordinatorServer
	err error
}

func (r *refusing) Propose(context.Context, *raftlog.Proposal) (*raftlog.Result, error) {
	return nil, r.err
}

func (r *refusing) Changes(*pb.ChangesRequest, grpc.ServerStreamingServer[pb.Change]) error {
	return r.err
}

// overTLS serves behind certificates and a guard, and returns a worker's connection.
func overTLS(t *testing.T, s pb.CoordinatorServer) *grpc.ClientConn {
	t.Helper()
	ca, err := auth.NewCA("test", time.Hour)
	require.NoError(t, err)
	load := func(who auth.Identity, hosts ...string) *auth.Credentials {
		dir := t.TempDir()
		require.NoError(t, ca.IssueTo(dir, who, hosts, time.Hour))
		c, err := auth.FilesIn(dir).Load(slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return c
	}
	guard, err := auth.NewGuard(auth.Config{Token: func(string) *raftlog.Token { return nil }, Now: func() int64 { return 1 }})
	require.NoError(t, err)
	options, err := auth.ServerOptions(load(auth.Identity{Role: auth.Coordinator, Name: "n1"}, "127.0.0.1"), guard)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := grpc.NewServer(options...)
	pb.RegisterCoordinatorServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); require.NoError(t, <-served) })
	dial, err := auth.DialOptions(load(auth.Identity{Role: auth.Worker, Name: "w"}), "")
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), append(DialOptions(), dial...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}
