package trainer

import "context"

// Backend computes the update of one step. It is used by one goroutine.
//
// For one binary on one architecture its files are a function of the loaded
// files and the batches trained since, bit for bit.
type Backend interface {
	// Load replaces the whole state, weights and optimizer, by the checkpoint's
	// files, by path. Where the optimizer's file is missing, as at version 0, it
	// starts afresh.
	Load(files map[string][]byte) error
	// Train makes one step. On an error the state is undefined until the next Load.
	Train(ctx context.Context, b Batch) (Metrics, error)
	// Files returns the files of the state after the last step, by path:
	// configuration, weights, optimizer and whatever else the backend needs to
	// go on. Files of the loaded checkpoint that are not among them, such as the
	// tokenizer's, are kept by the caller.
	Files() (map[string][]byte, error)
	// Context returns the most tokens of a sample. A longer one is not offered
	// to Train; none is ever cut.
	Context() int
}

// Sample is one branch of one episode: one sequence to train on.
type Sample struct {
	Episode string // trajectory.EpisodeID of the attempt
	Group   uint64
	Index   int32 // member of the group
	Branch  int32 // of the episode's message tree

	Tokens    []int32   // shape [n], n ≥ 2
	LossMask  []bool    // shape [n]; true exactly on the tokens in the loss; false at 0
	Logprobs  []float32 // behaviour log-probabilities in nats, one for each true of LossMask, in order
	Advantage float64   // of every token in the loss
	Weight    float64   // share of its episode's one unit of weight, 1 / samples of the episode (trap T25), for losses that weigh sequences
}

// LossTokens returns the number of tokens in the loss.
func (s Sample) LossTokens() int { return len(s.Logprobs) }

// Batch is what one step trains on. The samples come ordered by group, member
// and branch; each has at least one token in the loss.
type Batch struct {
	Step    int64 // n: trains from version n and makes version n+1
	Samples []Sample
}

// Metrics are the backend's measurements of one step, over all of its updates.
// Means are over the tokens in the loss.
type Metrics struct {
	Loss            float64 // value of the objective, as minimised
	GradNorm        float64 // L2 norm before clipping; of the last update
	Entropy         float64 // mean, nats
	KL              float64 // to the behaviour policy: mean of r − 1 − ln r with r = π/π_behaviour (k3)
	ClipFractionPos float64 // share of the tokens with positive advantage whose ratio was clipped
	ClipFractionNeg float64 // the same with negative advantage
	ESS             float64 // effective sample size of the ratios, (Σr)²/(n·Σr²), in (0, 1]
}
