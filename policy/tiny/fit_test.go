package tiny

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// copies are demonstrations whose answer is the word shown: learnable exactly.
func copies(n int) []Episode {
	rng := rand.New(rand.NewPCG(5, 6))
	out := make([]Episode, n)
	for i := range out {
		f, d := fmt.Sprint("F", rng.IntN(4)), fmt.Sprint("D", rng.IntN(4))
		out[i] = Episode{Turns: []Turn{{"user", "read " + f}, {"assistant", "cat " + f}, {"tool", d}, {"assistant", "answer " + d}}}
	}
	return out
}

func TestFitLearnsDemonstrations(t *testing.T) {
	f := DefaultFit()
	f.Steps, f.Batch, f.Seed = 120, 32, 3
	var first, last float64
	f.Progress = func(step int, loss float64) {
		if step == 0 {
			first = loss
		}
		last = loss
	}
	m, tok, err := Init(context.Background(), DefaultConfig(0), copies(200), []string{"extra"}, f)
	require.NoError(t, err)
	require.Greater(t, first, 2.0)
	require.Less(t, last, 0.05, "mean nats a token: every token follows from what was read")
	require.Equal(t, "extra", tok.Word(tok.Encode("extra")[0]))
	require.Equal(t, tok.Size(), m.Config().VocabSize)

	// Greedy decoding of an unseen history copies the observation.
	r, d := NewRenderer(tok, 0), &Decoder{}
	seen, _ := r.Observe("D1")
	history := slices.Concat(r.Start("read F2"), r.Open(), tok.Encode("cat F2"), []int32{End}, seen, r.Open())
	cache := NewCache(m)
	var said []int32
	for range 3 {
		l, err := d.Extend(m, []Extension{{Cache: cache, Tokens: history, Want: true}})
		require.NoError(t, err)
		best := 0
		for i, x := range l[0] {
			if x > l[0][best] {
				best = i
			}
		}
		said = append(said, int32(best))
		history = []int32{int32(best)}
	}
	require.Equal(t, "answer D1", r.Text(said))
}

func TestFitIsAFunctionOfItsSeed(t *testing.T) {
	run := func(seed uint64) [32]byte {
		f := DefaultFit()
		f.Steps, f.Batch, f.Seed = 10, 16, seed
		m, _, err := Init(context.Background(), DefaultConfig(0), copies(20), nil, f)
		require.NoError(t, err)
		return hash(m.w)
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
}

func TestFitRefuses(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := Init(ctx, DefaultConfig(0), copies(4), nil, DefaultFit())
	require.ErrorIs(t, err, context.Canceled)

	small := DefaultConfig(0)
	small.MaxPositionEmbeddings = 6
	_, _, err = Init(context.Background(), small, copies(4), nil, DefaultFit())
	require.ErrorIs(t, err, ErrCorpus, "an episode longer than the context")

	_, _, err = Init(context.Background(), DefaultConfig(0), nil, nil, DefaultFit())
	require.ErrorIs(t, err, ErrCorpus)

	f := DefaultFit()
	f.Batch = 0
	_, _, err = Init(context.Background(), DefaultConfig(0), copies(4), nil, f)
	require.ErrorIs(t, err, ErrConfig)
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,
		"rope_parameters":{"rope_theta":5e5,"rope_type":"default"},"dtype":"float32","bos_token_id":1,"eos_token_id":4,"pad_token_id":0}`))
	require.NoError(t, err)
	require.Equal(t, 2, c.NumKeyValueHeads)
	require.Equal(t, 16, c.HeadDim)
	require.Equal(t, 5e5, c.RopeTheta)
	for name, text := range map[string]string{
		"scaled rope":     `{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,"rope_scaling":{"type":"linear"}}`,
		"scaled rope v5":  `{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,"rope_parameters":{"rope_type":"yarn"}}`,
		"bias":            `{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,"attention_bias":true}`,
		"no layers":       `{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_attention_heads":2}`,
		"heads to groups": `{"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":3,"num_key_value_heads":2,"head_dim":8}`,
	} {
		_, err := ParseConfig([]byte(text))
		require.ErrorIs(t, err, ErrConfig, name)
	}
}
