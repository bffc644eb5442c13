package tiny

import (
	"context"
	"fmt"
	"math/rand/v2"
)

// FitConfig holds the settings of a supervised fit.
type FitConfig struct {
	Steps     int     // updates
	Batch     int     // episodes an update, drawn with replacement
	LR        float64 // of the first three quarters
	FinalLR   float64 // of the last quarter
	GradClip  float64 // most Euclidean norm of a gradient
	Optimizer AdamWConfig
	Seed      uint64 // of the weights and of the draw of episodes
	// Progress, when set, is called after each update with the mean loss in nats a token.
	Progress func(step int, loss float64)
}

// DefaultFit returns 250 updates of 64 episodes at 1e-2, then 2.5e-3 for the last quarter.
func DefaultFit() FitConfig {
	return FitConfig{Steps: 250, Batch: 64, LR: 1e-2, FinalLR: 2.5e-3, GradClip: 1, Optimizer: DefaultAdamW()}
}

// Validate returns ErrConfig for settings that cannot be run.
func (c FitConfig) Validate() error {
	if c.Steps < 0 || c.Batch < 1 || !(c.LR > 0) || !(c.FinalLR > 0) {
		return fmt.Errorf("tiny: fit: steps %d, batch %d, learning rates %g and %g: %w", c.Steps, c.Batch, c.LR, c.FinalLR, ErrConfig)
	}
	return nil
}

// Init makes a version 0 from demonstrations: a tokenizer of their words, a model
// of size's shape with that vocabulary, fitted. Optimizer state is not carried
// over: reinforcement begins with fresh moments. extra are further texts whose
// words the vocabulary must have. size's vocab_size is replaced.
func Init(ctx context.Context, size Config, corpus []Episode, extra []string, f FitConfig) (*Model, *Tokenizer, error) {
	texts := append([]string(nil), extra...)
	for _, e := range corpus {
		for _, t := range e.Turns {
			texts = append(texts, t.Content)
		}
	}
	tok, err := Build(texts, size.MaxPositionEmbeddings)
	if err != nil {
		return nil, nil, err
	}
	size.VocabSize = tok.Size()
	m, err := New(size, f.Seed)
	if err != nil {
		return nil, nil, err
	}
	return m, tok, Fit(ctx, m, tok, corpus, f)
}

// Fit trains m in place on the demonstrations' assistant words and <end>, by mean
// negative log-likelihood over the batch's tokens. It returns ErrCorpus when an
// episode does not fit the context, and the context's error when cancelled between updates.
func Fit(ctx context.Context, m *Model, tok *Tokenizer, corpus []Episode, f FitConfig) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if len(corpus) == 0 {
		return fmt.Errorf("tiny: fit: no episodes: %w", ErrCorpus)
	}
	r := NewRenderer(tok, 0)
	all := make([]Sequence, len(corpus))
	for i, e := range corpus {
		s, err := r.Sequence(e)
		if err != nil {
			return fmt.Errorf("tiny: fit: episode %d: %w", i, err)
		}
		if err := m.checkSequence(s); err != nil {
			return fmt.Errorf("tiny: fit: episode %d: %w: %w", i, err, ErrCorpus)
		}
		all[i] = s
	}
	rng := rand.New(rand.NewPCG(f.Seed, 0x666974))
	b, opt, batch := NewBatcher(m), NewAdamW(m, f.Optimizer), make([]Sequence, f.Batch)
	per := make([]float64, f.Batch)
	for step := range f.Steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("tiny: fit: %w", err)
		}
		n := 0
		for i := range batch {
			batch[i] = all[rng.IntN(len(all))]
			n += batch[i].Actions()
		}
		w := -1 / float64(n)
		g, err := b.Gradient(batch, func(seq int, logp, _, dlogp, _ []float64) {
			per[seq] = 0
			for i, lp := range logp {
				per[seq] += w * lp
				dlogp[i] = w
			}
		})
		if err != nil {
			return err
		}
		if norm := ClipNorm(g, f.GradClip); norm-norm != 0 {
			return fmt.Errorf("tiny: fit: gradient at step %d: %w", step, ErrNotFinite)
		}
		lr := f.LR
		if step >= f.Steps-f.Steps/4 {
			lr = f.FinalLR
		}
		opt.Step(m, g, lr)
		if f.Progress != nil {
			var loss float64
			for _, v := range per {
				loss += v
			}
			f.Progress(step, loss)
		}
	}
	return m.Finite()
}
