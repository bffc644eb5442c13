package envpool

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/rlfleet/rlfleet/coordinator/lease"
)

// sandbox is one claim, from its request to its end.
type sandbox struct {
	name  string
	fence lease.Fence
	quota Quota

	ready  chan struct{} // closed when the claim has succeeded or failed
	err    error         // of the claim; read after ready
	slot   Slot          // set under Pool.mu; read after ready
	state  *state
	limits Limits

	ctx    context.Context // ends, with a cause, when the sandbox does
	cancel context.CancelCauseFunc
	turn   chan struct{} // holds one value while no call runs
	end    sync.Once
	gone   chan struct{} // closed when nothing of it is left
}

// wait returns when nothing of the sandbox is left.
func (s *sandbox) wait(ctx context.Context) error {
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("envpool: end %s: %w", s.name, ctx.Err())
	}
}

// Claim implements Host.
func (p *Pool) Claim(ctx context.Context, c Claim) (Handle, error) {
	h := Handle{Sandbox: c.Lease.Resource, Fence: c.Lease.Fence}
	if err := p.checkClaim(c); err != nil {
		return Handle{}, err
	}
	for {
		s, mine, err := p.enter(ctx, c)
		if err != nil {
			return Handle{}, err
		}
		if mine {
			if err := p.fill(ctx, s, c); err != nil {
				return Handle{}, err
			}
			if cause := context.Cause(s.ctx); cause != nil { // ended as it began
				return Handle{}, fmt.Errorf("envpool: claim %s: %w", s.name, cause)
			}
			return h, nil
		}
		if s.fence != c.Lease.Fence { // an older one; it goes first
			p.end(ctx, s, lease.ErrFenced)
			if err := s.wait(ctx); err != nil {
				return Handle{}, err
			}
			continue
		}
		select {
		case <-s.ready:
			if s.err == nil && s.ctx.Err() == nil {
				return h, nil
			}
			// It is ending; or whoever asked first gave up, and this caller tries itself.
			if err := s.wait(ctx); err != nil {
				return Handle{}, err
			}
		case <-ctx.Done():
			return Handle{}, fmt.Errorf("envpool: claim %s: %w: %w", s.name, ErrNoSlot, ctx.Err())
		}
	}
}

func (p *Pool) checkClaim(c Claim) error {
	if c.Lease.Resource == "" {
		return fmt.Errorf("envpool: claim without a resource: %w", ErrInvalid)
	}
	if p.quotas[c.Quota] == nil {
		return fmt.Errorf("envpool: claim %s: quota %q is unknown: %w", c.Lease.Resource, c.Quota, ErrInvalid)
	}
	if (c.Quota == QuotaAgent && p.cfg.MaxAgents == 0) || (c.Quota == QuotaVerifier && p.cfg.MaxVerifiers == 0) {
		return fmt.Errorf("envpool: claim %s: this host gives no sandboxes to quota %q: %w", c.Lease.Resource, c.Quota, ErrInvalid)
	}
	if err := c.Limits.validate(); err != nil {
		return err
	}
	if err := p.guard.Check(c.Lease.Resource, c.Lease.Fence); err != nil {
		return fmt.Errorf("envpool: claim: %w", err)
	}
	return nil
}

// enter returns the sandbox of the claim's resource, or adds one that is the caller's to fill.
func (p *Pool) enter(ctx context.Context, c Claim) (s *sandbox, mine bool, err error) {
	name := c.Lease.Resource
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, fmt.Errorf("envpool: claim %s: host is closed: %w", name, ErrNoSlot)
	}
	if s := p.sandboxes[name]; s != nil {
		return s, false, nil
	}
	if f, ok := p.ended.by[name]; ok && c.Lease.Fence <= f {
		return nil, false, fmt.Errorf("envpool: claim %s: fence %d has ended: %w", name, c.Lease.Fence, ErrUnknown)
	}
	st := p.states[c.Snapshot]
	if st == nil || st.leaving != nil {
		return nil, false, fmt.Errorf("envpool: claim %s: snapshot %s: %w", name, c.Snapshot, ErrUnknown)
	}
	st.refs++
	p.touchLocked(st)
	s = &sandbox{
		name: name, fence: c.Lease.Fence, quota: c.Quota, state: st, limits: c.Limits.or(p.cfg.Limits),
		ready: make(chan struct{}), gone: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	// The claim's context may end before the sandbox does; only its values live on.
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.sandboxes[name] = s
	return s, true, nil
}

// fill waits for the quota and makes the sandbox.
func (p *Pool) fill(ctx context.Context, s *sandbox, c Claim) error {
	ctx, stop := s.bind(ctx)
	defer stop()
	err := p.quotas[s.quota].Acquire(ctx, 1)
	if err != nil {
		err = fmt.Errorf("envpool: claim %s: %w: %w", s.name, ErrNoSlot, err)
	} else if err = p.mount(ctx, s, c); err != nil {
		p.quotas[s.quota].Release(1)
		err = fmt.Errorf("envpool: claim %s: %w", s.name, err)
	}
	if cause := context.Cause(s.ctx); err != nil && cause != nil {
		err = fmt.Errorf("envpool: claim %s: %w", s.name, cause)
	}
	s.err = err
	if err != nil {
		p.mu.Lock()
		p.leaveLocked(s)
		p.mu.Unlock()
		s.cancel(err)
		close(s.ready)
		close(s.gone)
		return err
	}
	s.turn <- struct{}{}
	close(s.ready)
	return nil
}

// mount takes a slot and gives it the claim's files. A slot that dies of it is
// replaced. When several do, the cause is the host's (no memory for mounts, a
// cgroup that takes no limits) and says nothing of the claim: the kind is ErrNoSlot.
func (p *Pool) mount(ctx context.Context, s *sandbox, c Claim) error {
	select {
	case <-s.state.ready:
	case <-ctx.Done():
		return fmt.Errorf("snapshot %s: %w", c.Snapshot, ctx.Err())
	}
	if s.state.err != nil {
		return fmt.Errorf("snapshot %s: %w", c.Snapshot, ErrUnknown)
	}
	use := Use{Snapshot: c.Snapshot, HostName: hostName(c.Entropy), Limits: s.limits}
	const attempts = 3
	var err error
	for range attempts {
		var slot Slot
		if slot, err = p.take(ctx); err != nil {
			return err
		}
		if err = slot.Mount(ctx, use); err == nil {
			p.mu.Lock()
			s.slot = slot
			p.count.claims++
			p.mu.Unlock()
			return nil
		}
		if !errors.Is(err, ErrEnvironment) {
			p.reset(context.WithoutCancel(ctx), slot)
			return err
		}
		p.log.Warn("sandbox died while it was prepared", "err", err)
		p.destroy(ctx, slot)
	}
	return fmt.Errorf("%w: %d in a row died while they were prepared: %v", ErrNoSlot, attempts, err) //nolint:errorlint // not its kind
}

// hostName is what a fork sees as its identity; it tells the seed to nobody.
func hostName(entropy uint64) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "rlfleet sandbox %d", entropy)
	return fmt.Sprintf("sb-%012x", h.Sum64()&(1<<48-1))
}

// bind returns a context that ends with the caller's or with the sandbox.
func (s *sandbox) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// end begins the sandbox's end, once; cause is what its later and present calls return.
func (p *Pool) end(ctx context.Context, s *sandbox, cause error) {
	s.end.Do(func() {
		s.cancel(cause)
		ctx := context.WithoutCancel(ctx) // whoever ends a sandbox may stop waiting for it
		p.ends.Go(func() { p.finish(ctx, s) })
	})
}

// finish waits for the call in flight, which is being killed, and resets the slot.
func (p *Pool) finish(ctx context.Context, s *sandbox) {
	<-s.ready
	if s.err != nil {
		return // fill has cleaned up
	}
	<-s.turn
	p.reset(ctx, s.slot)
	p.mu.Lock()
	p.leaveLocked(s)
	forgotten := p.ended.add(s.name, s.fence)
	for _, f := range forgotten {
		if p.sandboxes[f] == nil {
			p.guard.Forget(f)
		}
	}
	p.mu.Unlock()
	p.quotas[s.quota].Release(1)
	close(s.gone)
}

func (p *Pool) leaveLocked(s *sandbox) {
	delete(p.sandboxes, s.name)
	s.state.refs--
}
