package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/internal/slots"
	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// Worker plays episodes of one run.
type Worker struct {
	run   Run
	deps  Deps
	cfg   Config
	slots *slots.Slots
	rec   *recorder

	trouble slots.Trouble // failures of the platform
}

// NewWorker returns a worker; Run starts it.
func NewWorker(run Run, deps Deps, cfg Config) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Metrics == nil {
		deps.Metrics = NewMetrics(nil)
	}
	w := &Worker{run: run, deps: deps, cfg: cfg, slots: slots.New(cfg.Concurrency)}
	w.rec = newRecorder(w)
	return w, nil
}

// Run leases and plays episodes until ctx ends; then running episodes may
// finish within Config.Drain and everything finished is sealed.
func (w *Worker) Run(ctx context.Context) error {
	// Episodes outlive ctx by the drain period.
	play, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	w.slots.OnEnd(w.rec.batch.Nudge)
	var recording sync.WaitGroup
	recording.Go(func() { w.rec.batch.Run(play) })

	err := w.lease(ctx, play)

	bound := time.AfterFunc(w.cfg.Drain, stop) // of what is left to play, store and report
	defer bound.Stop()
	w.slots.Wait()
	w.rec.batch.Close()
	recording.Wait()
	if err == nil {
		err = w.trouble.Err()
	}
	return err
}

// lease is the loop that asks for episodes when there is room for them.
func (w *Worker) lease(ctx, play context.Context) error {
	for {
		if err := w.trouble.Err(); err != nil {
			return err
		}
		changed, freed, free := w.deps.Coordinator.Changed(), w.slots.Freed(), w.slots.Free()
		granted := 0
		if free > 0 {
			res, err := w.ask(ctx, play, free)
			switch {
			case errors.Is(err, lease.ErrFenced):
				// The session registers again; its change wakes us.
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				w.deps.Log.Warn("lease episodes", "err", err)
			default:
				granted = len(res.Grants)
				for _, g := range res.Grants {
					w.start(play, g, time.Duration(res.TtlNs))
				}
			}
		}
		if err := slots.Pause(ctx, max(w.cfg.Every, w.trouble.Pause())); err != nil {
			return nil
		}
		if granted > 0 && granted == free {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-freed:
		case <-time.After(5 * time.Second): // a change that was lost must not stop the worker
		}
	}
}

// lateAnswer is how long an answer is waited for that is on its way when a worker stops.
const lateAnswer = 2 * time.Second

// ask leases episodes. It outlives ctx for a moment: what an answer on its way
// grants would be lost with it, and is played as other running episodes are.
func (w *Worker) ask(ctx, play context.Context, free int) (*raftlog.LeaseEpisodesResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	actx, cancel := context.WithCancel(play)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if slots.Pause(actx, lateAnswer) == nil {
			cancel()
		}
	})
	defer stop()
	return w.deps.Coordinator.LeaseEpisodes(actx, w.run.ID, free)
}

func (w *Worker) start(ctx context.Context, g *raftlog.EpisodeGrant, ttl time.Duration) {
	node := w.deps.Coordinator.Node()
	token := lease.Token{
		Resource: lease.Episode(g.Run, g.Group, g.Index), Holder: node.GetName(),
		Incarnation: node.GetIncarnation(), Fence: lease.Fence(g.Fence), TTL: ttl,
	}
	ectx, cancel := context.WithCancel(ctx)
	w.deps.Coordinator.Hold(token, cancel)
	w.deps.Metrics.active.Inc()
	w.slots.Go(func() {
		defer cancel()
		w.play(ectx, g, token)
		w.deps.Metrics.active.Dec()
	})
}

// fail reports an attempt that ended without a result. A full disk ends the
// worker: every attempt would fail, and only people can help.
func (w *Worker) fail(ctx context.Context, g *raftlog.EpisodeGrant, reason string, cause error) {
	if class, _ := outcome.Class(outcome.EndReason(reason)); class == outcome.ClassPlatform {
		w.trouble.Failed()
	}
	switch {
	case errors.Is(cause, store.ErrFull):
		w.trouble.End(cause)
	case errors.Is(cause, syscall.ENOSPC):
		w.trouble.End(fmt.Errorf("%w: %w", store.ErrFull, cause))
	}
	defer w.deps.Coordinator.Drop(lease.Episode(g.Run, g.Group, g.Index))
	w.deps.Metrics.failed.WithLabelValues(reason).Inc()
	w.deps.Log.Info("attempt lost", "group", g.Group, "index", g.Index, "attempt", g.Attempt, "reason", reason, "err", cause)
	res, err := w.deps.Coordinator.FailEpisodes(ctx, g.Run, []*raftlog.FailItem{{
		Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Reason: reason, Message: fmt.Sprint(cause),
	}})
	if err != nil && ctx.Err() == nil {
		w.deps.Log.Warn("report a lost attempt: its lease will expire", "group", g.Group, "index", g.Index, "err", err)
	}
	if len(res.GetCodes()) == 1 && res.Codes[0] == raftlog.Code_CODE_INVALID {
		w.deps.Log.Error("report a lost attempt", "group", g.Group, "index", g.Index, "err", res.Messages[0])
	}
}
