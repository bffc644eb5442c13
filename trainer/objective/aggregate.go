package objective

import "fmt"

// Aggregate says how token losses become one number; the names are verl's.
type Aggregate string

// The aggregations. N counts rollouts, T all trained tokens, tᵢ those of rollout i.
const (
	TokenMean      Aggregate = "token-mean"              // Σ L / T
	SeqMeanMean    Aggregate = "seq-mean-token-mean"     // Σᵢ (Σ L / tᵢ) / N
	SeqMeanSum     Aggregate = "seq-mean-token-sum"      // Σᵢ Σ L / N
	SeqMeanSumNorm Aggregate = "seq-mean-token-sum-norm" // Σᵢ Σ L / (N·length), length a constant of the spec
)

// Row is one packed sample: a rollout that became several (sub-agents,
// rewritten contexts) has several rows and counts once.
type Row struct {
	Rollout string // same for all rows of one rollout
	Tokens  int    // trained tokens
}

// Totals are the denominators of a whole batch. When a batch is spread over
// ranks, each rank's are added up first; a rollout lies on one rank.
type Totals struct {
	Tokens, Rollouts int
}

// Sum returns the totals of rows; rows without trained tokens do not count.
func Sum(rows []Row) Totals {
	var t Totals
	seen := make(map[string]bool, len(rows))
	for _, r := range rows {
		if r.Tokens == 0 {
			continue
		}
		t.Tokens += r.Tokens
		if !seen[r.Rollout] {
			seen[r.Rollout] = true
			t.Rollouts++
		}
	}
	return t
}

// Weights returns what each token's loss of each row is multiplied by, so that
// the sum over all tokens of the batch is the aggregate. length is that of
// seq-mean-token-sum-norm and is ignored by the others.
func (a Aggregate) Weights(rows []Row, t Totals, length float64) ([]float64, error) {
	if t.Tokens < 1 || t.Rollouts < 1 {
		return nil, fmt.Errorf("objective: aggregate %d tokens of %d rollouts: %w", t.Tokens, t.Rollouts, ErrShape)
	}
	tokens := make(map[string]int, len(rows))
	for _, r := range rows {
		tokens[r.Rollout] += r.Tokens
	}
	out := make([]float64, len(rows))
	for i, r := range rows {
		if r.Tokens == 0 {
			continue
		}
		switch a {
		case TokenMean:
			out[i] = 1 / float64(t.Tokens)
		case SeqMeanMean:
			out[i] = 1 / (float64(t.Rollouts) * float64(tokens[r.Rollout]))
		case SeqMeanSum:
			out[i] = 1 / float64(t.Rollouts)
		case SeqMeanSumNorm:
			if !(length > 0) {
				return nil, fmt.Errorf("objective: aggregate %s with length %g: %w", a, length, ErrKind)
			}
			out[i] = 1 / (float64(t.Rollouts) * length)
		default:
			return nil, fmt.Errorf("objective: aggregate %q: %w", string(a), ErrKind)
		}
	}
	return out, nil
}
