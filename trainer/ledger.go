package trainer

import (
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/trajectory"
)

// stdDdof is that of objective.Statistics: the sample deviation (trap T24).
const stdDdof = 1

// ledger writes what a step did with every sample offered to it, in the order
// in which the samples were trained. Its bytes follow from the batch alone: the
// time in its metadata is that of the newest message, not of the writing.
func (t *step) ledger(n, lineage int64, b taken) (trajectory.Shard, error) {
	w := trajectory.NewWriter[trajectory.LedgerRow](trajectory.Meta{Run: t.cfg.Run, Writer: t.cfg.Writer, Created: b.created})
	for i := range b.samples {
		if err := w.Append(t.ledgerRow(n, lineage, &b.samples[i])); err != nil {
			return trajectory.Shard{}, fmt.Errorf("trainer: write ledger of step %d: %w", n, err)
		}
	}
	s, err := w.Close()
	if err != nil {
		return s, fmt.Errorf("trainer: write ledger of step %d: %w", n, err)
	}
	return s, nil
}

func (t *step) ledgerRow(n, lineage int64, o *offered) trajectory.LedgerRow {
	r := trajectory.LedgerRow{
		BatchID:              fmt.Sprintf("%s/%d", t.cfg.Run, n),
		TrainerStep:          n,
		PolicyVersionTrained: policy.Version(n),
		Lineage:              lineage,
		EpisodeID:            o.Episode,
		Branch:               o.Branch,
		BinOffset:            o.bin,
		NTokens:              int64(len(o.Tokens)),
		GroupID:              trajectory.GroupID(t.cfg.Run, o.Group),
		GroupMembersUsed:     int32(o.group.stats.N),
		StdDdof:              stdDdof,
		StalenessMax:         o.lagMax,
		StalenessMean:        o.lagMean,
		Outcome:              o.outcome,
	}
	if o.scored {
		a := o.Advantage
		r.AdvantageScalar = &a
	}
	if o.group.stats.N > 0 {
		mean, std := o.group.stats.Mean, o.group.stats.Std
		r.GroupMean, r.GroupStd = &mean, &std
	}
	if o.trained() {
		r.NLossTokens, r.Weight = int64(o.LossTokens()), o.Weight
	}
	return r
}
