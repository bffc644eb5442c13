package enginetest

import (
	"math"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy/engine"
)

func testSeeds(t *testing.T, s Subject) {
	goLive(t, s, 0)
	reqs := make([]engine.Request, 24)
	for i := range reqs {
		reqs[i] = ask(i, 5+i)
		reqs[i].Session = "" // nothing is reused: all is computed in the batch
	}
	batched := together(t, s, reqs)
	distinct := map[int32]bool{}
	for i, r := range reqs {
		alone := generate(t, s, r)
		require.Equal(t, alone, batched[i])
		distinct[alone.Tokens[0]] = true
	}
	require.Greater(t, len(distinct), 4, "different seeds give different tokens")
	other := reqs[23]
	other.Sampling.Seed++
	require.NotEqual(t, batched[23].Tokens, generate(t, s, other).Tokens)
}

func testDrawn(t *testing.T, s Subject) {
	goLive(t, s, 0)
	for i := range 8 {
		r := ask(i, 12)
		whole := generate(t, s, r)
		r.MaxTokens = 5
		first := generate(t, s, r)
		r.Prompt = append(append([]int32(nil), r.Prompt...), first.Tokens...)
		r.MaxTokens, r.Drawn = 7, 5
		second := generate(t, s, r)
		require.Equal(t, whole.Tokens, append(first.Tokens, second.Tokens...))
		require.Equal(t, whole.Logprobs, append(first.Logprobs, second.Logprobs...))
	}
}

func testScore(t *testing.T, s Subject) {
	goLive(t, s, 0)
	reqs := make([]engine.Request, 6)
	for i := range reqs {
		reqs[i] = ask(i, 20)
	}
	for i, r := range together(t, s, reqs) {
		verifyAgainstScore(t, s, reqs[i], r)
	}
	rows, err := s.Engine.Score(t.Context(), 0, [][]int32{{5}, {5, 6, 7}})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Empty(t, rows[0], "one token has nothing before it")
	require.Len(t, rows[1], 2)
}

// distribution returns the log-probabilities of every next token at temperature 1.
func distribution(t *testing.T, s Subject, history []int32) []float64 {
	t.Helper()
	prompts := make([][]int32, Vocabulary)
	for v := range prompts {
		prompts[v] = append(append([]int32(nil), history...), int32(v))
	}
	rows, err := s.Engine.Score(t.Context(), 0, prompts)
	require.NoError(t, err)
	out := make([]float64, Vocabulary)
	for v, r := range rows {
		out[v] = float64(r[len(r)-1])
	}
	return out
}

// filtered returns the probabilities left by temperature, top-k and top-p, computed in the plainest way.
func filtered(logp []float64, p engine.Sampling) []float64 {
	out, order, sum := make([]float64, len(logp)), make([]int, len(logp)), 0.0
	for i, lp := range logp {
		out[i] = math.Exp(lp / float64(p.Temperature))
		sum += out[i]
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return logp[order[a]] > logp[order[b]] })
	k := len(logp)
	if p.TopK > 0 {
		k = int(p.TopK)
	}
	top := 0.0
	for _, i := range order[:k] {
		top += out[i]
	}
	mass, n := 0.0, 0
	for n < k && mass < float64(p.TopP)*top-1e-9 {
		mass += out[order[n]]
		n++
	}
	for rank, i := range order {
		if rank >= n {
			out[i] = 0
		} else {
			out[i] /= mass
		}
	}
	return out
}

func testSampling(t *testing.T, s Subject) {
	goLive(t, s, 0)
	base := ask(3, 1)
	logp := distribution(t, s, base.Prompt)
	for name, p := range map[string]engine.Sampling{
		"temperature 1":   {Temperature: 1, TopP: 1},
		"temperature 0.5": {Temperature: 0.5, TopP: 1},
		"top-p":           {Temperature: 1, TopP: 0.6},
		"top-k":           {Temperature: 1, TopP: 1, TopK: 3},
		"all":             {Temperature: 2, TopP: 0.8, TopK: 9},
	} {
		t.Run(name, func(t *testing.T) {
			want := filtered(logp, p)
			reqs := make([]engine.Request, 2000)
			for i := range reqs {
				reqs[i] = base
				reqs[i].Session, reqs[i].Sampling = "", p
				reqs[i].Sampling.Seed = uint64(i)
			}
			counts := make([]float64, Vocabulary)
			for at := 0; at < len(reqs); at += 100 {
				for _, r := range together(t, s, reqs[at:at+100]) {
					id := r.Tokens[0]
					require.Positive(t, want[id], "token %d is outside of the support", id)
					require.InDelta(t, math.Log(want[id]), r.Logprobs[0], 1e-4)
					counts[id]++
				}
			}
			var chi float64
			for v, q := range want {
				if n := q * float64(len(reqs)); n > 0 {
					chi += (counts[v] - n) * (counts[v] - n) / n
				}
			}
			require.Less(t, chi, 80.0, "χ² of 31 degrees of freedom exceeds 80 once in 300,000 (the seeds are fixed)")
		})
	}
}

func testGreedy(t *testing.T, s Subject) {
	goLive(t, s, 0)
	r := ask(5, 6)
	r.Sampling.Temperature = 0
	out := generate(t, s, r)
	history := append([]int32(nil), r.Prompt...)
	for i, id := range out.Tokens {
		logp := distribution(t, s, history)
		for _, lp := range logp {
			require.LessOrEqual(t, lp, logp[id]+1e-6)
		}
		require.InDelta(t, logp[id], out.Logprobs[i], 1e-5, "taken at temperature 1")
		history = append(history, id)
	}
}
