package trainer

import (
	"context"
	"fmt"
	"math"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// Replay trains step n again from the store alone: from the checkpoint of
// version n, the recorded rows and verdicts, and the ledger, whose every row
// must come out again. It returns the digest of the manifest that this gives;
// with the backend settings, the binary and the architecture of the run it is
// the committed one. Nothing is written. cfg.Run names the run.
//
// It returns ErrBatch when the rows do not give the ledger, and
// store.ErrNotFound when the run has no such step.
func Replay(ctx context.Context, s store.ObjectStore, cfg Config, backend Backend, n int64) (policy.Digest, error) {
	run, err := trajectory.OpenRun(ctx, s, cfg.Run)
	if err != nil {
		return "", fmt.Errorf("trainer: replay step %d: %w", n, err)
	}
	if n < 0 || n >= int64(len(run.Steps)) {
		return "", fmt.Errorf("trainer: replay step %d: run %s has committed %d steps: %w", n, cfg.Run, len(run.Steps), store.ErrNotFound)
	}
	done := run.Steps[n]
	from := versionOf(run, n)
	if from == nil {
		return "", fmt.Errorf("trainer: replay step %d: version %d is not in the log: %w", n, n, store.ErrNotFound)
	}
	batch, err := recorded(run, done)
	if err != nil {
		return "", err
	}
	t := newStep(cfg, s, backend)
	head, err := t.load(ctx, from.Manifest)
	if err != nil {
		return "", err
	}
	taken, err := t.intake(ctx, batch)
	if err != nil {
		return "", err
	}
	rows, err := run.LedgerRows(ctx, done)
	if err != nil {
		return "", fmt.Errorf("trainer: replay step %d: read its ledger: %w", n, err)
	}
	if err := t.compare(n, done.Lineage, taken.samples, rows); err != nil {
		return "", err
	}
	if _, err := t.train(ctx, n, taken.samples); err != nil {
		return "", err
	}
	files, err := backend.Files()
	if err != nil {
		return "", fmt.Errorf("trainer: replay step %d: %w", n, err)
	}
	head.manifest.Lineage = done.Lineage
	m, _ := head.next(files, policy.Digest(done.Ledger))
	raw, err := m.Encode()
	if err != nil {
		return "", fmt.Errorf("trainer: replay step %d: %w", n, err)
	}
	return policy.DigestOf(raw), nil
}

// versionOf returns the surviving commit of version n, or nil.
func versionOf(run *trajectory.Run, n int64) *trajectory.PolicyVersion {
	for i := len(run.Versions) - 1; i >= 0; i-- {
		if v := run.Versions[i]; int64(v.Version) == n && v.State != "superseded" {
			return v
		}
	}
	return nil
}

// recorded rebuilds the batch of a committed step from the mirrored log.
func recorded(run *trajectory.Run, done *trajectory.TrainStep) (*raftlog.TakeBatchResult, error) {
	b := &raftlog.TakeBatchResult{Ready: true, Step: done.Step}
	for _, id := range done.Groups {
		g := run.Group(id)
		if g == nil {
			return nil, fmt.Errorf("trainer: replay step %d: group %d is not in the log: %w", done.Step, id, ErrBatch)
		}
		bg := &raftlog.BatchGroup{Group: id, Env: g.Env}
		for _, a := range g.Members() {
			bg.Members = append(bg.Members, &raftlog.BatchMember{
				Index: a.Index, Attempt: a.Attempt, Verdict: a.Settled.Verdict, Disposition: a.Settled.Disposition,
				Reward: a.Settled.Reward, Sealed: a.Sealed, VerdictRow: a.Settled.VerdictRow,
			})
		}
		b.Groups = append(b.Groups, bg)
	}
	return b, nil
}

// compare returns ErrBatch unless the samples give the ledger's rows, in order and bit for bit.
func (t *step) compare(n, lineage int64, samples []offered, rows []trajectory.LedgerRow) error {
	if len(rows) != len(samples) {
		return fmt.Errorf("trainer: replay step %d: %d samples, the ledger has %d: %w", n, len(samples), len(rows), ErrBatch)
	}
	for i := range samples {
		want := t.ledgerRow(n, lineage, &samples[i])
		if column := differs(want, rows[i]); column != "" {
			return fmt.Errorf("trainer: replay step %d: %s of sample %d (episode %s, branch %d) is not what the ledger says: %w",
				n, column, i, want.EpisodeID, want.Branch, ErrBatch)
		}
	}
	return nil
}

// differs names the first column in which two rows differ.
func differs(a, b trajectory.LedgerRow) string {
	same := func(x, y *float64) bool {
		return (x == nil) == (y == nil) && (x == nil || math.Float64bits(*x) == math.Float64bits(*y))
	}
	switch {
	case a.EpisodeID != b.EpisodeID || a.Branch != b.Branch:
		return "the name"
	case a.Outcome != b.Outcome:
		return "outcome"
	case a.NTokens != b.NTokens || a.NLossTokens != b.NLossTokens:
		return "the number of tokens"
	case !same(a.AdvantageScalar, b.AdvantageScalar):
		return "advantage_scalar"
	case a.GroupMembersUsed != b.GroupMembersUsed || !same(a.GroupMean, b.GroupMean) || !same(a.GroupStd, b.GroupStd) || a.StdDdof != b.StdDdof:
		return "the group's statistics"
	case a.StalenessMax != b.StalenessMax || a.StalenessMean != b.StalenessMean:
		return "staleness"
	case a.Weight != b.Weight || a.BinOffset != b.BinOffset || a.MicroBatch != b.MicroBatch:
		return "weight or place"
	case a.Lineage != b.Lineage || a.TrainerStep != b.TrainerStep || a.BatchID != b.BatchID || a.GroupID != b.GroupID:
		return "the batch"
	}
	return ""
}
