package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/internal/batch"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// recorder turns finished episodes into shards and seals them.
type recorder struct {
	w     *Worker
	batch *batch.Batcher[*finished]
}

func newRecorder(w *Worker) *recorder {
	r := &recorder{w: w}
	r.batch = batch.New(batch.Config{Period: w.cfg.Flush, Size: w.cfg.ShardBytes, Idle: w.slots.Idle}, r.seal)
	return r
}

func (r *recorder) add(f *finished) {
	r.w.deps.Coordinator.Waits(lease.Episode(f.grant.Run, f.grant.Group, f.grant.Index), "seal")
	size := 0
	for i := range f.steps {
		size += 1024 + 8*len(f.steps[i].TokenIDs)
	}
	r.batch.Add(f, size)
}

// seal stores the batch's shards and commits them. What cannot be stored or
// committed is reported as lost; its lease brings it back.
func (r *recorder) seal(ctx context.Context, done []*finished) {
	w := r.w
	began := time.Now()
	rec := trajectory.NewRecording(trajectory.Meta{Run: w.run.ID, Writer: w.deps.Build, Created: began.UTC()})
	kept := done[:0]
	for _, f := range done {
		f.row.CommittedAt = began.UTC()
		if err := rec.Add(f.row, f.steps); err != nil {
			w.deps.Log.Error("record episode", "err", err) // a bug of ours: never a result
			w.fail(ctx, f.grant, "upload_failed", err)
			continue
		}
		kept = append(kept, f)
	}
	if len(kept) == 0 {
		return
	}
	sealed, err := rec.Close()
	if err == nil {
		err = r.put(ctx, sealed)
	}
	if err != nil {
		w.deps.Log.Error("store shards", "err", err)
		for _, f := range kept {
			w.fail(ctx, f.grant, "upload_failed", err)
		}
		return
	}
	w.deps.Metrics.recordSeconds.Observe(time.Since(began).Seconds())
	items := make([]*raftlog.SealItem, len(kept))
	for i, f := range kept {
		s := f.item.Sealed
		s.Steps, s.Episode = ref(sealed.Refs[i].Steps), ref(sealed.Refs[i].Row)
		lowest, highest, any := versions(f.steps)
		if any {
			s.MinVersion, s.MaxVersion = int64(lowest), int64(highest)
		}
		items[i] = f.item
	}
	r.commit(ctx, kept, items)
}

func (r *recorder) put(ctx context.Context, s trajectory.Sealed) error {
	if err := failpoint.Err(failpoint.ShardPutBefore); err != nil {
		return err
	}
	for _, shard := range []trajectory.Shard{s.Steps, s.Episodes} {
		if _, err := store.PutObject(ctx, r.w.deps.Store, r.w.run.ID, shard.Table.Kind(), shard.Data); err != nil {
			return err
		}
	}
	return nil
}

// commit names the shards in the log. Only now are the episodes sealed.
func (r *recorder) commit(ctx context.Context, done []*finished, items []*raftlog.SealItem) {
	w := r.w
	failpoint.At(failpoint.ShardPutAfter)
	res, err := w.deps.Coordinator.SealEpisodes(ctx, w.run.ID, items)
	failpoint.At(failpoint.SealAfter)
	if err != nil {
		w.deps.Log.Warn("seal episodes: their leases decide", "episodes", len(items), "err", err)
	}
	for i, f := range done {
		resource := lease.Episode(f.grant.Run, f.grant.Group, f.grant.Index)
		if err != nil {
			w.deps.Coordinator.Drop(resource)
			continue
		}
		switch code := res.Codes[i]; code {
		case raftlog.Code_CODE_OK:
			if err := w.deps.Journal.Sealed(f.grant.Run, f.grant.Group, f.grant.Index, f.grant.Attempt, policy.Digest(items[i].Sealed.Steps.Object)); err != nil {
				w.deps.Log.Error("journal", "err", err)
			}
			w.deps.Metrics.sealed.Inc()
			w.trouble.Passed()
			w.deps.Coordinator.Drop(resource)
		case raftlog.Code_CODE_FENCED:
			w.deps.Log.Info("seal refused: the lease was lost", "group", f.grant.Group, "index", f.grant.Index)
			w.deps.Coordinator.Drop(resource)
		default:
			w.fail(ctx, f.grant, "upload_failed", fmt.Errorf("seal refused: %s", res.Messages[i]))
		}
	}
}

func ref(x trajectory.Ref) *raftlog.RowRef {
	return &raftlog.RowRef{Object: string(x.Object), Batch: x.Batch, Row: x.Row, Rows: x.Rows}
}

// versions returns the range over all sampled tokens.
func versions(steps []trajectory.Step) (lowest, highest policy.Version, any bool) {
	for i := range steps {
		lo, hi, is := policy.Range(steps[i].VersionSpans())
		if !is {
			continue
		}
		if !any || lo < lowest {
			lowest = lo
		}
		if !any || hi > highest {
			highest = hi
		}
		any = true
	}
	return lowest, highest, any
}
