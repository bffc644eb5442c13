package envpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/rlfleet/rlfleet/coordinator/lease"
)

// Pool is the Host of one machine and tier. A slot goes empty → preparing →
// warm → leased → scrubbing → warm again, or is destroyed, or quarantined when
// even its destruction failed.
type Pool struct {
	cfg    Config
	rt     Runtime
	log    *slog.Logger
	guard  lease.Guard
	quotas map[Quota]*semaphore.Weighted

	ctx    context.Context // of background work; ends in Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ends   sync.WaitGroup // sandboxes that are being ended
	wake   chan struct{}  // tells refill that the pool may be short of warm slots

	mu          sync.Mutex          // guards all below
	sandboxes   map[string]*sandbox // by resource, from claim to end
	ended       *fences             // of resources whose sandbox ended
	warm        []Slot              // last in, first out: the warmest caches first
	slots       int                 // existing or being made, the quarantined ones apart
	quarantined []Slot
	states      map[SnapshotID]*state
	kept        int   // states that are not leaving
	stateBytes  int64 // of those
	uses        int64 // orders states by their last use
	count       struct{ claims, resets, destroyed, sealed int64 }
	closed      bool
}

var _ Host = (*Pool)(nil)

// errClosed ends what is open when the host closes.
var errClosed = fmt.Errorf("host is closed: %w", ErrUnknown)

// NewHost starts a host over a runtime, which it owns from then on. When ctx
// ends so does its background work; Close is still due.
func NewHost(ctx context.Context, cfg Config, rt Runtime) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{
		cfg: cfg, rt: rt, log: log.With("tier", rt.Tier()),
		quotas: map[Quota]*semaphore.Weighted{
			QuotaAgent: semaphore.NewWeighted(int64(cfg.MaxAgents)), QuotaVerifier: semaphore.NewWeighted(int64(cfg.MaxVerifiers)),
		},
		wake:      make(chan struct{}, 1),
		sandboxes: map[string]*sandbox{}, ended: newFences(cfg.RememberFences), states: map[SnapshotID]*state{},
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.wg.Go(p.refill)
	return p, nil
}

// Close ends all sandboxes and the runtime. It returns when nothing is left,
// or with what is.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	open := make([]*sandbox, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		open = append(open, s)
	}
	p.mu.Unlock()
	for _, s := range open {
		s.cancel(errClosed) // all first: what one gives back must not serve another
	}
	for _, s := range open {
		p.end(ctx, s, errClosed)
	}
	var errs []error
	for _, s := range open {
		errs = append(errs, s.wait(ctx))
	}
	p.ends.Wait()
	p.cancel()
	p.wg.Wait()
	p.mu.Lock()
	left := append(p.warm, p.quarantined...)
	p.warm, p.quarantined = nil, nil
	p.mu.Unlock()
	for _, s := range left {
		errs = append(errs, s.Close(ctx))
	}
	errs = append(errs, p.rt.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("envpool: close: %w", err)
	}
	return nil
}

// Stats describes the host now.
func (p *Pool) Stats(context.Context) (Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{
		Tier: p.rt.Tier(), Warm: len(p.warm), Quarantined: len(p.quarantined),
		MaxAgents: p.cfg.MaxAgents, MaxVerifiers: p.cfg.MaxVerifiers,
		Claims: p.count.claims, Resets: p.count.resets, Destroyed: p.count.destroyed, Advisory: p.rt.Advisory(),
	}
	for _, s := range p.sandboxes {
		if s.slot == nil {
			continue
		}
		st.Leased++
		if s.quota == QuotaVerifier {
			st.Verifiers++
		} else {
			st.Agents++
		}
	}
	return st, nil
}

// fences remembers the fences of the last n ended resources.
type fences struct {
	n     int
	order []string // oldest first
	by    map[string]lease.Fence
}

func newFences(n int) *fences { return &fences{n: n, by: map[string]lease.Fence{}} }

// add remembers an end and returns the resources that are forgotten for it.
func (f *fences) add(resource string, fence lease.Fence) (forgotten []string) {
	if old, ok := f.by[resource]; !ok {
		f.order = append(f.order, resource)
	} else if old > fence {
		return nil
	}
	f.by[resource] = fence
	for len(f.by) > f.n {
		oldest := f.order[0]
		f.order = f.order[1:]
		delete(f.by, oldest)
		forgotten = append(forgotten, oldest)
	}
	return forgotten
}
