package trainer

import (
	"context"
	"fmt"
	"slices"

	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// step makes one version out of the version before and a batch. It knows no
// clock and no coordinator: the same inputs give the same bytes.
type step struct {
	cfg     Config
	store   store.ObjectStore
	backend Backend
	context int // most tokens of a sample
}

// result is what a step leaves in the store, still unnamed by the log.
type result struct {
	next    checkpoint
	ledger  policy.Digest
	metrics map[string]float64
}

func newStep(cfg Config, s store.ObjectStore, b Backend) *step {
	return &step{cfg: cfg, store: s, backend: b}
}

// load puts the backend at a committed version.
func (t *step) load(ctx context.Context, digest policy.Digest) (checkpoint, error) {
	c, files, err := loadCheckpoint(ctx, t.store, t.cfg.Run, digest)
	if err != nil {
		return c, err
	}
	if err := t.backend.Load(files); err != nil {
		return c, fmt.Errorf("trainer: load checkpoint of version %d (%s): %w: %w", c.manifest.Version, digest, ErrCheckpoint, err)
	}
	t.context = t.backend.Context()
	return c, nil
}

// run trains the batch on top of from, which the backend holds, and stores
// ledger and checkpoint.
func (t *step) run(ctx context.Context, b *raftlog.TakeBatchResult, from checkpoint, lineage int64) (result, error) {
	batch, err := t.intake(ctx, b)
	if err != nil {
		return result{}, err
	}
	measured, err := t.train(ctx, b.Step, batch.samples)
	if err != nil {
		return result{}, err
	}
	shard, err := t.ledger(b.Step, lineage, batch)
	if err != nil {
		return result{}, err
	}
	if err := t.store.Put(ctx, store.ObjectKey(t.cfg.Run, shard.Digest, shard.Table.Kind()), shard.Data); err != nil {
		return result{}, fmt.Errorf("trainer: write ledger of step %d: %w", b.Step, err)
	}
	from.manifest.Lineage = lineage
	next, err := t.write(ctx, from, shard.Digest)
	if err != nil {
		return result{}, err
	}
	return result{next: next, ledger: shard.Digest, metrics: measure(batch, measured)}, nil
}

// train makes the update. A batch without a single token in the loss leaves the
// weights as they are.
func (t *step) train(ctx context.Context, n int64, samples []offered) (Metrics, error) {
	batch := Batch{Step: n}
	for _, o := range samples {
		if o.trained() {
			batch.Samples = append(batch.Samples, o.Sample)
		}
	}
	if len(batch.Samples) == 0 {
		return Metrics{}, ctx.Err()
	}
	m, err := t.backend.Train(ctx, batch)
	if err != nil {
		return m, fmt.Errorf("trainer: train step %d: %w", n, err)
	}
	return m, nil
}

// write stores the backend's state as the version after from.
func (t *step) write(ctx context.Context, from checkpoint, ledger policy.Digest) (checkpoint, error) {
	files, err := t.backend.Files()
	if err != nil {
		return checkpoint{}, fmt.Errorf("trainer: write checkpoint of version %d: %w", from.manifest.Version+1, err)
	}
	m, data := from.next(files, ledger)
	if err := failpoint.Err(failpoint.CheckpointBefore); err != nil {
		return checkpoint{}, err
	}
	digest, err := save(ctx, t.store, t.cfg.Run, m, data)
	failpoint.At(failpoint.CheckpointAfter)
	return checkpoint{digest: digest, manifest: m}, err
}

// sortedGroups returns the groups by id. The batch names them by deadline, and
// an order that depends on nothing but the groups is one thing less to record.
func sortedGroups(groups []*raftlog.BatchGroup) []*raftlog.BatchGroup {
	out := slices.Clone(groups)
	slices.SortFunc(out, func(a, b *raftlog.BatchGroup) int {
		switch {
		case a.Group < b.Group:
			return -1
		case a.Group > b.Group:
			return 1
		}
		return 0
	})
	return out
}
