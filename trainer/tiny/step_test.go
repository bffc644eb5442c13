package tiny

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/trainer"
	"github.com/rlfleet/rlfleet/trainer/objective"
)

func testModel(t *testing.T) *model.Model {
	t.Helper()
	m, err := model.New(model.DefaultConfig(32), 5)
	require.NoError(t, err)
	return m
}

// onPolicy makes n samples whose behaviour log-probabilities are m's own; two neighbours share an episode.
func onPolicy(t *testing.T, m *model.Model, n int) []trainer.Sample {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	out, seqs := make([]trainer.Sample, n), make([]model.Sequence, n)
	for i := range out {
		s := trainer.Sample{Episode: string(rune('a' + i/2)), Branch: int32(i % 2), Advantage: rng.NormFloat64(), Weight: 0.5}
		for j := range 4 + rng.IntN(20) {
			s.Tokens = append(s.Tokens, int32(rng.IntN(32)))
			s.LossMask = append(s.LossMask, j > 0 && (j == 1 || rng.IntN(2) == 0))
		}
		out[i], seqs[i] = s, model.Sequence{Tokens: s.Tokens, Action: s.LossMask}
	}
	logps, err := model.NewBatcher(m).Logprobs(seqs)
	require.NoError(t, err)
	for i := range out {
		for _, lp := range logps[i] {
			out[i].Logprobs = append(out[i].Logprobs, float32(lp))
		}
	}
	return out
}

func digest(t *testing.T, m *model.Model, opt *model.AdamW) policy.Digest {
	t.Helper()
	files, err := Files(m, opt)
	require.NoError(t, err)
	return policy.DigestOf(append(files[model.WeightsFile], files[model.OptimizerFile]...))
}

func TestOneUpdateOnPolicy(t *testing.T) {
	m := testModel(t)
	opt := model.NewAdamW(m, model.DefaultAdamW())
	samples := onPolicy(t, m, 12)
	before := digest(t, m, opt)
	got, err := Train(t.Context(), m, opt, samples, DefaultConfig())
	require.NoError(t, err)
	require.NotEqual(t, before, digest(t, m, opt))
	var tokens int64
	var want float64 // token mean of −A, the ratio being 1, minus the entropy bonus
	for _, s := range samples {
		tokens += int64(s.LossTokens())
		want -= s.Advantage * float64(s.LossTokens())
	}
	want = want/float64(tokens) - 0.005*got.Entropy
	require.Equal(t, tokens, got.Tokens)
	require.Equal(t, 1, got.Updates)
	require.InDelta(t, want, got.Loss, 1e-6)
	require.InDelta(t, 1, got.ESS, 1e-9)
	require.InDelta(t, 1, got.MeanRatio, 1e-6)
	require.InDelta(t, 0, got.KL, 1e-9)
	require.Zero(t, got.ClipFractionPos)
	require.Zero(t, got.ClipFractionNeg)
	require.Positive(t, got.GradNorm)
	require.InDelta(t, math.Log(32), got.Entropy, 0.3)
}

// The derivative of the reported loss along the gradient's direction is what an
// update of plain gradient descent would change: a small step lowers the loss.
func TestUpdatesLowerTheLoss(t *testing.T) {
	for _, a := range []objective.Aggregate{objective.TokenMean, objective.SeqMeanMean, objective.SeqMeanSum, objective.SeqMeanSumNorm} {
		t.Run(string(a), func(t *testing.T) {
			m := testModel(t)
			samples := onPolicy(t, m, 12)
			c := DefaultConfig()
			c.Aggregate, c.Length, c.LR, c.Epochs = a, 8, 1e-3, 2
			opt := model.NewAdamW(m, c.Optimizer)
			two, err := Train(t.Context(), m, opt, samples, c)
			require.NoError(t, err)
			m = testModel(t)
			c.Epochs = 1
			one, err := Train(t.Context(), m, model.NewAdamW(m, c.Optimizer), samples, c)
			require.NoError(t, err)
			second := 2*two.Loss - one.Loss // the reported value is the mean of both updates
			require.Less(t, second, one.Loss)
		})
	}
}

func TestManyUpdatesMeetTheClip(t *testing.T) {
	m := testModel(t)
	samples := onPolicy(t, m, 12)
	c := DefaultConfig()
	c.Epochs, c.Minibatches, c.LR = 6, 3, 1e-2
	got, err := Train(t.Context(), m, model.NewAdamW(m, c.Optimizer), samples, c)
	require.NoError(t, err)
	require.Equal(t, 18, got.Updates)
	require.Positive(t, got.ClipFractionPos)
	require.Positive(t, got.ClipFractionNeg)
	require.Positive(t, got.KL)
	require.Less(t, got.ESS, 1.0)
	require.Less(t, got.LogRatioLow, -0.1)
	require.Greater(t, got.LogRatioHigh, 0.1)
}

func TestStepsAreRepeatable(t *testing.T) {
	run := func(procs int) policy.Digest {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		m := testModel(t)
		opt := model.NewAdamW(m, model.DefaultAdamW())
		samples := onPolicy(t, m, 40)
		c := DefaultConfig()
		c.Minibatches = 2
		for range 3 {
			_, err := Train(t.Context(), m, opt, samples, c)
			require.NoError(t, err)
			files, err := Files(m, opt)
			require.NoError(t, err)
			m, opt, err = Load(files, c.Optimizer) // a step may always begin from the stored checkpoint
			require.NoError(t, err)
		}
		return digest(t, m, opt)
	}
	one := run(1)
	require.Equal(t, one, run(2))
	require.Equal(t, one, run(4))

	m := testModel(t)
	opt := model.NewAdamW(m, model.DefaultAdamW())
	c := DefaultConfig()
	c.Minibatches = 2
	samples := onPolicy(t, m, 40)
	for range 3 {
		_, err := Train(t.Context(), m, opt, samples, c)
		require.NoError(t, err)
	}
	require.Equal(t, one, digest(t, m, opt), "going on in memory and going on from files is the same")
}

func TestSplitKeepsEpisodesWhole(t *testing.T) {
	var samples []trainer.Sample
	for _, e := range "aabbbbcdde" {
		samples = append(samples, trainer.Sample{Episode: string(e)})
	}
	for n := 1; n <= 12; n++ {
		var all []trainer.Sample
		for i, part := range split(samples, n) {
			require.NotEmpty(t, part)
			if i > 0 {
				require.NotEqual(t, all[len(all)-1].Episode, part[0].Episode)
			}
			all = append(all, part...)
		}
		require.Equal(t, samples, all)
		require.LessOrEqual(t, len(split(samples, n)), n)
	}
}

func TestSamplesThatCannotBeTrainedAreNamed(t *testing.T) {
	m := testModel(t)
	opt := model.NewAdamW(m, model.DefaultAdamW())
	before := digest(t, m, opt)
	nan := math.NaN()
	for name, change := range map[string]func(*trainer.Sample){
		"a log-probability is missing (T39)": func(s *trainer.Sample) { s.Logprobs = s.Logprobs[1:] },
		"none are there":                     func(s *trainer.Sample) { s.Logprobs = nil },
		"nothing in the loss":                func(s *trainer.Sample) { s.LossMask, s.Logprobs = make([]bool, len(s.Tokens)), nil },
		"mask of another length":             func(s *trainer.Sample) { s.LossMask = s.LossMask[1:] },
		"first token in the loss":            func(s *trainer.Sample) { s.LossMask[0] = true; s.Logprobs = append(s.Logprobs, -1) },
		"positive log-probability":           func(s *trainer.Sample) { s.Logprobs[0] = 0.1 },
		"log-probability not a number":       func(s *trainer.Sample) { s.Logprobs[0] = float32(nan) },
		"advantage not a number":             func(s *trainer.Sample) { s.Advantage = nan },
		"unknown id":                         func(s *trainer.Sample) { s.Tokens[1] = 32 },
		"longer than the context": func(s *trainer.Sample) {
			s.Tokens = append(s.Tokens, make([]int32, 512)...)
			s.LossMask = append(s.LossMask, make([]bool, 512)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			samples := onPolicy(t, m, 4)
			samples[3].Episode = "the-bad-one"
			change(&samples[3])
			_, err := Train(t.Context(), m, opt, samples, DefaultConfig())
			require.ErrorIs(t, err, ErrSample)
			require.ErrorContains(t, err, "the-bad-one")
			require.Equal(t, before, digest(t, m, opt), "nothing was changed")
		})
	}
	_, err := Train(t.Context(), m, opt, nil, DefaultConfig())
	require.ErrorIs(t, err, ErrSample)
}

func TestBackend(t *testing.T) {
	m := testModel(t)
	initial, err := m.Files()
	require.NoError(t, err)
	samples := onPolicy(t, m, 8)
	b, err := New(DefaultConfig())
	require.NoError(t, err)
	_, err = b.Train(t.Context(), trainer.Batch{Samples: samples})
	require.ErrorIs(t, err, ErrUnloaded)
	_, err = b.Files()
	require.ErrorIs(t, err, ErrUnloaded)
	require.Zero(t, b.Context())

	require.NoError(t, b.Load(initial), "version 0 has no optimizer")
	require.Equal(t, 512, b.Context())
	got, err := b.Train(t.Context(), trainer.Batch{Samples: samples})
	require.NoError(t, err)
	require.Positive(t, got.GradNorm)
	first, err := b.Files()
	require.NoError(t, err)
	require.Len(t, first, 3)

	require.NoError(t, b.Load(initial))
	_, err = b.Train(t.Context(), trainer.Batch{Samples: samples})
	require.NoError(t, err)
	again, err := b.Files()
	require.NoError(t, err)
	require.Equal(t, first, again, "the same step from the same files")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Train(ctx, trainer.Batch{Samples: samples})
	require.ErrorIs(t, err, context.Canceled)
	_, err = b.Files()
	require.ErrorIs(t, err, ErrUnloaded, "undefined until the next Load")
	require.ErrorIs(t, b.Load(map[string][]byte{}), model.ErrMissing)
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no epochs":         func(c *Config) { c.Epochs = 0 },
		"no minibatches":    func(c *Config) { c.Minibatches = 0 },
		"negative rate":     func(c *Config) { c.LR = -1 },
		"rate not a number": func(c *Config) { c.LR = math.NaN() },
		"beta of 1":         func(c *Config) { c.Optimizer.Beta2 = 1 },
		"clip below 0":      func(c *Config) { c.Loss.Low = -1 },
		"unknown aggregate": func(c *Config) { c.Aggregate = "mean" },
		"norm of nothing":   func(c *Config) { c.Aggregate = objective.SeqMeanSumNorm },
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			change(&c)
			_, err := New(c)
			require.ErrorIs(t, err, ErrConfig)
		})
	}
}
