package trajectory

import (
	"context"
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// rows reads rows of a run's shards. It keeps the shards that were used last
// open: episodes of one shard tend to be asked for together.
type rows struct {
	store    store.ObjectStore
	run      string
	opened   shelf[Step]
	episodes shelf[Episode]
	verdicts shelf[Verdict]
}

const shelfSize = 8 // shards

// shelf keeps the shards of one table that were used last, newest at the end.
type shelf[R Row] []*Reader[R]

func newRows(s store.ObjectStore, run string) *rows { return &rows{store: s, run: run} }

// read returns the rows that a reference of the log names.
func read[R Row](ctx context.Context, r *rows, on *shelf[R], ref *raftlog.RowRef) ([]R, error) {
	want := refOf(ref)
	for i, rd := range *on {
		if rd.Object() == want.Object {
			*on = append(append((*on)[:i:i], (*on)[i+1:]...), rd)
			return rd.Read(want)
		}
	}
	rd, err := Load[R](ctx, r.store, r.run, want.Object)
	if err != nil {
		return nil, err
	}
	if len(*on) >= shelfSize {
		*on = (*on)[1:]
	}
	*on = append(*on, rd)
	return rd.Read(want)
}

// refOf is a reference as the log has it.
func refOf(r *raftlog.RowRef) Ref {
	return Ref{Object: policy.Digest(r.GetObject()), Batch: r.GetBatch(), Row: r.GetRow(), Rows: r.GetRows()}
}

// RowRef is a reference as the log has it.
func (r Ref) RowRef() *raftlog.RowRef {
	return &raftlog.RowRef{Object: string(r.Object), Batch: r.Batch, Row: r.Row, Rows: r.Rows}
}

func (r *rows) steps(ctx context.Context, a *Attempt) ([]Step, error) {
	if a.Sealed == nil {
		return nil, fmt.Errorf("trajectory: %s was not sealed: %w", a.ID, store.ErrNotFound)
	}
	return read(ctx, r, &r.opened, a.Sealed.Steps)
}

func (r *rows) episode(ctx context.Context, a *Attempt) (Episode, error) {
	if a.Sealed == nil {
		return Episode{}, fmt.Errorf("trajectory: %s was not sealed: %w", a.ID, store.ErrNotFound)
	}
	return one(read(ctx, r, &r.episodes, a.Sealed.Episode))
}

func (r *rows) verdict(ctx context.Context, a *Attempt) (Verdict, bool, error) {
	if a.Settled.GetVerdictRow().GetObject() == "" {
		return Verdict{}, false, nil
	}
	v, err := one(read(ctx, r, &r.verdicts, a.Settled.VerdictRow))
	return v, err == nil, err
}

func (r *rows) ledger(ctx context.Context, object policy.Digest) ([]LedgerRow, error) {
	rd, err := Load[LedgerRow](ctx, r.store, r.run, object)
	if err != nil {
		return nil, err
	}
	return rd.All()
}

func one[R Row](rows []R, err error) (R, error) {
	var zero R
	if err != nil {
		return zero, err
	}
	if len(rows) != 1 {
		return zero, fmt.Errorf("trajectory: %s: a reference names %d rows, want 1: %w", TableOf[R](), len(rows), ErrInvalid)
	}
	return rows[0], nil
}
