// Package enginetest is the conformance suite of engine.Engine: what every engine must do, real or remote.
package enginetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
)

// Subject is an engine under test with nothing staged and nothing live.
type Subject struct {
	Engine  engine.Engine
	Close   func() error // ends the engine; may be called twice
	Store   *Policies    // the policies that it loads
	Pending int          // how many requests it holds at once; a further one waits outside
}

// Run runs the suite. open returns a fresh engine over the given policies; it
// must be closed by the test's cleanup.
func Run(t *testing.T, open func(t *testing.T, p *Policies) Subject) {
	policies := NewPolicies(t, 4)
	for _, c := range []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"tokens are a function of seed and index, whatever the batch", testSeeds},
		{"a continuation in two calls is the same continuation", testDrawn},
		{"log-probabilities are those of the version", testScore},
		{"log-probabilities are those of the distribution drawn from", testSampling},
		{"greedy takes the most likely token", testGreedy},
		{"flips mid-generation leave exact spans and no foreign keys", testFlips},
		{"after a flip no token is of the old version", testFlipIsABarrier},
		{"prefixes are reused under one version only", testPrefixes},
		{"sessions do not share", testSessions},
		{"stop ids end a continuation and are kept", testStop},
		{"a continuation ends at the context", testContext},
		{"bad requests are refused by kind", testRefusals},
		{"a pin samples from exactly that version", testPin},
		{"versions are staged, then flipped to", testTwoPhases},
		{"a cancelled request frees its slot", testCancel},
		{"a closed engine says so", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t, policies)) })
	}
}

// goLive stages and flips to v.
func goLive(t *testing.T, s Subject, v policy.Version) {
	t.Helper()
	require.NoError(t, s.Engine.Stage(t.Context(), v, s.Store.Digest(v)))
	require.NoError(t, s.Engine.Flip(t.Context(), v))
}

// ask returns a request of session i with its own prompt, at temperature 1, without stop ids.
func ask(i, most int) engine.Request {
	return engine.Request{
		Session: fmt.Sprint("episode-", i), Prompt: prompt(i), MaxTokens: most,
		Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: uint64(1000 + i)},
	}
}

func prompt(i int) []int32 {
	p := make([]int32, 3+i%7)
	for j := range p {
		p[j] = int32((7*i + 3*j + 1) % Vocabulary)
	}
	return p
}

// together runs all requests at once.
func together(t *testing.T, s Subject, reqs []engine.Request) []engine.Response {
	t.Helper()
	out, errs := make([]engine.Response, len(reqs)), make([]error, len(reqs))
	var wg sync.WaitGroup
	for i, r := range reqs {
		wg.Go(func() { out[i], errs[i] = s.Engine.Generate(t.Context(), r) })
	}
	wg.Wait()
	for i := range errs {
		require.NoError(t, errs[i])
		check(t, reqs[i], out[i])
	}
	return out
}

// check asserts what holds for every response.
func check(t *testing.T, req engine.Request, r engine.Response) {
	t.Helper()
	require.NotEmpty(t, r.Tokens)
	require.LessOrEqual(t, len(r.Tokens), req.MaxTokens)
	require.Len(t, r.Logprobs, len(r.Tokens))
	require.NoError(t, policy.CheckSpans(r.Spans, int32(len(r.Tokens))))
	require.Less(t, r.Cached, len(req.Prompt))
	for _, lp := range r.Logprobs {
		require.LessOrEqual(t, lp, float32(0))
		require.Greater(t, lp, float32(-200))
	}
	require.Contains(t, []engine.Finish{engine.FinishStop, engine.FinishLength}, r.Finish)
}

// verifyAgainstScore asserts that each token's log-probability is that of the
// version its span names, given everything before it.
func verifyAgainstScore(t *testing.T, s Subject, req engine.Request, r engine.Response) {
	t.Helper()
	whole := append(append([]int32(nil), req.Prompt...), r.Tokens...)
	for _, span := range r.Spans {
		score, err := s.Engine.Score(t.Context(), span.Version, [][]int32{whole})
		require.NoError(t, err)
		require.Len(t, score[0], len(whole)-1)
		for i := span.Start; i < span.Start+span.Length; i++ {
			want := score[0][len(req.Prompt)-1+int(i)]
			require.InDelta(t, want, r.Logprobs[i], 1e-5, "token %d of version %d", i, span.Version)
		}
	}
}

func generate(t *testing.T, s Subject, r engine.Request) engine.Response {
	t.Helper()
	out, err := s.Engine.Generate(t.Context(), r)
	require.NoError(t, err)
	check(t, r, out)
	return out
}

// flipping goes round the versions, staging and flipping, until stop is closed;
// then it reports. Between two flips it samples a few tokens itself, so that the
// pace is the engine's own and running continuations get on.
func flipping(t *testing.T, s Subject, versions int, stop <-chan struct{}) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			v := policy.Version(i % versions)
			if err := s.Engine.Stage(ctx, v, s.Store.Digest(v)); err != nil {
				done <- err
				return
			}
			if err := s.Engine.Flip(ctx, v); err != nil {
				done <- err
				return
			}
			if _, err := s.Engine.Generate(ctx, ask(5000+i, 20)); err != nil {
				done <- err
				return
			}
		}
	}()
	return done
}
