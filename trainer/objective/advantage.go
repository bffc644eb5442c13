package objective

import (
	"fmt"
	"math"

	"github.com/rlfleet/rlfleet/outcome"
)

// Member is one episode of a group as its settlement left it.
type Member struct {
	Reward      *float64 // nil when there is none; never read as 0
	Disposition outcome.Disposition
}

// Advantage is a member's advantage; without Valid it is null, which is not 0,
// and the member must not be trained.
type Advantage struct {
	Value float64
	Valid bool
}

// Statistics describes the rewards of a group's members that count.
type Statistics struct {
	N            int // members in the statistics
	Mean, Std    float64
	ZeroVariance bool // all rewards equal: nothing to learn from
}

// The kinds of group-relative advantage.
const (
	KindGRPO = "grpo"
	KindRLOO = "rloo"
)

// Estimator says how a group's rewards become advantages.
//
//	grpo, Std     A = (R − mean) / (std + 1e−6), std unbiased (n − 1); Shao et al., arXiv 2402.03300, ε and n − 1 as in verl
//	grpo, no Std  A = R − mean; Dr. GRPO, Liu et al., arXiv 2503.20783
//	rloo          A = R − mean of the other members = n/(n−1)·(R − mean); Ahmadian et al., arXiv 2402.14740
type Estimator struct {
	Kind string
	Std  bool // of grpo
}

// epsilon keeps the division by a small deviation finite.
const epsilon = 1e-6

// Validate returns ErrKind unless e is one of the above.
func (e Estimator) Validate() error {
	if e.Kind == KindGRPO || e.Kind == KindRLOO && !e.Std {
		return nil
	}
	return fmt.Errorf("objective: advantage %q with std %t: %w", e.Kind, e.Std, ErrKind)
}

// Group returns the advantages of one group's members, in their order. Members
// of disposition train and baseline_only with a reward make up the statistics; of
// these, those of disposition train get an advantage. All others get null, and
// change nothing: with or without them the result has the same bits. Equal rewards
// give advantages of exactly 0. ErrSingleton when one member alone counts and
// would be trained; ErrNotFinite for a reward that is not a number.
func (e Estimator) Group(members []Member) ([]Advantage, Statistics, error) {
	if err := e.Validate(); err != nil {
		return nil, Statistics{}, err
	}
	var rewards []float64
	trained := 0
	for i, m := range members {
		if !counts(m) {
			continue
		}
		r := *m.Reward
		if math.IsNaN(r) || math.IsInf(r, 0) {
			return nil, Statistics{}, fmt.Errorf("objective: reward of member %d: %w", i, ErrNotFinite)
		}
		rewards = append(rewards, r)
		if m.Disposition.InLoss() {
			trained++
		}
	}
	out := make([]Advantage, len(members))
	st := describe(rewards)
	switch {
	case trained == 0:
		return out, st, nil
	case st.N == 1:
		return nil, st, fmt.Errorf("objective: advantages of %d members: %w", len(members), ErrSingleton)
	}
	for i, m := range members {
		if counts(m) && m.Disposition.InLoss() {
			out[i] = Advantage{Value: e.value(*m.Reward, st), Valid: true}
		}
	}
	return out, st, nil
}

func counts(m Member) bool { return m.Disposition.InStatistics() && m.Reward != nil }

// describe computes in two passes, in order.
func describe(rewards []float64) Statistics {
	st := Statistics{N: len(rewards), ZeroVariance: true}
	if st.N == 0 {
		return st
	}
	for _, r := range rewards {
		st.Mean += r
		st.ZeroVariance = st.ZeroVariance && r == rewards[0]
	}
	st.Mean /= float64(st.N)
	if st.ZeroVariance { // exactly, whatever rounding would say
		st.Mean = rewards[0]
		return st
	}
	var sum float64
	for _, r := range rewards {
		sum += (r - st.Mean) * (r - st.Mean)
	}
	st.Std = math.Sqrt(sum / float64(st.N-1))
	return st
}

func (e Estimator) value(reward float64, st Statistics) float64 {
	switch {
	case st.ZeroVariance:
		return 0
	case e.Kind == KindRLOO:
		return float64(st.N) / float64(st.N-1) * (reward - st.Mean)
	case e.Std:
		return (reward - st.Mean) / (st.Std + epsilon)
	}
	return reward - st.Mean
}
