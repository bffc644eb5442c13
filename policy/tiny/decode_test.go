package tiny

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// decodeLogprobs scores tokens 1..n-1 with a cache, cutting the sequence at random.
func decodeLogprobs(t *testing.T, m *Model, d *Decoder, rng *rand.Rand, tokens []int32) []float64 {
	t.Helper()
	cache, p := NewCache(m), make([]float64, m.cfg.VocabSize)
	out := make([]float64, 0, len(tokens))
	for i := 0; i < len(tokens)-1; i++ {
		// Other sequences in the batch, and a detour that is taken back, must not matter.
		other := NewCache(m)
		if cache.Len() > 0 && rng.IntN(3) == 0 {
			_, err := d.Extend(m, []Extension{{Cache: cache, Tokens: []int32{1, 2, 3}}})
			require.NoError(t, err)
			cache.Truncate(i)
		}
		logits, err := d.Extend(m, []Extension{
			{Cache: other, Tokens: tokens[:1+rng.IntN(len(tokens)-1)], Want: rng.IntN(2) == 0},
			{Cache: cache, Tokens: tokens[i : i+1], Want: true},
		})
		require.NoError(t, err)
		logz := Softmax(p, logits[1])
		out = append(out, float64(logits[1][tokens[i+1]])-logz)
	}
	return out
}

func TestDecodingGivesTheBitsOfTraining(t *testing.T) {
	for name, c := range shapes() {
		t.Run(name, func(t *testing.T) {
			c.MaxPositionEmbeddings = 64
			m, err := New(c, 11)
			require.NoError(t, err)
			rng, d := rand.New(rand.NewPCG(8, 8)), &Decoder{}
			for range 4 {
				s := full(1, 5+rng.IntN(50), c.VocabSize)[0]
				want, err := NewBatcher(m).Logprobs([]Sequence{s})
				require.NoError(t, err)
				require.Equal(t, want[0], decodeLogprobs(t, m, d, rng, s.Tokens))
			}
		})
	}
}

func TestPrefillInPiecesGivesTheSameLogits(t *testing.T) {
	m, err := New(DefaultConfig(64), 2)
	require.NoError(t, err)
	s := full(1, 90, 64)[0].Tokens
	d := &Decoder{}
	whole, err := d.Extend(m, []Extension{{Cache: NewCache(m), Tokens: s, Want: true}})
	require.NoError(t, err)
	want := append([]float32(nil), whole[0]...)
	cache := NewCache(m)
	for at := 0; at < len(s); at += 17 {
		got, err := d.Extend(m, []Extension{{Cache: cache, Tokens: s[at:min(at+17, len(s))], Want: true}})
		require.NoError(t, err)
		whole = got
	}
	require.Equal(t, want, whole[0])
	require.Equal(t, 90, cache.Len())
	require.Positive(t, cache.Bytes())
}

func TestExtendRefusesBeyondTheContext(t *testing.T) {
	c := DefaultConfig(32)
	c.MaxPositionEmbeddings = 4
	m, err := New(c, 1)
	require.NoError(t, err)
	d, cache := &Decoder{}, NewCache(m)
	_, err = d.Extend(m, []Extension{{Cache: cache, Tokens: []int32{1, 2, 3}}})
	require.NoError(t, err)
	_, err = d.Extend(m, []Extension{{Cache: cache, Tokens: []int32{1, 2}}})
	require.ErrorIs(t, err, ErrTokens)
	_, err = d.Extend(m, []Extension{{Cache: cache, Tokens: nil}})
	require.ErrorIs(t, err, ErrTokens)
	require.Equal(t, 3, cache.Len())
}
