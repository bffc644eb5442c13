package trajectory

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// checkLedgers holds what each step trained on against its batch, the bound and the messages.
func (v *verifier) checkLedgers(ctx context.Context) error {
	trained := map[string]int64{} // episode/branch → step
	for _, st := range v.run.Steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		where := fmt.Sprintf("step %d", st.Step)
		rows, err := v.run.LedgerRows(ctx, st)
		if !v.opened(Ledger, st.Ledger, where, err) {
			continue
		}
		named := map[string]bool{}
		for i := range rows {
			row := &rows[i]
			named[row.EpisodeID] = true
			v.checkLedgerRow(st, row)
			if row.Outcome != Trained {
				continue
			}
			key := fmt.Sprintf("%s/%d", row.EpisodeID, row.Branch)
			if before, again := trained[key]; again {
				v.find("I4", row.EpisodeID, "branch %d was trained by step %d and by step %d", row.Branch, before, st.Step)
			}
			trained[key] = st.Step
		}
		for _, id := range st.Groups {
			g := v.run.Group(id)
			if g == nil {
				continue // told by checkGroups
			}
			for _, a := range g.Members() {
				if outcome.Disposition(a.Settled.Disposition).InLoss() && !named[a.ID] {
					v.find("I4", a.ID, "is to be trained on by step %d and is not in its ledger", st.Step)
				}
			}
		}
	}
	return nil
}

func (v *verifier) checkLedgerRow(st *TrainStep, row *LedgerRow) {
	id := row.EpisodeID
	if err := checkRow(row); err != nil {
		v.find("I4", id, "step %d: %v", st.Step, err)
		return
	}
	if row.TrainerStep != st.Step || row.Lineage != st.Lineage {
		v.find("I4", id, "the ledger of step %d has a row of step %d, lineage %d", st.Step, row.TrainerStep, row.Lineage)
	}
	a := v.attempts[id]
	if a == nil || a.Sealed == nil || a.Settled == nil {
		v.find("I4", id, "step %d offers an attempt that never settled", st.Step)
		return
	}
	if !slices.Contains(st.Groups, a.Group.Group) || row.GroupID != GroupID(v.run.ID, a.Group.Group) {
		v.find("I4", id, "step %d offers a member of a group (%s) that is not in its batch", st.Step, row.GroupID)
	}
	if row.Outcome == Trained {
		if s := a.Settled; s.Reward == nil || !outcome.Disposition(s.Disposition).InLoss() {
			v.find("I5", id, "step %d trained on it; it settled as %s with reward %s", st.Step, s.Disposition, number(s.Reward))
		}
		v.checkSample(st, row)
	}
	v.checkStatistics(st, row, a.Group)
}

// checkSample holds a trained sample against its messages: counts, and the bound I2.
func (v *verifier) checkSample(st *TrainStep, row *LedgerRow) {
	branches, read := v.facts[row.EpisodeID]
	if !read {
		return // unreadable, and told so
	}
	if int(row.Branch) >= len(branches) {
		v.find("I4", row.EpisodeID, "step %d trained on branch %d of %d", st.Step, row.Branch, len(branches))
		return
	}
	f := branches[row.Branch]
	if row.NTokens != f.tokens || row.NLossTokens != f.loss {
		v.find("I9", row.EpisodeID, "the ledger of step %d has %d of %d tokens in the loss, its messages %d of %d", st.Step, row.NLossTokens, row.NTokens, f.loss, f.tokens)
	}
	v.report.Trained += f.loss
	if f.loss == 0 {
		return
	}
	n, bound := st.Step, int64(v.run.Config.LagMax)
	lag := n - int64(f.lowest)
	v.report.MaxLag = max(v.report.MaxLag, lag)
	if lag > bound {
		v.find("I2", row.EpisodeID, "step %d trained on tokens of version %d: lag %d, and the bound is %d", n, f.lowest, lag, bound)
	}
	if int64(f.highest) > n {
		v.find("I2", row.EpisodeID, "step %d trained on tokens of version %d, which did not exist", n, f.highest)
	}
	mean := float64(n) - float64(f.sum)/float64(f.loss)
	if row.StalenessMax != lag || math.Abs(row.StalenessMean-mean) > 1e-6 {
		v.find("I2", row.EpisodeID, "the ledger of step %d has staleness %d, mean %g; its spans give %d, mean %g", n, row.StalenessMax, row.StalenessMean, lag, mean)
	}
}

// checkStatistics recomputes a group's mean and deviation over the members that
// count. An infrastructure failure in them would show here (invariant I5).
func (v *verifier) checkStatistics(st *TrainStep, row *LedgerRow, g *Group) {
	var rewards []float64
	for _, a := range g.Members() {
		if outcome.Disposition(a.Settled.Disposition).InStatistics() && a.Settled.Reward != nil {
			rewards = append(rewards, *a.Settled.Reward)
		}
	}
	if int(row.GroupMembersUsed) != len(rewards) {
		v.find("I5", row.EpisodeID, "step %d used %d members in its group's statistics; %d have a reward that counts", st.Step, row.GroupMembersUsed, len(rewards))
		return
	}
	if len(rewards) == 0 || row.GroupMean == nil {
		return
	}
	var mean, squares float64
	for _, r := range rewards {
		mean += r / float64(len(rewards))
	}
	for _, r := range rewards {
		squares += (r - mean) * (r - mean)
	}
	if math.Abs(*row.GroupMean-mean) > 1e-6 {
		v.find("I5", row.EpisodeID, "step %d used the group mean %g; the rewards that count give %g", st.Step, *row.GroupMean, mean)
	}
	if d := len(rewards) - int(row.StdDdof); row.GroupStd != nil && d > 0 {
		if std := math.Sqrt(squares / float64(d)); math.Abs(*row.GroupStd-std) > 1e-6 {
			v.find("I5", row.EpisodeID, "step %d used the group deviation %g; the rewards that count give %g", st.Step, *row.GroupStd, std)
		}
	}
}

// checkNewestVersion requires that the newest version is there with all of its
// files (I7). Older ones may have been removed by retention.
func (v *verifier) checkNewestVersion(ctx context.Context) error {
	var p *PolicyVersion
	for _, x := range v.run.Versions {
		if x.State != "superseded" {
			p = x
		}
	}
	where := fmt.Sprintf("version %d", p.Version)
	data, err := v.object(ctx, p.Manifest)
	if err != nil {
		v.find("I7", where, "its manifest: %v", err)
		return ctx.Err()
	}
	m, err := policy.ParseManifest(data)
	if err != nil {
		v.find("I7", where, "its manifest: %v", err)
		return nil
	}
	if m.Version != p.Version {
		v.find("I7", where, "its manifest is of version %d", m.Version)
	}
	if n := len(v.run.Steps); n > 0 && string(m.Ledger) != v.run.Steps[n-1].Ledger {
		v.find("I7", where, "its manifest names ledger %s, the log %s", m.Ledger, v.run.Steps[n-1].Ledger)
	}
	for _, f := range m.Files {
		if _, err := v.object(ctx, f.Digest); err != nil {
			v.find("I7", where, "its file %s: %v", f.Path, err)
		}
	}
	return ctx.Err()
}

// object returns the content under a digest, whatever the kind of its key, after checking it.
func (v *verifier) object(ctx context.Context, d policy.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	for info, err := range v.store.List(ctx, store.ObjectKey(v.run.ID, d, "")) {
		if err != nil {
			return nil, err
		}
		data, err := v.store.Get(ctx, info.Key)
		if err != nil {
			return nil, err
		}
		if got := policy.DigestOf(data); got != d {
			return nil, fmt.Errorf("%s holds %s: %w", info.Key, got, ErrCorrupt)
		}
		return data, nil
	}
	return nil, fmt.Errorf("%s is not in the store: %w", d, store.ErrNotFound)
}
