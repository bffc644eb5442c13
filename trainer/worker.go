package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// errLost says that the gang belongs to somebody else now, or that the log went
// on without this worker: what it holds in memory is not what is committed.
var errLost = errors.New("gang was lost")

// Worker is the training gang of a run, of one member.
type Worker struct {
	cfg  Config
	deps Deps
	step *step
}

// NewWorker returns a worker; Run starts it.
func NewWorker(cfg Config, deps Deps) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Worker{cfg: cfg, deps: deps, step: newStep(cfg, deps.Store, deps.Backend)}, nil
}

// Run trains until the run needs no more steps or ctx ends; both return nil.
// Losing the gang is no error: it joins again and starts from the committed
// head. ErrBound, ErrBatch and ErrCheckpoint are final, since the next gang
// would be given the same batch.
func (w *Worker) Run(ctx context.Context) error {
	for {
		changed := w.deps.Coordinator.Changed()
		ended, err := w.gang(ctx)
		switch {
		case ctx.Err() != nil || (err == nil && ended):
			return nil
		case errors.Is(err, errLost):
			w.deps.Log.Info("gang", "state", "waits to join", "run", w.cfg.Run, "err", err)
		case err != nil:
			return err
		}
		if err := w.wait(ctx, changed); err != nil {
			return nil
		}
	}
}

// wait returns when something changed since changed was taken, or at the latest
// after the recheck period; an error only when ctx ends.
func (w *Worker) wait(ctx context.Context, changed <-chan struct{}) error {
	t := time.NewTimer(w.cfg.Recheck)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// gang joins and trains until the gang is lost or the run has ended.
func (w *Worker) gang(ctx context.Context) (ended bool, err error) {
	c := w.deps.Coordinator
	grant, err := c.JoinGang(ctx, w.cfg.Run)
	if err != nil {
		if refused(err) {
			return false, fmt.Errorf("trainer: join the gang of %s: %w", w.cfg.Run, err)
		}
		// A run that has ended takes no gang either; only TakeBatch tells which it is.
		if b, berr := c.TakeBatch(ctx, w.cfg.Run, 0, 0); berr == nil && b.Ended {
			return true, nil
		}
		return false, fmt.Errorf("%w: %w", errLost, err)
	}
	resource := lease.Gang(w.cfg.Run)
	held, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.Hold(lease.Token{
		Resource: resource, Holder: c.Node().GetName(), Incarnation: c.Node().GetIncarnation(),
		Fence: lease.Fence(grant.Fence), TTL: time.Duration(grant.TtlNs),
	}, func() { stop(errLost) })
	defer c.Drop(resource)

	ended, err = w.loop(held, grant)
	if errors.Is(context.Cause(held), errLost) {
		return false, fmt.Errorf("%w: epoch %d", errLost, grant.Epoch)
	}
	return ended, err
}

// loop trains step after step from the head that the grant names. ctx ends when
// the gang's lease does.
func (w *Worker) loop(ctx context.Context, grant *raftlog.JoinGangResult) (ended bool, err error) {
	c, resource := w.deps.Coordinator, lease.Gang(w.cfg.Run)
	c.Waits(resource, "store")
	head, err := w.step.load(ctx, policy.Digest(grant.Manifest))
	if err != nil {
		return false, err
	}
	if int64(head.manifest.Version) != grant.Head {
		return false, fmt.Errorf("trainer: load checkpoint: %s is version %d, and the log says %d: %w", head.digest, head.manifest.Version, grant.Head, ErrCheckpoint)
	}
	w.deps.Log.Info("gang", "state", "running", "run", w.cfg.Run, "epoch", grant.Epoch, "fence", grant.Fence, "policy_version", grant.Head)
	since := time.Now()
	for {
		changed := c.Changed()
		b, err := c.TakeBatch(ctx, w.cfg.Run, grant.Epoch, grant.Fence)
		switch {
		case err != nil && lost(err):
			return false, fmt.Errorf("%w: %w", errLost, err)
		case err != nil && refused(err):
			return false, fmt.Errorf("trainer: take a batch of %s: %w", w.cfg.Run, err)
		case err != nil:
			w.deps.Log.Warn("take a batch", "run", w.cfg.Run, "err", err)
			if err := w.wait(ctx, changed); err != nil {
				return false, err
			}
			continue
		case b.Ended:
			return true, nil
		case b.Step != int64(head.manifest.Version):
			return false, fmt.Errorf("%w: the log is at step %d, this gang at %d", errLost, b.Step, head.manifest.Version)
		case !b.Ready:
			c.Waits(resource, b.WaitsFor)
			if err := w.wait(ctx, changed); err != nil {
				return false, err
			}
			continue
		}
		c.Waits(resource, "")
		waited := time.Since(since)
		if head, err = w.commit(ctx, grant, b, head, waited); err != nil {
			return false, err
		}
		since = time.Now()
	}
}

// commit trains one batch and commits the version it makes.
func (w *Worker) commit(ctx context.Context, grant *raftlog.JoinGangResult, b *raftlog.TakeBatchResult, head checkpoint, waited time.Duration) (checkpoint, error) {
	start := time.Now()
	r, err := w.step.run(ctx, b, head, grant.Lineage)
	if err != nil {
		return head, err
	}
	timed(r.metrics, waited, time.Since(start))
	err = w.propose(ctx, &raftlog.CommitStep{
		Node: w.deps.Coordinator.Node(), Run: w.cfg.Run, Epoch: grant.Epoch, Fence: grant.Fence, Step: b.Step,
		Manifest: string(r.next.digest), Ledger: string(r.ledger), Full: r.next.manifest.Full, Metrics: r.metrics,
	})
	if err != nil {
		return head, err
	}
	w.deps.Log.Info("step committed", "run", w.cfg.Run, "step", b.Step, "policy_version", r.next.manifest.Version,
		"manifest", r.next.digest, "reward_mean", r.metrics[RewardMean])
	if w.deps.OnCommit != nil {
		commit := Commit{Step: b.Step, Version: r.next.manifest.Version, Manifest: r.next.digest, Ledger: r.ledger, Metrics: r.metrics}
		for _, g := range sortedGroups(b.Groups) {
			commit.Groups = append(commit.Groups, g.Group)
		}
		w.deps.OnCommit(commit)
	}
	return r.next, nil
}

// propose commits a step. Without an answer it may have happened or not: the
// same commit is proposed again, which the log takes for the first one, until
// there is an answer or the gang is lost.
func (w *Worker) propose(ctx context.Context, s *raftlog.CommitStep) error {
	for {
		changed := w.deps.Coordinator.Changed()
		_, err := w.deps.Coordinator.CommitStep(ctx, s)
		failpoint.At(failpoint.CommitAfter)
		switch {
		case err == nil:
			return nil
		case lost(err):
			return fmt.Errorf("%w: %w", errLost, err)
		case refused(err):
			return fmt.Errorf("trainer: commit step %d of %s: %w", s.Step, w.cfg.Run, err)
		}
		w.deps.Log.Warn("commit step", "run", w.cfg.Run, "step", s.Step, "err", err)
		if err := w.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// lost reports whether an answer means that the gang is not this worker's, or
// that the log is not where this worker takes it to be.
func lost(err error) bool {
	return errors.Is(err, lease.ErrFenced) || errors.Is(err, client.ErrConflict)
}

// refused reports an answer that asking again would not change. What is left
// beside it and lost is a coordinator that cannot be reached for now.
func refused(err error) bool {
	return errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrInvalid)
}
