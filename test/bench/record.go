package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trajectory"
)

// shards are the rows of a run as its workers grouped them: what one worker sealed at a time, and what a verifier settled at a time.
type shards struct {
	episodes map[string][]recorded
	verdicts map[string][]trajectory.Verdict
	n        int // episodes
}

type recorded struct {
	row   trajectory.Episode
	steps []trajectory.Step
}

// readShards reads back what a run recorded.
func readShards(ctx context.Context, run *trajectory.Run) (*shards, error) {
	s := &shards{episodes: map[string][]recorded{}, verdicts: map[string][]trajectory.Verdict{}}
	for _, a := range sealedIn(run) {
		row, err := run.EpisodeRow(ctx, a)
		if err != nil {
			return nil, err
		}
		steps, err := run.StepRows(ctx, a)
		if err != nil {
			return nil, err
		}
		s.episodes[a.Sealed.Steps.Object] = append(s.episodes[a.Sealed.Steps.Object], recorded{row, steps})
		s.n++
		v, is, err := run.VerdictRow(ctx, a)
		if err != nil {
			return nil, err
		}
		if is {
			s.verdicts[a.Settled.VerdictRow.Object] = append(s.verdicts[a.Settled.VerdictRow.Object], v)
		}
	}
	if s.n == 0 {
		return nil, errors.New("the run has recorded nothing")
	}
	return s, nil
}

// recording records a run's own episodes again, in shards of the same sizes,
// until at least 2,000 are recorded. It returns milliseconds of processor time
// an episode, for its messages, its row and its verdict, and how many episodes the run had.
func (b *bench) recording(ctx context.Context, run *trajectory.Run) (ms float64, episodes int, err error) {
	all, err := readShards(ctx, run)
	if err != nil {
		return 0, 0, err
	}
	dir := filepath.Join(b.work, "runs", "record")
	if err := os.RemoveAll(dir); err != nil {
		return 0, 0, err
	}
	objects, err := file.Open(dir)
	if err != nil {
		return 0, 0, err
	}
	runtime.GC()
	before, err := own()
	if err != nil {
		return 0, 0, err
	}
	done := 0
	for done < 2000 {
		meta := trajectory.Meta{Run: run.ID, Writer: "bench", Created: time.Now().UTC()} // other bytes in each pass
		if err := all.put(ctx, objects, meta); err != nil {
			return 0, 0, err
		}
		done += all.n
	}
	after, err := own()
	if err != nil {
		return 0, 0, err
	}
	b.note("record: %d episodes in shards of %.1f on average", done, float64(all.n)/float64(len(all.episodes)))
	return milli(after-before) / float64(done), all.n, nil
}

// put encodes and stores all shards once, as workers and verifiers do.
func (s *shards) put(ctx context.Context, objects store.ObjectStore, meta trajectory.Meta) error {
	for _, shard := range s.episodes {
		rec := trajectory.NewRecording(meta)
		for _, e := range shard {
			if err := rec.Add(e.row, e.steps); err != nil {
				return err
			}
		}
		sealed, err := rec.Close()
		if err != nil {
			return err
		}
		for _, x := range []trajectory.Shard{sealed.Steps, sealed.Episodes} {
			if _, err := store.PutObject(ctx, objects, meta.Run, x.Table.Kind(), x.Data); err != nil {
				return err
			}
		}
	}
	for _, shard := range s.verdicts {
		w := trajectory.NewWriter[trajectory.Verdict](meta)
		for _, v := range shard {
			if err := w.Append(v); err != nil {
				return err
			}
		}
		x, err := w.Close()
		if err != nil {
			return err
		}
		if _, err := store.PutObject(ctx, objects, meta.Run, x.Table.Kind(), x.Data); err != nil {
			return err
		}
	}
	return nil
}

// sealedIn returns the attempts that were sealed, by group and member.
func sealedIn(r *trajectory.Run) []*trajectory.Attempt {
	var out []*trajectory.Attempt
	for _, a := range r.Attempts() {
		if a.Sealed != nil {
			out = append(out, a)
		}
	}
	return out
}
