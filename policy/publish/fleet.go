package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// refusals is how many times in a row every engine must answer that it cannot
// load a version until that counts as a failed check. Once could be a store
// that was away for a moment; for ever would be a wait that nobody sees.
const refusals = 3

// target is an engine that is to be switched.
type target struct {
	name   string
	engine engine.Engine
}

// each calls f for every target at once, all with the same deadline, and returns
// the errors in the order of the targets.
func each(ctx context.Context, limit time.Duration, targets []target, f func(ctx context.Context, i int, t target) error) []error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = f(ctx, i, t) })
	}
	wg.Wait()
	return errs
}

// keep returns the targets without an error and logs the others.
func (p *Publisher) keep(what string, targets []target, errs []error) []target {
	var out []target
	for i, t := range targets {
		if errs[i] != nil {
			p.deps.Log.Warn("engine left out", "engine", t.name, "at", what, "err", errs[i])
			continue
		}
		out = append(out, t)
	}
	return out
}

// errProbes reports probes that no engine can score: the configuration is wrong, and trying again would not help.
var errProbes = errors.New("probes do not fit the policy")

// answered reports whether an engine refused, and did not just fail to answer in time or at all.
func answered(err error) bool {
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) &&
		errors.Is(err, engine.ErrVersion)
}

// stage loads the version on all engines of the grant and returns those that have it.
func (p *Publisher) stage(ctx context.Context, g *raftlog.LeasePublishResult, m *memory) ([]target, error) {
	var targets []target
	for _, n := range g.Engines {
		e, err := p.deps.Engine(n)
		if err != nil {
			p.deps.Log.Warn("engine left out", "engine", n.Name, "at", "dial", "err", err)
			continue
		}
		targets = append(targets, target{name: n.Name, engine: e})
	}
	errs := each(ctx, p.cfg.Stage, targets, func(ctx context.Context, _ int, t target) error {
		return t.engine.Stage(ctx, policy.Version(g.Version), policy.Digest(g.Manifest))
	})
	staged := p.keep("stage", targets, errs)
	if len(staged) > 0 || ctx.Err() != nil {
		return staged, ctx.Err()
	}
	refused := len(targets) == len(g.Engines) && len(targets) > 0
	for _, err := range errs {
		refused = refused && answered(err)
	}
	if !refused {
		m.refusals = 0
		return nil, fmt.Errorf("publish: stage version %d: none of %d engines answered: %w", g.Version, len(g.Engines), errors.Join(errs...))
	}
	if m.refusals++; m.refusals < refusals {
		return nil, fmt.Errorf("publish: stage version %d: no engine can load it: %w", g.Version, errs[0])
	}
	return nil, rejection{fmt.Sprintf("no engine can load it, tried %d times: %v", m.refusals, errs[0])}
}

// flip makes the version live on the engines and returns the names of those that
// say they serve it, in order.
func (p *Publisher) flip(ctx context.Context, g *raftlog.LeasePublishResult, targets []target) ([]string, error) {
	v := policy.Version(g.Version)
	errs := each(ctx, p.cfg.Flip, targets, func(ctx context.Context, _ int, t target) error {
		if err := t.engine.Flip(ctx, v); err != nil {
			return err
		}
		now, ok, err := t.engine.Serving(ctx)
		if err == nil && (!ok || now != v) {
			err = fmt.Errorf("publish: engine serves version %d after the flip to %d", now, v)
		}
		return err
	})
	var served []string
	for _, t := range p.keep("flip", targets, errs) {
		served = append(served, t.name)
	}
	if len(served) == 0 {
		return nil, fmt.Errorf("publish: flip to version %d: no engine answered: %w", v, errors.Join(errs...))
	}
	return served, nil
}
