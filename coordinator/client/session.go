package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// SessionConfig says what a node registers as. Role, Name and Logger are needed.
type SessionConfig struct {
	Role, Name string
	Address    string // where others reach it; empty: in this process
	Run        string // whose changes wake Changed; empty: every run's
	Agents     int    // hosts: sandboxes for agents
	Verifiers  int    // hosts: sandboxes for verifiers
	Labels     map[string]string
	Logger     *slog.Logger

	// Version is what an engine serves now, -1 for none; nil for other roles.
	Version func() int64
	// Serves lists leases of others that a host works for; Ended is told of those that are no longer current.
	Serves func() []lease.Token
	Ended  func(resource string, fence lease.Fence)

	// Margin is how long before a lease's end its holder stops; 0 is a fifth of the TTL.
	Margin time.Duration
}

// Session is a registered node and what it holds. It renews everything held
// four times in a TTL. A lease that is lost, to another holder or because its
// renewals were not acknowledged, is said once to whoever holds it. A node that
// the coordinator has given up registers again under a higher incarnation.
type Session struct {
	client *Client
	cfg    SessionConfig
	lane   *lane // of registrations and heartbeats, which one goroutine makes
	ttl    time.Duration
	margin time.Duration

	beat chan struct{} // asks for a heartbeat at once
	kick chan struct{} // tells the watchdog that what is held has changed
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards everything below
	ref      *raftlog.NodeRef
	fence    lease.Fence // of the registration
	held     map[string]*hold
	owed     map[string]int   // Drops still to come of holds that are over already
	granted  map[string]grant // leases granted and not held yet
	draining bool
	changed  chan struct{} // closed at the next change
	fenced   chan struct{} // closed when the node has registered again
}

type hold struct {
	token lease.Token
	stop  time.Time // when the holder must have stopped
	lost  func()
	waits string
	since time.Time // of waits
}

// grant remembers when a lease was asked for: its TTL counts from there at the latest.
type grant struct {
	fence uint64
	sent  time.Time
}

// NewSession registers a node and starts renewing. ctx bounds the registration.
func (c *Client) NewSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	if cfg.Role == "" || cfg.Name == "" || cfg.Logger == nil {
		return nil, fmt.Errorf("client: session: Role, Name and Logger are needed: %w", ErrInvalid)
	}
	s := &Session{
		client: c, cfg: cfg, lane: c.newLane(),
		beat: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		held: map[string]*hold{}, owed: map[string]int{}, granted: map[string]grant{},
		changed: make(chan struct{}), fenced: make(chan struct{}),
	}
	if err := s.register(ctx); err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.work.Go(func() { s.renew(base) })
	s.work.Go(func() { s.watchdog(base) })
	s.work.Go(func() { s.follow(base, c.Watch(base, cfg.Run)) })
	return s, nil
}

// Close gives the node's registration back: its leases end at once. Work that
// is still held is told that it is lost.
func (s *Session) Close(ctx context.Context) error {
	s.stop()
	s.work.Wait()
	err := s.client.Deregister(ctx, s.Node())
	for _, h := range s.takeAll() {
		h.lost()
	}
	if errors.Is(err, lease.ErrFenced) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// register lets the node in under an incarnation above every one of this name before.
func (s *Session) register(ctx context.Context) error {
	ctx, cancel := s.client.limit(ctx)
	defer cancel()
	s.mu.Lock()
	ref := &raftlog.NodeRef{Role: s.cfg.Role, Name: s.cfg.Name, Incarnation: max(uint64(time.Now().UnixNano()), s.ref.GetIncarnation()+1)}
	s.mu.Unlock()
	res, err := s.registerAs(ctx, ref)
	if errors.Is(err, lease.ErrFenced) { // the clock was set back since this name registered last
		if known := s.client.incarnation(ctx, ref); known >= ref.Incarnation {
			ref.Incarnation = known + 1
			res, err = s.registerAs(ctx, ref)
		}
	}
	if err != nil {
		return fmt.Errorf("client: register %s %s: %w", ref.Role, ref.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ref, s.fence = ref, lease.Fence(res.GetRegister().GetFence())
	s.ttl = time.Duration(res.GetRegister().GetTtlNs())
	if s.margin = s.cfg.Margin; s.margin <= 0 || s.margin >= s.ttl {
		s.margin = s.ttl / 5
	}
	return nil
}

func (s *Session) registerAs(ctx context.Context, ref *raftlog.NodeRef) (*raftlog.Result, error) {
	return s.client.propose(ctx, s.lane, &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
		Node: ref, Address: s.cfg.Address, Agents: int32(s.cfg.Agents), Verifiers: int32(s.cfg.Verifiers), Labels: s.cfg.Labels,
	}}})
}

// incarnation returns the highest incarnation that the coordinator knows of a node's name; 0 when it knows none or does not answer.
func (c *Client) incarnation(ctx context.Context, ref *raftlog.NodeRef) uint64 {
	v, err := c.View(ctx, "", pb.Kind_KIND_NODE)
	if err != nil {
		return 0
	}
	for _, r := range v.Records {
		if n := r.GetNode(); n != nil && n.Role == ref.Role && n.Name == ref.Name {
			return n.Incarnation
		}
	}
	return 0
}

// Node returns the registered node. Its incarnation rises when it has to register again.
func (s *Session) Node() *raftlog.NodeRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ref
}

// Changed returns a channel that is closed at the next change that may give
// this role something to do, and when the node has registered again.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Fenced returns a channel that is closed when the coordinator had given the
// node up and it has registered again: everything it held is gone.
func (s *Session) Fenced() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced
}

// Hold lists a lease in the heartbeats until Drop. lost is called once if it is
// lost before that; it must not wait for the session. Every Hold has one Drop,
// also when it was lost: the resource may have been granted to this node again
// by then, and that Drop is not the new holder's.
func (s *Session) Hold(t lease.Token, lost func()) {
	now := time.Now()
	s.mu.Lock()
	sent := now
	if g, known := s.granted[t.Resource]; known && g.fence == uint64(t.Fence) {
		sent = g.sent
		delete(s.granted, t.Resource)
	}
	old := s.takeLocked(t.Resource)
	s.held[t.Resource] = &hold{token: t, stop: t.StopAt(sent, s.margin), lost: lost, since: now}
	s.mu.Unlock()
	if old != nil { // the earlier attempt on this resource is over
		old.lost()
	}
	wake(s.kick)
}

// Drop ends a Hold.
func (s *Session) Drop(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owed[resource] > 0 {
		if s.owed[resource]--; s.owed[resource] == 0 {
			delete(s.owed, resource)
		}
		return
	}
	delete(s.held, resource)
}

// takeLocked ends a hold that was not dropped; nil when nothing is held.
func (s *Session) takeLocked(resource string) *hold {
	h := s.held[resource]
	if h != nil {
		delete(s.held, resource)
		s.owed[resource]++
	}
	return h
}

// Waits notes what the work on a held resource waits for: model, tool,
// environment, store, coordinator; "" when it does not.
func (s *Session) Waits(resource, what string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[resource]; h != nil && h.waits != what {
		h.waits, h.since = what, now
	}
}

// Drain says in the heartbeats that this node wants no more work.
func (s *Session) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.Renew()
}

// Renew sends a heartbeat now; an engine calls it when it serves another version.
func (s *Session) Renew() { wake(s.beat) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask commits an operation of this node. Being refused as fenced is looked into at once.
func (s *Session) ask(ctx context.Context, op *raftlog.Op) (*raftlog.Result, time.Time, error) {
	sent := time.Now()
	res, err := s.client.Propose(ctx, op)
	if errors.Is(err, lease.ErrFenced) {
		s.Renew()
	}
	return res, sent, err
}

// remember notes when a lease was asked for, until Hold.
func (s *Session) remember(resource string, fence uint64, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, g := range s.granted { // granted and never held
		if time.Since(g.sent) > s.ttl {
			delete(s.granted, r)
		}
	}
	s.granted[resource] = grant{fence: fence, sent: sent}
}
