package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// offered is one sample that was offered to a step, with what the ledger says of it.
type offered struct {
	Sample
	group   *groupStats
	bin     int32 // offset of its first token among those of the batch
	scored  bool  // Advantage is set; a sample without a reward has none (trap T27)
	lagMax  int64
	lagMean float64 // over the tokens in the loss
	outcome trajectory.LedgerOutcome
}

// rows reads steps of one batch. Each shard is fetched and checked once.
type rows struct {
	store  store.ObjectStore
	run    string
	shards map[policy.Digest]*trajectory.Reader[trajectory.Step]
}

func newRows(s store.ObjectStore, run string) *rows {
	return &rows{store: s, run: run, shards: map[policy.Digest]*trajectory.Reader[trajectory.Step]{}}
}

// episode returns the messages of an attempt after checking that they are all
// there and that they are its own.
func (r *rows) episode(ctx context.Context, id string, ref trajectory.Ref) ([]trajectory.Step, error) {
	shard, open := r.shards[ref.Object]
	if !open {
		var err error
		if shard, err = trajectory.Load[trajectory.Step](ctx, r.store, r.run, ref.Object); err != nil {
			return nil, unreadable(id, ref, err)
		}
		r.shards[ref.Object] = shard
	}
	steps, err := shard.Read(ref)
	if err != nil {
		return nil, unreadable(id, ref, err)
	}
	if len(steps) == 0 || steps[0].EpisodeID != id {
		return nil, fmt.Errorf("trainer: read episode %s: the rows that the log names are not its own: %w", id, ErrBatch)
	}
	if err := trajectory.CheckSteps(steps); err != nil {
		return nil, fmt.Errorf("trainer: read episode %s: %w: %w", id, ErrBatch, err)
	}
	return steps, nil
}

func unreadable(id string, ref trajectory.Ref, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("trainer: read episode %s: shard %s is missing from the store: restore the object from a copy: %w: %w", id, ref.Object, ErrBatch, err)
	}
	if errors.Is(err, trajectory.ErrCorrupt) {
		return fmt.Errorf("trainer: read episode %s: shard %s is damaged: restore the object from a copy: %w: %w", id, ref.Object, ErrBatch, err)
	}
	return fmt.Errorf("trainer: read episode %s: %w", id, err)
}

// bound checks invariant I2 on the stored spans: no token of step n is older
// than version n − S, and none is newer than n.
func bound(step int64, lagMax int64, id string, steps []trajectory.Step) error {
	for i := range steps {
		for _, s := range steps[i].PolicySpans {
			if lag := step - int64(s.PolicyVersion); lag > lagMax || lag < 0 {
				return fmt.Errorf("trainer: step %d: episode %s message %d has %d tokens of version %d, and lag.max is %d: %w",
					step, id, i, s.Length, s.PolicyVersion, lagMax, ErrBound)
			}
		}
	}
	return nil
}

// taken is all that a step knows of its batch.
type taken struct {
	groups  []*groupStats // by id
	samples []offered     // by group, member and branch
	created time.Time     // when the newest message was complete
}

// intake reads what a batch offers to its step: one sample for each branch of
// each member that is in the loss.
func (t *step) intake(ctx context.Context, b *raftlog.TakeBatchResult) (taken, error) {
	var out taken
	read := newRows(t.store, t.cfg.Run)
	for i, g := range sortedGroups(b.Groups) {
		if i > 0 && g.Group == out.groups[i-1].id {
			return out, fmt.Errorf("trainer: step %d has group %d twice: %w", b.Step, g.Group, ErrBatch)
		}
		stats, err := t.group(g)
		if err != nil {
			return out, err
		}
		out.groups = append(out.groups, stats)
		for i, m := range stats.members {
			if !outcome.Disposition(m.Disposition).InLoss() {
				continue
			}
			steps, err := t.member(ctx, read, b.Step, g.Group, m)
			if err != nil {
				return out, err
			}
			for j := range steps {
				if at := steps[j].CreatedAt; at.After(out.created) {
					out.created = at
				}
			}
			out.samples = append(out.samples, t.samples(b.Step, g, stats, i, steps)...)
		}
	}
	out.place()
	return out, nil
}

// member returns the messages of a member that is to be trained on.
func (t *step) member(ctx context.Context, read *rows, n int64, group uint64, m *raftlog.BatchMember) ([]trajectory.Step, error) {
	id := trajectory.EpisodeID(t.cfg.Run, group, m.Index, m.Attempt)
	if m.Sealed.GetSteps() == nil {
		return nil, fmt.Errorf("trainer: step %d: episode %s is to be trained on but has no rows: %w", n, id, ErrBatch)
	}
	steps, err := read.episode(ctx, id, refOf(m.Sealed.Steps))
	if err != nil {
		return nil, err
	}
	return steps, bound(n, t.cfg.LagMax, id, steps)
}

// place gives each trained sample its offset in the one bin of the one rank.
func (t *taken) place() {
	at := int32(0)
	for i := range t.samples {
		if o := &t.samples[i]; o.trained() {
			o.bin = at
			at += int32(len(o.Tokens))
		}
	}
}

// samples turns the branches of an episode into samples. A sampled message that
// several branches share is trained on in the first only (trap T26), and an
// episode has one unit of weight, however many branches it has (trap T25).
func (t *step) samples(n int64, g *raftlog.BatchGroup, stats *groupStats, member int, steps []trajectory.Step) []offered {
	branches := trajectory.Branches(steps)
	if t.cfg.contextOnly(g.Env) {
		branches = branches[:1]
	}
	out := make([]offered, 0, len(branches))
	trained := 0
	for _, b := range branches {
		o := offered{group: stats, outcome: trajectory.Trained}
		o.Episode, o.Group, o.Index, o.Branch = steps[0].EpisodeID, g.Group, stats.members[member].Index, b.ID
		o.fill(n, b, steps)
		switch a := stats.advantages[member]; {
		case a.Valid:
			o.Advantage, o.scored = a.Value, true
		case stats.alone && stats.members[member].Reward != nil:
			o.outcome = trajectory.DroppedZeroAdv
		default:
			o.outcome = trajectory.DroppedInfra // no reward is not a reward of 0
		}
		if len(o.Tokens) > t.context && o.outcome == trajectory.Trained {
			o.outcome = trajectory.DroppedOverlong // never cut in the middle (trap T40)
		}
		if o.trained() {
			trained++
		}
		out = append(out, o)
	}
	for i := range out {
		if out[i].trained() {
			out[i].Weight = 1 / float64(trained)
		}
	}
	return out
}

// trained reports whether the sample goes to the backend.
func (o *offered) trained() bool { return o.outcome == trajectory.Trained && o.LossTokens() > 0 }

// fill sets tokens, loss mask, behaviour log-probabilities and lag of a branch.
func (o *offered) fill(n int64, b trajectory.Branch, steps []trajectory.Step) {
	var lag int64
	for at, i := range b.Steps {
		s := &steps[i]
		if s.TokenIDs == nil {
			// The engine gave no ids: what follows was sampled from a context that is not known.
			o.outcome = trajectory.DroppedInfra
			continue
		}
		o.Tokens = append(o.Tokens, s.TokenIDs...)
		if at < b.Fresh {
			o.LossMask = append(o.LossMask, make([]bool, len(s.TokenIDs))...)
			continue
		}
		o.LossMask = append(o.LossMask, s.LossMask...)
		o.Logprobs = append(o.Logprobs, s.Logprobs...)
		for _, span := range s.PolicySpans {
			behind := n - int64(span.PolicyVersion)
			o.lagMax = max(o.lagMax, behind)
			lag += behind * int64(span.Length)
		}
	}
	if len(o.Logprobs) > 0 {
		o.lagMean = float64(lag) / float64(len(o.Logprobs))
	}
}

func refOf(r *raftlog.RowRef) trajectory.Ref {
	return trajectory.Ref{Object: policy.Digest(r.GetObject()), Batch: r.GetBatch(), Row: r.GetRow(), Rows: r.GetRows()}
}
