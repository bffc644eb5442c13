package engine_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy/engine"
)

func TestRequestValidate(t *testing.T) {
	good := engine.Request{Prompt: []int32{0, 9}, MaxTokens: 1, Sampling: engine.Sampling{Temperature: 1, TopP: 1}}
	require.NoError(t, good.Validate(10, 3))
	for _, c := range []struct {
		name   string
		change func(*engine.Request)
		kind   error
	}{
		{"no prompt", func(r *engine.Request) { r.Prompt = nil }, engine.ErrInvalid},
		{"nothing to sample", func(r *engine.Request) { r.MaxTokens = 0 }, engine.ErrInvalid},
		{"drawn before the start", func(r *engine.Request) { r.Drawn = -1 }, engine.ErrInvalid},
		{"cold", func(r *engine.Request) { r.Sampling.Temperature = -0.1 }, engine.ErrInvalid},
		{"infinitely hot", func(r *engine.Request) { r.Sampling.Temperature = float32(math.Inf(1)) }, engine.ErrInvalid},
		{"top-p not set", func(r *engine.Request) { r.Sampling.TopP = 0 }, engine.ErrInvalid},
		{"top-k negative", func(r *engine.Request) { r.Sampling.TopK = -1 }, engine.ErrInvalid},
		{"id of another vocabulary", func(r *engine.Request) { r.Prompt = []int32{10} }, engine.ErrInvalid},
		{"no room for a token", func(r *engine.Request) { r.Prompt = []int32{1, 2, 3} }, engine.ErrTooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := good
			c.change(&r)
			require.ErrorIs(t, r.Validate(10, 3), c.kind)
		})
	}
	greedy := good
	greedy.Sampling.Temperature = 0
	require.NoError(t, greedy.Validate(10, 3))
}
