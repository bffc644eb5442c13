package roles

import (
	"context"
	"errors"
	"sync"
)

// RunAll runs every role in this process until ctx ends or one fails; the first
// failure is returned, not what it brought about. The engine, the host and the
// publisher outlive the workers, so that running episodes can finish.
func (p *Process) RunAll(ctx context.Context) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var under, over sync.WaitGroup
	workers, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	var first error
	guard := func(g *sync.WaitGroup, run func(context.Context) error, ctx context.Context) {
		g.Go(func() {
			err := run(ctx)
			if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return
			}
			once.Do(func() { first = err })
			cancel() // one role that cannot go on ends the process; its lease brings the work back
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
	<-workers.Done()
	over.Wait()
	stop()
	under.Wait()
	return first
}
