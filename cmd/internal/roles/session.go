package roles

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// node says what a session registers as.
type node struct {
	role, name, address string
	agents, verifiers   int32
	version             func() int64                        // engines: version served
	serves              func() []lease.Token                // hosts: leases of their sandboxes
	ended               func(resource string, fence uint64) // hosts: a lease that is lost
}

func leaseFence(f uint64) lease.Fence { return lease.Fence(f) }

// Session is a registered node: it renews what is held and says what is lost.
type Session struct {
	p    *Process
	node node
	ref  *raftlog.NodeRef

	mu      sync.Mutex
	held    map[string]*hold
	changed chan struct{}
	fenced  chan struct{}
	beat    chan struct{}
	lanes   chan *lane
	hb      *lane
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

type hold struct {
	token lease.Token
	lost  func()
	waits string
	since time.Time
}

type lane struct {
	client string
	seq    uint64
}

func (p *Process) session(ctx context.Context, n node) (*Session, error) {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{p: p, node: n, held: map[string]*hold{}, changed: make(chan struct{}), fenced: make(chan struct{}), beat: make(chan struct{}, 1), lanes: make(chan *lane, 8), cancel: cancel}
	for i := range 8 {
		s.lanes <- &lane{client: fmt.Sprintf("%s-%d-%d", n.name, time.Now().UnixNano(), i)}
	}
	s.hb = &lane{client: fmt.Sprintf("%s-%d-hb", n.name, time.Now().UnixNano())}
	if err := s.register(ctx); err != nil {
		cancel()
		return nil, err
	}
	s.wg.Go(func() { s.heartbeats(base) })
	s.wg.Go(func() { s.watch(base) })
	return s, nil
}

func (s *Session) register(ctx context.Context) error {
	ref := &raftlog.NodeRef{Role: s.node.role, Name: s.node.name, Incarnation: uint64(time.Now().UnixNano())}
	_, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref, Address: s.node.address, Agents: s.node.agents, Verifiers: s.node.verifiers}}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ref = ref
	s.mu.Unlock()
	return nil
}

func (s *Session) propose(ctx context.Context, op *raftlog.Op) (*raftlog.Result, error) {
	var l *lane
	select {
	case l = <-s.lanes:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { s.lanes <- l }()
	return s.on(ctx, l, op)
}

func (s *Session) on(ctx context.Context, l *lane, op *raftlog.Op) (*raftlog.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	l.seq++
	for {
		r, err := s.p.Coordinator.Propose(ctx, &raftlog.Proposal{Client: l.client, Seq: l.seq, Op: op})
		if err == nil {
			switch r.Code {
			case raftlog.Code_CODE_OK:
				return r, nil
			case raftlog.Code_CODE_FENCED:
				return nil, fmt.Errorf("%s: %w", r.Message, lease.ErrFenced)
			}
			return nil, fmt.Errorf("roles: %s: %s", r.Code, r.Message)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("roles: coordinator: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Session) heartbeats(ctx context.Context) {
	t := time.NewTicker(2500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.beat:
		}
		h := &raftlog.Heartbeat{Node: s.Node(), EngineVersion: -1}
		if s.node.version != nil {
			h.EngineVersion = s.node.version()
		}
		if s.node.serves != nil {
			for _, tk := range s.node.serves() {
				h.Held = append(h.Held, &raftlog.Held{Resource: tk.Resource, Fence: uint64(tk.Fence)})
			}
		}
		s.mu.Lock()
		for _, x := range s.held {
			h.Held = append(h.Held, &raftlog.Held{Resource: x.token.Resource, Fence: uint64(x.token.Fence), WaitsFor: x.waits, WaitsNs: int64(time.Since(x.since))})
		}
		s.mu.Unlock()
		r, err := s.on(ctx, s.hb, &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}})
		if err != nil {
			continue
		}
		for _, l := range r.GetHeartbeat().GetLost() {
			if s.node.ended != nil {
				s.node.ended(l.Resource, l.Fence)
			}
			s.lose(l.Resource, l.Fence)
		}
		if r.GetHeartbeat().GetFenced() {
			_ = s.register(ctx)
			s.mu.Lock()
			close(s.fenced)
			s.fenced = make(chan struct{})
			s.mu.Unlock()
		}
	}
}

func (s *Session) lose(resource string, fence uint64) {
	s.mu.Lock()
	x := s.held[resource]
	if x != nil && uint64(x.token.Fence) == fence {
		delete(s.held, resource)
	} else {
		x = nil
	}
	s.mu.Unlock()
	if x != nil {
		x.lost()
	}
}

func (s *Session) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := s.p.Coordinator.Changes(ctx, &pb.ChangesRequest{Run: s.p.Run})
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				s.mu.Lock()
				close(s.changed)
				s.changed = make(chan struct{})
				s.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Session) Renew() {
	select {
	case s.beat <- struct{}{}:
	default:
	}
}

func (s *Session) Node() *raftlog.NodeRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ref
}

func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Session) Fenced() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced
}

func (s *Session) Hold(t lease.Token, lost func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[t.Resource] = &hold{token: t, lost: lost, since: time.Now()}
}

func (s *Session) Drop(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, resource)
}

func (s *Session) Waits(resource, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.held[resource]; x != nil {
		x.waits, x.since = what, time.Now()
	}
}

func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: s.Node()}}})
	s.cancel()
	s.wg.Wait()
	return err
}

func (s *Session) LeaseEpisodes(ctx context.Context, run string, n int) (*raftlog.LeaseEpisodesResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: s.Node(), Run: run, Count: int32(n)}}})
	return r.GetLeaseEpisodes(), err
}

func (s *Session) SealEpisodes(ctx context.Context, run string, items []*raftlog.SealItem) (*raftlog.ItemsResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: s.Node(), Run: run, Items: items}}})
	return r.GetItems(), err
}

func (s *Session) FailEpisodes(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: s.Node(), Run: run, Items: items}}})
	return r.GetItems(), err
}

func (s *Session) LeaseJobs(ctx context.Context, n int) (*raftlog.LeaseJobsResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: s.Node(), Count: int32(n)}}})
	return r.GetLeaseJobs(), err
}

func (s *Session) SettleJobs(ctx context.Context, run string, items []*raftlog.SettleItem) (*raftlog.ItemsResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: s.Node(), Run: run, Items: items}}})
	return r.GetItems(), err
}

func (s *Session) FailJobs(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_FailJobs{FailJobs: &raftlog.FailJobs{Node: s.Node(), Run: run, Items: items}}})
	return r.GetItems(), err
}

func (s *Session) JoinGang(ctx context.Context, run string) (*raftlog.JoinGangResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: s.Node(), Run: run}}})
	return r.GetJoinGang(), err
}

func (s *Session) TakeBatch(ctx context.Context, run string, epoch, fence uint64) (*raftlog.TakeBatchResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: s.Node(), Run: run, Epoch: epoch, Fence: fence}}})
	return r.GetTakeBatch(), err
}

func (s *Session) CommitStep(ctx context.Context, c *raftlog.CommitStep) (*raftlog.CommitStepResult, error) {
	c.Node = s.Node()
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: c}})
	return r.GetCommitStep(), err
}

func (s *Session) LeasePublish(ctx context.Context, run string) (*raftlog.LeasePublishResult, error) {
	r, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: s.Node(), Run: run}}})
	return r.GetLeasePublish(), err
}

func (s *Session) FinishPublish(ctx context.Context, f *raftlog.FinishPublish) error {
	f.Node = s.Node()
	_, err := s.propose(ctx, &raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: f}})
	return err
}
