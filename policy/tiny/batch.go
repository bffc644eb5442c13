package tiny

import (
	"fmt"
	"sync"
)

// Shards is the fixed number of parts a batch is cut into. It does not follow
// GOMAXPROCS: the order in which gradients are summed must not either.
const Shards = 4

// Sequence is one packed row of a batch: Action[i] says that Tokens[i] was
// sampled by the policy, so that its log-probability enters the loss.
// len(Action) == len(Tokens); Action[0] is false since nothing precedes it.
type Sequence struct {
	Tokens []int32
	Action []bool
}

// Actions returns the number of action tokens.
func (s Sequence) Actions() int {
	n := 0
	for _, a := range s.Action {
		if a {
			n++
		}
	}
	return n
}

// Loss is called once for each sequence with at least one action, from several
// goroutines at once. logp and entropy [actions] are those of the action tokens
// at temperature 1, in nats. It writes the loss's derivative by each logp into
// dlogp and by each entropy into dentropy; both begin as zeros.
type Loss func(seq int, logp, entropy, dlogp, dentropy []float64)

// Batcher holds the scratch memory of forward and backward passes over one
// model. It is not for concurrent use.
type Batcher struct {
	m      *Model
	shards [Shards]*shard
	grad   []float32
}

// NewBatcher returns a Batcher for m.
func NewBatcher(m *Model) *Batcher {
	b := &Batcher{m: m}
	for i := range b.shards {
		b.shards[i] = &shard{m: m}
	}
	return b
}

// Gradient returns the gradient of the loss by every parameter, in the order of
// the weights. The slice is valid until the next call.
func (b *Batcher) Gradient(seqs []Sequence, loss Loss) ([]float32, error) {
	if err := b.run(seqs, loss, true); err != nil {
		return nil, err
	}
	if b.grad == nil {
		b.grad = make([]float32, len(b.m.w))
	}
	clear(b.grad)
	for _, s := range b.shards { // in shard order: the sum's bits depend on it
		for i, g := range s.g {
			b.grad[i] += g
		}
	}
	b.m.linears(func(l linear) {
		if !l.gradTransposed() {
			return
		}
		for _, s := range b.shards {
			addTransposed(b.grad[l.w:l.w+l.out*l.in], s.gt[l.t:l.t+l.out*l.in], l.in, l.out)
		}
	})
	return b.grad, nil
}

// Logprobs returns the log-probability in nats, at temperature 1, of each action token.
func (b *Batcher) Logprobs(seqs []Sequence) ([][]float64, error) {
	out := make([][]float64, len(seqs))
	err := b.run(seqs, func(i int, logp, _, _, _ []float64) {
		out[i] = append([]float64(nil), logp...)
	}, false)
	return out, err
}

// run deals the sequences to the shards, always in the same way, and runs them.
func (b *Batcher) run(seqs []Sequence, loss Loss, backward bool) error {
	for i, s := range seqs {
		if err := b.m.checkSequence(s); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	var load [Shards]int
	for _, s := range b.shards {
		s.share = s.share[:0]
	}
	for i, s := range seqs {
		if s.Actions() == 0 {
			continue
		}
		least := 0
		for j, n := range load {
			if n < load[least] {
				least = j
			}
		}
		load[least] += len(s.Tokens)
		b.shards[least].share = append(b.shards[least].share, i)
	}
	var wg sync.WaitGroup
	for _, s := range b.shards {
		wg.Go(func() { s.run(seqs, loss, backward) })
	}
	wg.Wait()
	return nil
}

func (m *Model) checkSequence(s Sequence) error {
	if len(s.Action) != len(s.Tokens) {
		return fmt.Errorf("tiny: %d tokens, %d action flags: %w", len(s.Tokens), len(s.Action), ErrTokens)
	}
	if len(s.Tokens) > m.cfg.MaxPositionEmbeddings {
		return fmt.Errorf("tiny: %d tokens, context is %d: %w", len(s.Tokens), m.cfg.MaxPositionEmbeddings, ErrTokens)
	}
	if len(s.Action) > 0 && s.Action[0] {
		return fmt.Errorf("tiny: first token is an action: %w", ErrTokens)
	}
	return m.checkIDs(s.Tokens)
}

// addTransposed adds src [rows,cols] to dst [cols,rows].
func addTransposed(dst, src []float32, rows, cols int) {
	for i := range rows {
		for j, v := range src[i*cols : (i+1)*cols] {
			dst[j*rows+i] += v
		}
	}
}
