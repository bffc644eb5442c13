package client

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

const ttl = time.Duration(state.LeaseTTL)

// local is a coordinator without raft or network: the real state machine by the bubble's clock.
type local struct {
	pb.CoordinatorClient // what a test needs not

	mu      sync.Mutex // guards all
	state   *state.State
	start   time.Time
	down    bool          // refuses everything
	delay   time.Duration // of answers, after the fact
	keep    time.Duration // of patient heartbeats, before the fact
	beats   []*raftlog.Heartbeat
	changes chan *pb.Change
}

func newLocal() *local {
	return &local{state: state.New(), start: time.Now().Add(-time.Second), changes: make(chan *pb.Change)}
}

func (l *local) apply(p *raftlog.Proposal) *raftlog.Result {
	return l.state.Apply(&raftlog.Entry{NowNs: int64(time.Since(l.start)), Proposals: []*raftlog.Proposal{proto.CloneOf(p)}})[0]
}

func (l *local) Propose(ctx context.Context, p *raftlog.Proposal, _ ...grpc.CallOption) (*raftlog.Result, error) {
	l.mu.Lock()
	if l.down {
		l.mu.Unlock()
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	if h := p.Op.GetHeartbeat(); h != nil {
		l.beats = append(l.beats, proto.CloneOf(h))
		if keep := l.keep; h.Patient && keep > 0 {
			l.mu.Unlock()
			return l.late(ctx, p, keep)
		}
	}
	r, delay := l.apply(p), l.delay
	l.mu.Unlock()
	select {
	case <-time.After(delay):
		return r, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// late applies a proposal after a while, also when its sender has left.
func (l *local) late(ctx context.Context, p *raftlog.Proposal, after time.Duration) (*raftlog.Result, error) {
	done := make(chan *raftlog.Result, 1)
	time.AfterFunc(after, func() { l.set(func() { done <- l.apply(p) }) })
	select {
	case r := <-done:
		return r, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (l *local) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// now returns a copy of the state, and last the newest heartbeat.
func (l *local) now() *state.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Fork()
}

func (l *local) last() *raftlog.Heartbeat {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beats[len(l.beats)-1]
}

func (l *local) tick() {
	l.set(func() { l.apply(&raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}}) })
}

type changeStream struct {
	grpc.ServerStreamingClient[pb.Change]
	ctx context.Context
	c   chan *pb.Change
}

func (s changeStream) Recv() (*pb.Change, error) {
	select {
	case c := <-s.c:
		return c, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (l *local) Changes(ctx context.Context, _ *pb.ChangesRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.Change], error) {
	return changeStream{ctx: ctx, c: l.changes}, nil
}

// start registers a session in a bubble; the test's end closes it.
// viewStream answers with one chunk.
type viewStream struct {
	grpc.ServerStreamingClient[pb.ViewResponse]
	chunks []*pb.ViewResponse
}

func (s *viewStream) Recv() (*pb.ViewResponse, error) {
	if len(s.chunks) == 0 {
		return nil, io.EOF
	}
	c := s.chunks[0]
	s.chunks = s.chunks[1:]
	return c, nil
}

func (l *local) View(context.Context, *pb.ViewRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[pb.ViewResponse], error) {
	r := &pb.ViewResponse{}
	for _, n := range l.now().Nodes() {
		r.Records = append(r.Records, &raftlog.Record{Record: &raftlog.Record_Node{Node: n}})
	}
	return &viewStream{chunks: []*pb.ViewResponse{r}}, nil
}

func start(t *testing.T, l *local, change func(*SessionConfig)) (*Session, func()) {
	t.Helper()
	c := newClient(t.Context(), DefaultConfig("test", "unused"), &peers{services: []pb.CoordinatorClient{l}})
	cfg := SessionConfig{Role: state.RoleTrainer, Name: "t1", Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	s, err := c.NewSession(t.Context(), cfg)
	require.NoError(t, err)
	return s, func() {
		l.set(func() { l.down = false })
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, c.Close())
	}
}

// gang makes a run, joins its gang and holds it.
func gang(t *testing.T, l *local, s *Session) (token lease.Token, lost chan struct{}) {
	t.Helper()
	l.set(func() {
		r := l.apply(&raftlog.Proposal{Client: "x", Seq: 1, Op: runOp("r")})
		require.Equal(t, raftlog.Code_CODE_OK, r.Code, r.Message)
	})
	g, err := s.JoinGang(t.Context(), "r")
	require.NoError(t, err)
	token = lease.Token{Resource: lease.Gang("r"), Holder: "t1", Incarnation: s.Node().Incarnation, Fence: lease.Fence(g.Fence), TTL: time.Duration(g.TtlNs)}
	lost = make(chan struct{})
	s.Hold(token, func() { close(lost) })
	return token, lost
}

func runOp(id string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{
		Id: id, SpecDigest: "sha256:0", Manifest: "sha256:1",
		Config: &raftlog.RunConfig{
			Steps: 1, GroupsPerStep: 1, PublishEvery: 1, Concurrency: 4,
			Envs: []*raftlog.EnvConfig{{Name: "e", Weight: 1, GroupSize: 2, Tasks: []*raftlog.TaskRef{{Id: "t", Digest: "d"}}}},
		},
	}}}
}

func isLost(lost chan struct{}) bool {
	synctest.Wait()
	select {
	case <-lost:
		return true
	default:
		return false
	}
}

func TestSessionRenewsWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		token, lost := gang(t, l, s)
		s.Waits(token.Resource, "store")
		for range 20 { // five TTLs
			time.Sleep(ttl / 4)
			l.tick()
		}
		require.False(t, isLost(lost))
		require.NotNil(t, l.now().Gang("r").Lease)
		require.Equal(t, "store", l.now().Gang("r").WaitsFor)
		last := l.last()
		require.Len(t, last.Held, 1)
		require.InDelta(t, int64(5*ttl), last.Held[0].WaitsNs, float64(ttl/2))
		require.Equal(t, int64(-1), last.EngineVersion)

		s.Drop(token.Resource)
		time.Sleep(ttl / 3)
		require.Empty(t, l.last().Held)
		require.False(t, isLost(lost), "dropped, not lost")
	})
}

// A holder that hears nothing stops before anybody else can hold the lease.
func TestSessionStopsBeforeItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		_, lost := gang(t, l, s)
		l.set(func() { l.down = true })
		granted := time.Now()
		<-lost
		require.Equal(t, ttl-ttl/5, time.Since(granted))
		s.Drop(lease.Gang("r"))
	})
}

// An answer that was long on the way renews from when it was asked for, not from when it came.
func TestSessionCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		l.set(func() { l.delay = 3 * time.Second })
		begun := time.Now()
		_, lost := gang(t, l, s)
		require.Equal(t, 3*time.Second, time.Since(begun), "granted, and the answer took its time")
		l.set(func() { l.down = true }) // no renewal will come
		<-lost
		require.Equal(t, ttl-ttl/5, time.Since(begun))
		s.Drop(lease.Gang("r"))
	})
}

// Short outages lose nothing: the heartbeat is repeated with the same numbers.
func TestSessionSurvivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		_, lost := gang(t, l, s)
		for range 5 {
			l.set(func() { l.down = true })
			time.Sleep(ttl / 2)
			l.set(func() { l.down = false })
			time.Sleep(ttl / 2)
			l.tick()
		}
		require.False(t, isLost(lost))
		s.Drop(lease.Gang("r"))
	})
}

func TestSessionLosesWhatAnotherHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		_, lost := gang(t, l, s)
		l.set(func() { // the run ends: its gang is gone
			l.apply(&raftlog.Proposal{Client: "x", Seq: 2, Op: &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "r", Action: "cancel"}}}})
		})
		begun := time.Now()
		<-lost
		require.LessOrEqual(t, time.Since(begun), ttl/4, "said within one renewal")
		s.Drop(lease.Gang("r"))
	})
}

// A node that was given up loses everything and comes back under a higher incarnation.
// A clock that was set back does not keep a node out.
func TestSessionAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		ahead := uint64(time.Now().Add(time.Hour).UnixNano())
		l.mu.Lock()
		l.apply(&raftlog.Proposal{Client: "before", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
			Node: &raftlog.NodeRef{Role: "trainer", Name: "t1", Incarnation: ahead},
		}}}})
		l.mu.Unlock()
		s, stop := start(t, l, nil)
		defer stop()
		require.Equal(t, ahead+1, s.Node().Incarnation)
	})
}

func TestSessionRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		_, lost := gang(t, l, s)
		before := s.Node()
		fenced, changed := s.Fenced(), s.Changed()
		l.set(func() {
			l.apply(&raftlog.Proposal{Client: "x", Seq: 2, Op: &raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: before}}}})
		})
		_, err := s.JoinGang(t.Context(), "r")
		require.ErrorIs(t, err, lease.ErrFenced) // and is looked into at once
		<-fenced
		<-changed
		require.True(t, isLost(lost))
		require.Greater(t, s.Node().Incarnation, before.Incarnation)
		s.Drop(lease.Gang("r"))
		g, err := s.JoinGang(t.Context(), "r")
		require.NoError(t, err)
		require.Positive(t, g.Fence)
	})
}

// The Drop of an attempt that is over does not end the next one on the same resource.
func TestSessionDropsBelongToTheirHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		defer end()
		token, lost := gang(t, l, s)
		again := token
		again.Fence++
		s.Hold(again, func() {}) // granted again before the first holder noticed
		require.True(t, isLost(lost))
		s.Drop(token.Resource) // the first holder's
		require.Len(t, s.message(time.Now()).Held, 1)
		s.Drop(token.Resource) // the second's
		require.Empty(t, s.message(time.Now()).Held)
		s.Drop(token.Resource)
		require.Empty(t, s.owed)
	})
}

func TestSessionOfAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		ended := make(chan string, 1)
		s, end := start(t, l, func(c *SessionConfig) {
			c.Role, c.Name, c.Agents, c.Verifiers = state.RoleHost, "h1", 3, 2
			c.Serves = func() []lease.Token { return []lease.Token{{Resource: lease.Episode("r", 1, 0), Fence: 9}} }
			c.Ended = func(r string, _ lease.Fence) {
				select {
				case ended <- r:
				default:
				}
			}
		})
		defer end()
		n := l.now().Nodes()[0]
		require.Equal(t, int32(3), n.Agents)
		require.Equal(t, int32(2), n.Verifiers)
		require.Equal(t, lease.Episode("r", 1, 0), <-ended, "a sandbox whose lease nobody has")
		s.Drain()
		synctest.Wait()
		require.Equal(t, raftlog.NodeState_NODE_STATE_DRAINING, l.now().Nodes()[0].State)
	})
}

func TestSessionOfAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		var version atomic.Int64
		s, end := start(t, l, func(c *SessionConfig) {
			c.Role, c.Name = state.RoleEngine, "e1"
			c.Version = version.Load
		})
		defer end()
		version.Store(4)
		s.Renew()
		synctest.Wait()
		require.Equal(t, int64(4), l.now().Nodes()[0].Version)
	})
}

func TestSessionCloseGivesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		s, end := start(t, l, nil)
		_, lost := gang(t, l, s)
		end()
		require.True(t, isLost(lost))
		require.Nil(t, l.now().Gang("r").GetLease())
		require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, l.now().Nodes()[0].State)
	})
}

// Changed wakes a role for what it can do, and for the run's state.
func TestSessionChanged(t *testing.T) {
	for role, c := range map[string]struct{ wakes, sleeps *pb.Work }{
		state.RoleRollout:   {&pb.Work{Episodes: 1}, &pb.Work{Jobs: 1, Batch: true, Publish: true}},
		state.RoleVerifier:  {&pb.Work{Jobs: 1}, &pb.Work{Episodes: 1, Batch: true, Publish: true}},
		state.RoleTrainer:   {&pb.Work{Batch: true}, &pb.Work{Episodes: 1, Jobs: 1, Publish: true}},
		state.RolePublisher: {&pb.Work{Publish: true}, &pb.Work{Episodes: 1, Jobs: 1, Batch: true}},
		state.RoleEngine:    {&pb.Work{}, nil},
	} {
		t.Run(role, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocal()
				s, end := start(t, l, func(cfg *SessionConfig) { cfg.Role = role })
				defer end()
				woken := func(ch <-chan struct{}) bool {
					synctest.Wait()
					select {
					case <-ch:
						return true
					default:
						return false
					}
				}
				changed := s.Changed()
				l.changes <- &pb.Change{Revision: 1, State: "running", Work: &pb.Work{}}
				require.True(t, woken(changed), "the run's state")
				changed = s.Changed()
				l.changes <- &pb.Change{Revision: 2, State: "running", Work: c.wakes}
				require.True(t, woken(changed))
				if c.sleeps != nil {
					changed = s.Changed()
					l.changes <- &pb.Change{Revision: 3, State: "running", Work: c.sleeps}
					require.False(t, woken(changed))
				}
				changed = s.Changed()
				l.changes <- &pb.Change{Revision: 4, State: "succeeded", Work: &pb.Work{}}
				require.True(t, woken(changed))
			})
		})
	}
}

// What is news goes at once, also while a heartbeat without news waits at the coordinator.
func TestSessionRenewsAtOnceWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		var version atomic.Int64
		s, end := start(t, l, func(c *SessionConfig) { c.Role, c.Version = state.RoleEngine, version.Load })
		defer end()
		l.set(func() { l.keep = time.Second })
		time.Sleep(ttl/8 + 100*time.Millisecond) // one is waiting now
		synctest.Wait()
		require.True(t, l.last().Patient)
		version.Store(7)
		asked := time.Now()
		s.Renew()
		synctest.Wait()
		require.Zero(t, time.Since(asked))
		require.False(t, l.last().Patient)
		require.Equal(t, int64(7), l.now().Nodes()[0].Version)
		time.Sleep(10 * ttl)
		require.True(t, l.last().Patient)
		require.Equal(t, raftlog.NodeState_NODE_STATE_READY, l.now().Nodes()[0].State)
		require.Equal(t, int64(7), l.now().Nodes()[0].Version)
	})
}
