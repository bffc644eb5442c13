package trainer

import (
	"math"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/outcome"
)

// The names of a step's metrics. They are part of what users see: the log, the
// progress view, steps.jsonl and the report use them as they are here.
const (
	RewardMean      = "reward_mean"       // mean reward over the members that have one and count in their group
	RewardStd       = "reward_std"        // population deviation over the same members
	Entropy         = "entropy"           // nats per token in the loss
	KLBehaviour     = "kl_behaviour"      // nats per token, trained policy against the one that sampled, before the update
	ClipFractionPos = "clip_fraction_pos" // share of the tokens with a positive advantage that were clipped
	ClipFractionNeg = "clip_fraction_neg" // the same with a negative advantage
	ESS             = "ess"               // effective sample size of the ratios as a share of the tokens, 0 to 1
	GradNorm        = "grad_norm"         // L2, before clipping
	Loss            = "loss"              // the objective, as minimised
	LengthP50       = "length_p50"        // sampled tokens of an episode, median
	LengthP95       = "length_p95"        // and 95th percentile
	Truncated       = "truncated"         // share of the episodes that ended at a limit
	ZeroVariance    = "zero_variance"     // share of the groups whose rewards are all equal
	Masked          = "masked"            // share of the members with disposition mask
	LagMean         = "lag_mean"          // versions, mean over the tokens in the loss
	LagMax          = "lag_max"           // versions, most of any token in the loss
	Tokens          = "tokens"            // in the loss
	TrainSeconds    = "train_seconds"     // from the batch at hand to the checkpoint in the store
	WaitSeconds     = "wait_seconds"      // before that, waiting for the batch
)

// MetricNames is every name, in the order to show them.
var MetricNames = []string{
	RewardMean, RewardStd, Entropy, KLBehaviour, ClipFractionPos, ClipFractionNeg, ESS, GradNorm, Loss,
	LengthP50, LengthP95, Truncated, ZeroVariance, Masked, LagMean, LagMax, Tokens, TrainSeconds, WaitSeconds,
}

// measure returns the metrics of a step, without the two times. A value that is
// not finite is left out: what made it so shows when the version is checked
// before it is published.
func measure(b taken, m Metrics) map[string]float64 {
	out := map[string]float64{
		Entropy: m.Entropy, KLBehaviour: m.KL, ClipFractionPos: m.ClipFractionPos, ClipFractionNeg: m.ClipFractionNeg,
		ESS: m.ESS, GradNorm: m.GradNorm, Loss: m.Loss,
	}
	measureMembers(out, b.groups)
	var tokens, lag float64
	var lagMax int64
	for i := range b.samples {
		o := &b.samples[i]
		if !o.trained() {
			continue
		}
		n := float64(o.LossTokens())
		tokens += n
		lag += o.lagMean * n
		lagMax = max(lagMax, o.lagMax)
	}
	out[Tokens], out[LagMax], out[LagMean] = tokens, float64(lagMax), 0
	if tokens > 0 {
		out[LagMean] = lag / tokens
	}
	for _, name := range MetricNames {
		if v, ok := out[name]; ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
			delete(out, name)
		}
	}
	return out
}

// measureMembers adds what is known of the members without their rows.
func measureMembers(out map[string]float64, groups []*groupStats) {
	var rewards, lengths []float64
	members, masked, ended, truncated, zero := 0, 0, 0, 0, 0
	for _, g := range groups {
		if g.stats.ZeroVariance && g.stats.N > 0 {
			zero++
		}
		for _, m := range g.members {
			members++
			d := outcome.Disposition(m.Disposition)
			if d == outcome.Mask {
				masked++
			}
			if d.InStatistics() && m.Reward != nil {
				rewards = append(rewards, *m.Reward)
			}
			if m.Sealed == nil {
				continue
			}
			ended++
			lengths = append(lengths, float64(m.Sealed.Tokens))
			if c, err := outcome.Class(outcome.EndReason(m.Sealed.EndReason)); err == nil && c == outcome.ClassLimit {
				truncated++
			}
		}
	}
	out[RewardMean], out[RewardStd] = moments(rewards)
	slices.Sort(lengths)
	out[LengthP50], out[LengthP95] = percentile(lengths, 0.5), percentile(lengths, 0.95)
	out[Truncated], out[ZeroVariance], out[Masked] = share(truncated, ended), share(zero, len(groups)), share(masked, members)
}

// moments returns mean and population deviation; both are NaN of nothing, because no reward is not a reward of 0.
func moments(x []float64) (mean, std float64) {
	if len(x) == 0 {
		return math.NaN(), math.NaN()
	}
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		std += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(std / float64(len(x)))
}

// percentile returns the nearest-rank percentile of sorted values; 0 of none.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// timed adds the two times of a step.
func timed(m map[string]float64, wait, train time.Duration) {
	m[WaitSeconds], m[TrainSeconds] = wait.Seconds(), train.Seconds()
}
