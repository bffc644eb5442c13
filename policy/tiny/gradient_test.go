package tiny

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// shapes are the model variants every numeric test runs on.
func shapes() map[string]Config {
	base := DefaultConfig(40)
	gqa := base
	gqa.HiddenSize, gqa.NumAttentionHeads, gqa.NumKeyValueHeads, gqa.HeadDim = 32, 4, 2, 8
	tied := base
	tied.TieWordEmbeddings = true
	both := gqa
	both.TieWordEmbeddings = true
	wide := base // head_dim·heads ≠ hidden, and an odd number of everything else
	wide.HiddenSize, wide.NumAttentionHeads, wide.NumKeyValueHeads, wide.HeadDim = 21, 3, 1, 6
	wide.IntermediateSize, wide.VocabSize, wide.NumHiddenLayers = 37, 41, 3
	return map[string]Config{"mha": base, "gqa": gqa, "tied": tied, "gqa tied": both, "odd sizes": wide}
}

// randomBatch makes n ragged sequences with actions at random places.
func randomBatch(rng *rand.Rand, n, longest, vocab int) []Sequence {
	seqs := make([]Sequence, n)
	for i := range seqs {
		l := 2 + rng.IntN(longest-1)
		s := Sequence{Tokens: make([]int32, l), Action: make([]bool, l)}
		for t := range l {
			s.Tokens[t] = int32(rng.IntN(vocab))
			s.Action[t] = t > 0 && rng.IntN(2) == 0
		}
		seqs[i] = s
	}
	return seqs
}

// value is a smooth loss of log-probabilities and entropies with a different weight for each action.
func value(total *[]float64) Loss {
	return func(seq int, logp, ent, dlogp, dent []float64) {
		var v float64
		for i := range logp {
			a, b := 0.1*float64(seq%3-1)-0.05*float64(i%2), 0.02*float64(i%3)
			v += a*logp[i] + b*ent[i]
			dlogp[i], dent[i] = a, b
		}
		if total != nil {
			(*total)[seq] = v
		}
	}
}

func TestGradientAgainstFiniteDifferences(t *testing.T) {
	for name, c := range shapes() {
		t.Run(name, func(t *testing.T) {
			m, err := New(c, 7)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(1, 2))
			seqs := randomBatch(rng, 7, 19, c.VocabSize)
			b := NewBatcher(m)
			g, err := b.Gradient(seqs, value(nil))
			require.NoError(t, err)
			grad := append([]float32(nil), g...)
			loss := func() float64 {
				per := make([]float64, len(seqs))
				require.NoError(t, b.run(seqs, value(&per), false))
				var sum float64
				for _, v := range per {
					sum += v
				}
				return sum
			}
			for _, tn := range m.tensors {
				dir, along := make([]float64, tn.len()), 0.0
				for i := range dir {
					dir[i] = rng.NormFloat64()
					along += dir[i] * float64(grad[tn.off+i])
				}
				const eps = 1e-3
				saved := append([]float32(nil), m.w...)
				at := func(sign float64) float64 {
					copy(m.w, saved)
					for i := range dir {
						m.w[tn.off+i] += float32(sign * eps * dir[i])
					}
					m.refresh()
					return loss()
				}
				numeric := (at(1) - at(-1)) / (2 * eps)
				copy(m.w, saved)
				m.refresh()
				require.InDelta(t, numeric, along, 2e-3*math.Max(1, math.Abs(numeric)), tn.name)
			}
		})
	}
}

func hash(w []float32) [32]byte {
	b := make([]byte, 0, 4*len(w))
	for _, x := range w {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return sha256.Sum256(b)
}

func TestTrainingBitsDoNotFollowGOMAXPROCS(t *testing.T) {
	train := func(procs int) [32]byte {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		m, err := New(DefaultConfig(64), 3)
		require.NoError(t, err)
		b, opt := NewBatcher(m), NewAdamW(m, DefaultAdamW())
		for step := range 8 {
			seqs := randomBatch(rand.New(rand.NewPCG(9, uint64(step))), 40, 50, 64)
			g, err := b.Gradient(seqs, value(nil))
			require.NoError(t, err)
			ClipNorm(g, 1)
			opt.Step(m, g, 1e-2)
		}
		return hash(m.w)
	}
	one := train(1)
	require.Equal(t, one, train(2))
	require.Equal(t, one, train(4))
	m, err := New(DefaultConfig(64), 3)
	require.NoError(t, err)
	require.NotEqual(t, one, hash(m.w), "training changed nothing")
}

func TestLogprobsDoNotFollowTheBatch(t *testing.T) {
	for name, c := range shapes() {
		t.Run(name, func(t *testing.T) {
			m, err := New(c, 5)
			require.NoError(t, err)
			seqs := randomBatch(rand.New(rand.NewPCG(4, 4)), 30, 60, c.VocabSize)
			all, err := NewBatcher(m).Logprobs(seqs)
			require.NoError(t, err)
			for i, s := range seqs {
				one, err := NewBatcher(m).Logprobs([]Sequence{s})
				require.NoError(t, err)
				require.Equal(t, all[i], one[0])
			}
		})
	}
}

func TestBatchRefusesWhatDoesNotFit(t *testing.T) {
	c := DefaultConfig(32)
	c.MaxPositionEmbeddings = 8
	m, err := New(c, 1)
	require.NoError(t, err)
	for name, s := range map[string]Sequence{
		"id beyond the vocabulary": {Tokens: []int32{1, 32}, Action: []bool{false, true}},
		"negative id":              {Tokens: []int32{-1, 2}, Action: []bool{false, true}},
		"flags of another length":  {Tokens: []int32{1, 2}, Action: []bool{false}},
		"first token is an action": {Tokens: []int32{1, 2}, Action: []bool{true, true}},
		"longer than the context":  {Tokens: make([]int32, 9), Action: make([]bool, 9)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewBatcher(m).Logprobs([]Sequence{s})
			require.ErrorIs(t, err, ErrTokens)
		})
	}
}

func TestExp32(t *testing.T) {
	for x := float32(-86); x < 88; x += 0.0137 {
		want := math.Exp(float64(x))
		require.InEpsilon(t, want, float64(exp32(x)), 2.5e-7, "at %v", x)
	}
	require.Zero(t, exp32(-200))
	require.Zero(t, exp32(float32(math.Inf(-1))))
	require.Equal(t, float32(1), exp32(0))
}
