// Package publish switches the engines of a run to a new policy version in two phases.
//
// A Publisher leases the newest committed version, stages it on every engine at
// once, checks by probe prompts that what was loaded is a policy and no wild
// jump from the one before, then flips the engines and tells the coordinator
// which of them serve it. An engine that misses a deadline is left out, not
// waited for: the coordinator fences it, and it comes back by registering again.
//
// Only a failed check rejects a version. Engines that do not answer are the
// platform's trouble: the lease is let go and the version tried again.
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Coordinator is what a publisher asks of the coordinator; coordinator/client has it.
type Coordinator interface {
	Node() *raftlog.NodeRef
	LeasePublish(ctx context.Context, run string) (*raftlog.LeasePublishResult, error)
	FinishPublish(ctx context.Context, f *raftlog.FinishPublish) error
	// Hold lists a lease in the heartbeats until Drop; lost is called once if it is lost.
	Hold(t lease.Token, lost func())
	Drop(resource string)
	Waits(resource, what string)
	// Changed returns a channel that is closed at the next change of what there is to do.
	Changed() <-chan struct{}
}

var _ Coordinator = (*client.Session)(nil)

// Config says how a version is checked and how long engines have.
type Config struct {
	Run         string    // empty: any
	Probes      [][]int32 // prompts that every version is scored on, each of at least two tokens; none: nothing is checked but that engines answer
	MaxMeanDiff float64   // largest step of the policy, as a multiple of the calibration (see drift)
	Stage       time.Duration
	Score       time.Duration
	Flip        time.Duration
	Recheck     time.Duration // longest wait for a change before looking again
}

// DefaultConfig returns the usual settings. Together the three deadlines stay
// below the coordinator's deadlines.publish.
func DefaultConfig() Config {
	return Config{MaxMeanDiff: 3, Stage: 45 * time.Second, Score: 20 * time.Second, Flip: 10 * time.Second, Recheck: 5 * time.Second}
}

// Validate refuses settings that cannot work.
func (c Config) Validate() error {
	switch {
	case c.MaxMeanDiff <= 0:
		return errors.New("publish: probe.maxMeanDiff must be positive")
	case c.Stage <= 0 || c.Score <= 0 || c.Flip <= 0 || c.Recheck <= 0:
		return errors.New("publish: deadlines must be positive")
	}
	for i, p := range c.Probes {
		if len(p) < 2 {
			return fmt.Errorf("publish: probe %d has %d tokens: a score needs two", i, len(p))
		}
	}
	return nil
}

// Deps are the parts that a Publisher works with.
type Deps struct {
	Coordinator Coordinator
	Engine      func(node *raftlog.Node) (engine.Engine, error) // reaches a registered engine
	Log         *slog.Logger
}

// Publisher publishes versions, one at a time.
type Publisher struct {
	cfg  Config
	deps Deps
	runs map[string]*memory // by run
}

// memory is what a publisher knows of a run from the versions it has published.
// It may be lost: it is rebuilt from the engines, and the calibration starts anew.
type memory struct {
	live     int64 // version that scores are of; -1 for none
	scores   [][]float32
	steps    float64 // largest accepted step, nats; see drift
	version  int64   // version that refusals are of
	refusals int     // times in a row that every engine answered that it cannot load it
}

// New returns a publisher; Run starts it.
func New(cfg Config, deps Deps) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, deps: deps, runs: map[string]*memory{}}, nil
}

// Run publishes until ctx ends, which is no error.
func (p *Publisher) Run(ctx context.Context) error {
	c := p.deps.Coordinator
	for {
		changed := c.Changed()
		grant, err := c.LeasePublish(ctx, p.cfg.Run)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrInvalid):
			return fmt.Errorf("publish: lease a version: %w", err)
		case err != nil: // fenced, until the session has registered again, or no coordinator to be reached
			p.deps.Log.Warn("publish", "state", "no lease", "err", err)
		case grant.Ready:
			done, err := p.publish(ctx, grant)
			if err != nil {
				return err
			}
			if done {
				continue
			}
		}
		t := time.NewTimer(p.cfg.Recheck)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// publish works on one grant. It returns true when the log has its end, false
// when the lease was let go or lost, and an error for a configuration that can't work.
func (p *Publisher) publish(ctx context.Context, g *raftlog.LeasePublishResult) (bool, error) {
	c, resource := p.deps.Coordinator, lease.Publish(g.Run)
	held, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.Hold(lease.Token{
		Resource: resource, Holder: c.Node().GetName(), Incarnation: c.Node().GetIncarnation(),
		Fence: lease.Fence(g.Fence), TTL: time.Duration(g.TtlNs),
	}, func() { stop(lease.ErrFenced) })
	defer c.Drop(resource)
	log := p.deps.Log.With("run", g.Run, "policy_version", g.Version, "fence", g.Fence)

	end, err := p.attempt(held, g)
	switch {
	case ctx.Err() != nil:
		return false, nil
	case held.Err() != nil:
		log.Warn("publish", "state", "lease lost")
		return false, nil
	case errors.Is(err, errProbes):
		return false, err
	case err != nil:
		log.Warn("publish", "state", "tried again later", "err", err)
		return false, nil
	}
	end.Node, end.Run, end.Version, end.Fence = c.Node(), g.Run, g.Version, g.Fence
	if err := c.FinishPublish(held, end); err != nil {
		log.Warn("publish", "state", "not recorded", "err", err)
		return false, nil
	}
	log.Info("publish", "accepted", end.Accepted, "reason", end.Reason, "served", end.Served)
	return true, nil
}

// attempt stages, checks and flips. An error means that no check failed and that
// no engine was switched as far as is known: the version is tried again.
func (p *Publisher) attempt(ctx context.Context, g *raftlog.LeasePublishResult) (*raftlog.FinishPublish, error) {
	c, resource := p.deps.Coordinator, lease.Publish(g.Run)
	m := p.memory(g)
	c.Waits(resource, "engines: stage")
	staged, err := p.stage(ctx, g, m)
	if err != nil {
		return ended(err)
	}
	failpoint.At(failpoint.PublishStageAfter)
	c.Waits(resource, "engines: probe")
	checked, scores, step, err := p.check(ctx, g, m, staged)
	if err != nil {
		return ended(err)
	}
	// The last look before anything changes: with a lost lease another publisher
	// may be switching the engines already (invariant I6).
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.Waits(resource, "engines: flip")
	served, err := p.flip(ctx, g, checked)
	failpoint.At(failpoint.PublishFlipAfter)
	if err != nil {
		return nil, err
	}
	m.live, m.scores, m.steps = g.Version, scores, max(m.steps, step)
	return &raftlog.FinishPublish{Accepted: true, Served: served}, nil
}

// rejection is a check that failed.
type rejection struct{ reason string }

func (r rejection) Error() string { return r.reason }

// ended turns a failed check into a rejection for the log and leaves other errors alone.
func ended(err error) (*raftlog.FinishPublish, error) {
	var r rejection
	if errors.As(err, &r) {
		return &raftlog.FinishPublish{Reason: r.reason}, nil
	}
	return nil, err
}

func (p *Publisher) memory(g *raftlog.LeasePublishResult) *memory {
	m := p.runs[g.Run]
	if m == nil {
		m = &memory{live: -1}
		p.runs[g.Run] = m
	}
	if m.version != g.Version {
		m.version, m.refusals = g.Version, 0
	}
	return m
}
