package roles

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// RunAll runs every role in this process until ctx ends or one fails. The
// engine, the host and the publisher outlive the workers, so that running
// episodes can finish.
func (p *Process) RunAll(ctx context.Context) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var under, over errgroup.Group
	workers, cancel := context.WithCancel(ctx)
	defer cancel()
	guard := func(g *errgroup.Group, run func(context.Context) error, ctx context.Context) {
		g.Go(func() error {
			err := run(ctx)
			if err != nil {
				cancel() // one role that cannot go on ends the process; its lease brings the work back
			}
			return err
		})
	}
	guard(&under, p.RunHost, base)
	guard(&under, p.RunEngine, base)
	guard(&under, p.RunPublisher, base)
	n := p.Plan.Experiment.Spec.Rollout.Workers
	for i := range n {
		guard(&over, func(ctx context.Context) error { return p.RunRollout(ctx, i, n) }, workers)
	}
	guard(&over, p.RunVerifier, workers)
	guard(&over, p.RunTrainer, workers)
	over.Go(func() error { <-workers.Done(); return nil })
	err := over.Wait()
	stop()
	if uerr := under.Wait(); err == nil {
		err = uerr
	}
	return err
}
