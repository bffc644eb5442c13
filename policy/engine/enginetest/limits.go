package enginetest

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy/engine"
)

// testStop covers T13: the stop id is the last token, with its log-probability.
func testStop(t *testing.T, s Subject) {
	goLive(t, s, 0)
	stopped := 0
	for i := range 20 {
		r := ask(i, 40)
		r.Session = ""
		free := generate(t, s, r)
		require.Equal(t, engine.FinishLength, free.Finish)
		require.Len(t, free.Tokens, 40)
		r.Stop = []int32{11, 17}
		at := -1
		for j, id := range free.Tokens {
			if id == 11 || id == 17 {
				at = j
				break
			}
		}
		out := generate(t, s, r)
		if at < 0 {
			require.Equal(t, free, out)
			continue
		}
		stopped++
		require.Equal(t, engine.FinishStop, out.Finish)
		require.Equal(t, free.Tokens[:at+1], out.Tokens)
		require.Equal(t, free.Logprobs[:at+1], out.Logprobs)
		verifyAgainstScore(t, s, r, out)
	}
	require.Positive(t, stopped)
}

func testContext(t *testing.T, s Subject) {
	goLive(t, s, 0)
	r := ask(1, 50)
	r.Prompt = make([]int32, Context-10)
	out := generate(t, s, r)
	require.Len(t, out.Tokens, 10)
	require.Equal(t, engine.FinishLength, out.Finish)
	verifyAgainstScore(t, s, r, out)

	r.Prompt = make([]int32, Context-1)
	require.Len(t, generate(t, s, r).Tokens, 1)
	for _, n := range []int{Context, Context + 1} {
		r.Prompt = make([]int32, n)
		_, err := s.Engine.Generate(t.Context(), r)
		require.ErrorIs(t, err, engine.ErrTooLong)
	}
}

func testRefusals(t *testing.T, s Subject) {
	goLive(t, s, 0)
	for name, change := range map[string]func(*engine.Request){
		"empty prompt":           func(r *engine.Request) { r.Prompt = nil },
		"no tokens asked for":    func(r *engine.Request) { r.MaxTokens = 0 },
		"negative drawn":         func(r *engine.Request) { r.Drawn = -1 },
		"id beyond vocabulary":   func(r *engine.Request) { r.Prompt = []int32{1, Vocabulary} },
		"negative id":            func(r *engine.Request) { r.Prompt = []int32{-1} },
		"negative temperature":   func(r *engine.Request) { r.Sampling.Temperature = -1 },
		"temperature not number": func(r *engine.Request) { r.Sampling.Temperature = float32(math.NaN()) },
		"top-p 0":                func(r *engine.Request) { r.Sampling.TopP = 0 },
		"top-p above 1":          func(r *engine.Request) { r.Sampling.TopP = 1.5 },
		"negative top-k":         func(r *engine.Request) { r.Sampling.TopK = -1 },
	} {
		r := ask(1, 4)
		change(&r)
		_, err := s.Engine.Generate(t.Context(), r)
		require.ErrorIs(t, err, engine.ErrInvalid, name)
	}
	_, err := s.Engine.Score(t.Context(), 0, [][]int32{{1, Vocabulary}})
	require.ErrorIs(t, err, engine.ErrInvalid)
	_, err = s.Engine.Score(t.Context(), 0, [][]int32{make([]int32, Context+1)})
	require.ErrorIs(t, err, engine.ErrTooLong)
	_, err = s.Engine.Score(t.Context(), 77, [][]int32{{1, 2}})
	require.ErrorIs(t, err, engine.ErrVersion)
	generate(t, s, ask(1, 4)) // and goes on
}

func testCancel(t *testing.T, s Subject) {
	goLive(t, s, 0)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Engine.Generate(cancelled, ask(1, 4))
	require.ErrorIs(t, err, context.Canceled)

	// More requests than the engine holds, each cancelled inside or while it waits for a slot.
	ctx, cancel := context.WithCancel(t.Context())
	n := 2*s.Pending + 1
	errs := make(chan error, n)
	for i := range n {
		most := Context
		if i%10 == 0 {
			most = 8 // some end by themselves, so that others come in
		}
		go func() {
			_, err := s.Engine.Generate(ctx, ask(i, most))
			errs <- err
		}()
	}
	first := <-errs
	cancel()
	for range n - 1 {
		if err := <-errs; err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.NoError(t, first)
	for i := range n { // all slots can be had again
		generate(t, s, ask(i, 2))
	}
}

func testClosed(t *testing.T, s Subject) {
	goLive(t, s, 0)
	errs := make(chan error, 4)
	begun := make(chan struct{})
	for i := range 4 {
		go func() {
			var err error
			for n := 0; err == nil; n++ {
				_, err = s.Engine.Generate(t.Context(), ask(i, 30))
				if n == 0 && i == 0 {
					close(begun)
				}
			}
			errs <- err
		}()
	}
	<-begun
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	for range 4 {
		require.ErrorIs(t, <-errs, engine.ErrClosed)
	}
	ctx := t.Context()
	_, err := s.Engine.Generate(ctx, ask(1, 4))
	require.ErrorIs(t, err, engine.ErrClosed)
	_, err = s.Engine.Score(ctx, 0, [][]int32{{1, 2}})
	require.ErrorIs(t, err, engine.ErrClosed)
	require.ErrorIs(t, s.Engine.Stage(ctx, 1, s.Store.Digest(1)), engine.ErrClosed)
	require.ErrorIs(t, s.Engine.Flip(ctx, 0), engine.ErrClosed)
	_, _, err = s.Engine.Serving(ctx)
	require.ErrorIs(t, err, engine.ErrClosed)
}
