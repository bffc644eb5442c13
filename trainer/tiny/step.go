package tiny

import (
	"context"
	"fmt"
	"math"

	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/trainer"
	"github.com/rlfleet/rlfleet/trainer/objective"
)

// Metrics are the measurements of one step.
type Metrics struct {
	trainer.Metrics
	Tokens       int64   // in the loss, over all updates
	Updates      int     // of the weights
	MeanRatio    float64 // of π to the behaviour policy
	LogRatioLow  float64 // least and greatest log-ratio of any token
	LogRatioHigh float64
}

// Train makes one step on samples, in their order, and changes m and opt in
// place. Every sample of an episode lies next to its others; an episode counts as
// one rollout in sequence means, whatever number of samples it has (trap T25). The
// ratio is to the recorded behaviour log-probabilities at every update.
//
// ErrSample names a sample that does not fit the model or has a value that is not
// finite; then nothing was changed. After ErrNotFinite or the context's error m and
// opt must be loaded anew.
func Train(ctx context.Context, m *model.Model, opt *model.AdamW, samples []trainer.Sample, c Config) (Metrics, error) {
	if err := c.Validate(); err != nil {
		return Metrics{}, err
	}
	if len(samples) == 0 {
		return Metrics{}, fmt.Errorf("trainer/tiny: train: no samples: %w", ErrSample)
	}
	for _, s := range samples {
		if err := check(m, s); err != nil {
			return Metrics{}, err
		}
	}
	opt.Configure(c.Optimizer)
	u := updater{cfg: c, m: m, opt: opt, batcher: model.NewBatcher(m)}
	parts := split(samples, c.Minibatches)
	for range c.Epochs {
		for _, part := range parts {
			if err := ctx.Err(); err != nil {
				return Metrics{}, fmt.Errorf("trainer/tiny: train: %w", err)
			}
			if err := u.update(part); err != nil {
				return Metrics{}, err
			}
		}
	}
	if err := m.Finite(); err != nil {
		return Metrics{}, fmt.Errorf("trainer/tiny: train: %w: %w", ErrNotFinite, err)
	}
	return u.metrics(), nil
}

// check returns ErrSample unless the sample can be trained on as it is.
func check(m *model.Model, s trainer.Sample) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("trainer/tiny: episode %s branch %d: %s: %w", s.Episode, s.Branch, fmt.Sprintf(format, args...), ErrSample)
	}
	c := m.Config()
	n := 0
	for _, t := range s.LossMask {
		if t {
			n++
		}
	}
	switch {
	case len(s.Tokens) < 2 || len(s.LossMask) != len(s.Tokens) || s.LossMask[0]:
		return bad("%d tokens, %d mask values, first trained %t", len(s.Tokens), len(s.LossMask), len(s.LossMask) > 0 && s.LossMask[0])
	case len(s.Logprobs) != n || n == 0:
		return bad("%d tokens in the loss, %d log-probabilities", n, len(s.Logprobs))
	case len(s.Tokens) > c.MaxPositionEmbeddings:
		return bad("%d tokens, context is %d", len(s.Tokens), c.MaxPositionEmbeddings)
	case math.IsNaN(s.Advantage) || math.IsInf(s.Advantage, 0):
		return bad("advantage %g", s.Advantage)
	}
	for _, id := range s.Tokens {
		if id < 0 || int(id) >= c.VocabSize {
			return bad("token %d, vocabulary is %d", id, c.VocabSize)
		}
	}
	for _, lp := range s.Logprobs {
		if !(lp <= 0) || math.IsInf(float64(lp), 0) {
			return bad("log-probability %g", lp)
		}
	}
	return nil
}

// split cuts samples into n parts of about equal length, in order, never through an episode; empty parts are left out.
func split(samples []trainer.Sample, n int) [][]trainer.Sample {
	var parts [][]trainer.Sample
	from := 0
	for i := 1; i <= n; i++ {
		to := max(from, i*len(samples)/n)
		for to > 0 && to < len(samples) && samples[to].Episode == samples[to-1].Episode {
			to++
		}
		if to > from {
			parts = append(parts, samples[from:to])
		}
		from = to
	}
	return parts
}

// updater makes the updates of one step.
type updater struct {
	cfg     Config
	m       *model.Model
	opt     *model.AdamW
	batcher *model.Batcher

	measure objective.Measure
	loss    float64 // Σ over updates
	norm    float64 // of the last gradient
	updates int
}

// update makes one update on samples.
func (u *updater) update(samples []trainer.Sample) error {
	seqs, rows := make([]model.Sequence, len(samples)), make([]objective.Row, len(samples))
	for i, s := range samples {
		seqs[i] = model.Sequence{Tokens: s.Tokens, Action: s.LossMask}
		rows[i] = objective.Row{Rollout: s.Episode, Tokens: s.LossTokens()}
	}
	weights, err := u.cfg.Aggregate.Weights(rows, objective.Sum(rows), u.cfg.Length)
	if err != nil {
		return fmt.Errorf("trainer/tiny: update: %w", err)
	}
	// One slot for each sample: they are filled in any order and added in theirs.
	measures, losses := make([]objective.Measure, len(samples)), make([]float64, len(samples))
	grad, err := u.batcher.Gradient(seqs, func(i int, logp, entropy, dlogp, dentropy []float64) {
		s, w := samples[i], weights[i]
		for t, lp := range logp {
			behaviour := float64(s.Logprobs[t])
			loss, d, clip := u.cfg.Loss.Token(lp, behaviour, s.Advantage)
			losses[i] += w * (loss - u.cfg.Entropy*entropy[t])
			dlogp[t], dentropy[t] = w*d, -w*u.cfg.Entropy
			measures[i].Add(lp, behaviour, s.Advantage, entropy[t], clip)
		}
	})
	if err != nil {
		return fmt.Errorf("trainer/tiny: update: %w: %w", ErrSample, err)
	}
	for i := range samples {
		u.loss += losses[i]
		u.measure.Merge(measures[i])
	}
	u.norm = model.ClipNorm(grad, u.cfg.GradClip)
	if math.IsNaN(u.norm) || math.IsInf(u.norm, 0) {
		return fmt.Errorf("trainer/tiny: update %d: gradient norm %g: %w", u.updates, u.norm, ErrNotFinite)
	}
	u.opt.Step(u.m, grad, u.cfg.LR)
	u.updates++
	return nil
}

func (u *updater) metrics() Metrics {
	low, high := u.measure.LogRatioRange()
	return Metrics{
		Metrics: trainer.Metrics{
			Loss: u.loss / float64(u.updates), GradNorm: u.norm, Entropy: u.measure.Entropy(), KL: u.measure.KL(),
			ClipFractionPos: u.measure.ClipPositive(), ClipFractionNeg: u.measure.ClipNegative(), ESS: u.measure.ESS(),
		},
		Tokens: u.measure.Tokens, Updates: u.updates, MeanRatio: u.measure.MeanRatio(), LogRatioLow: low, LogRatioHigh: high,
	}
}
