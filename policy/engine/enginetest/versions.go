package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
)

// rounds bounds how often a test tries to meet a flip in the middle of a continuation.
const rounds = 200

func testFlips(t *testing.T, s Subject) {
	goLive(t, s, 0)
	stop := make(chan struct{})
	done := flipping(t, s, 3, stop)
	straddling := 0
	for round := range rounds {
		reqs := make([]engine.Request, 8)
		for i := range reqs {
			reqs[i] = ask(round*8+i, 120)
		}
		for i, r := range together(t, s, reqs) {
			if len(r.Spans) > 1 {
				straddling++
			}
			if round == 0 && i < 2 || len(r.Spans) > 1 && straddling <= 4 {
				verifyAgainstScore(t, s, reqs[i], r)
			}
		}
		if straddling >= 4 {
			break
		}
	}
	close(stop)
	require.NoError(t, <-done)
	require.GreaterOrEqual(t, straddling, 4, "no flip met a running continuation")
}

func testFlipIsABarrier(t *testing.T, s Subject) {
	goLive(t, s, 0)
	require.NoError(t, s.Engine.Stage(t.Context(), 1, s.Store.Digest(1)))
	for i := range 20 {
		v := policy.Version((i + 1) % 2)
		first := make(chan engine.Response, 1)
		req := ask(i, 100)
		go func() {
			r, err := s.Engine.Generate(t.Context(), req)
			if err != nil {
				r.Finish = engine.Finish(err.Error())
			}
			first <- r
		}()
		require.NoError(t, s.Engine.Flip(t.Context(), v))
		after := generate(t, s, ask(1000+i, 4)) // asked after the flip
		require.Equal(t, []policy.Span{{Start: 0, Length: 4, Version: v}}, after.Spans)
		r := <-first // ended before the flip, or went over, or began after it
		check(t, req, r)
		require.LessOrEqual(t, len(r.Spans), 2)
		if len(r.Spans) == 2 {
			require.Equal(t, v, r.Spans[1].Version)
		}
	}
}

func testPrefixes(t *testing.T, s Subject) {
	goLive(t, s, 0)
	turn := func(session string, prompt []int32) engine.Request {
		r := ask(2, 6)
		r.Session, r.Prompt = session, prompt
		return r
	}
	start := prompt(6)
	one := generate(t, s, turn("a", start))
	require.Zero(t, one.Cached)
	next := append(append(append([]int32(nil), start...), one.Tokens...), 9, 8, 7)
	two := generate(t, s, turn("a", next))
	fresh := generate(t, s, turn("", next))
	require.Equal(t, len(start)+len(one.Tokens)-1, two.Cached, "all that had been run through the model")
	require.Zero(t, fresh.Cached)
	two.Cached = 0
	require.Equal(t, fresh, two)

	// A history rewritten in its middle shares only what comes before.
	rewritten := append([]int32(nil), next...)
	rewritten[4] = (rewritten[4] + 1) % Vocabulary
	three := generate(t, s, turn("a", rewritten))
	require.Equal(t, 4, three.Cached)
	three.Cached = 0
	require.Equal(t, generate(t, s, turn("", rewritten)), three)

	// The same prompt again: at least one token has to be run.
	four := generate(t, s, turn("a", rewritten))
	require.Equal(t, len(rewritten)-1, four.Cached)

	// Under another version nothing is found, and nothing of it afterwards.
	goLive(t, s, 1)
	five := generate(t, s, turn("a", rewritten))
	require.Zero(t, five.Cached, "keys and values of version 0 must not serve version 1")
	verifyAgainstScore(t, s, turn("a", rewritten), five)
}

func testSessions(t *testing.T, s Subject) {
	goLive(t, s, 0)
	r := ask(1, 4)
	generate(t, s, r)
	r.Session = "another"
	require.Zero(t, generate(t, s, r).Cached)
}

func testPin(t *testing.T, s Subject) {
	goLive(t, s, 0)
	for _, v := range []policy.Version{2, 0, 3, 1} { // loaded on demand
		r := ask(int(v), 10)
		r.Pin = &v
		out := generate(t, s, r)
		require.Equal(t, []policy.Span{{Start: 0, Length: 10, Version: v}}, out.Spans)
		verifyAgainstScore(t, s, r, out)
	}
	missing := policy.Version(99)
	r := ask(1, 4)
	r.Pin = &missing
	_, err := s.Engine.Generate(t.Context(), r)
	require.ErrorIs(t, err, engine.ErrVersion)

	// Pinned requests beside live ones and across flips keep their version.
	stop := make(chan struct{})
	done := flipping(t, s, 2, stop)
	pin := policy.Version(2)
	reqs := make([]engine.Request, 16)
	for i := range reqs {
		reqs[i] = ask(i, 60)
		if i%2 == 0 {
			reqs[i].Pin = &pin
		}
	}
	for i, out := range together(t, s, reqs) {
		if i%2 == 0 {
			require.Equal(t, []policy.Span{{Start: 0, Length: 60, Version: pin}}, out.Spans)
		}
		verifyAgainstScore(t, s, reqs[i], out)
	}
	close(stop)
	require.NoError(t, <-done)
}

func testTwoPhases(t *testing.T, s Subject) {
	ctx := t.Context()
	_, ok, err := s.Engine.Serving(ctx)
	require.NoError(t, err)
	require.False(t, ok)
	_, err = s.Engine.Generate(ctx, ask(1, 4))
	require.ErrorIs(t, err, engine.ErrVersion, "nothing is live yet")
	require.ErrorIs(t, s.Engine.Flip(ctx, 1), engine.ErrVersion, "not staged")
	require.ErrorIs(t, s.Engine.Stage(ctx, 1, policy.DigestOf([]byte("nothing"))), engine.ErrVersion)

	loads := s.Store.Loads.Load()
	for range 3 {
		require.NoError(t, s.Engine.Stage(ctx, 1, s.Store.Digest(1)))
	}
	require.Equal(t, loads+1, s.Store.Loads.Load(), "staging is idempotent")
	_, ok, err = s.Engine.Serving(ctx)
	require.NoError(t, err)
	require.False(t, ok, "staged is not live")
	require.NoError(t, s.Engine.Flip(ctx, 1))
	require.NoError(t, s.Engine.Flip(ctx, 1))
	v, ok, err := s.Engine.Serving(ctx)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, policy.Version(1), v)

	// The same number under another manifest (a new lineage) replaces the staged one.
	before := generate(t, s, ask(4, 10))
	require.NoError(t, s.Engine.Stage(ctx, 1, s.Store.Digest(2)))
	require.Equal(t, before.Logprobs, generate(t, s, withSession(ask(4, 10), "")).Logprobs, "live until the flip")
	require.NoError(t, s.Engine.Flip(ctx, 1))
	require.NotEqual(t, before.Logprobs, generate(t, s, ask(4, 10)).Logprobs)
}

func withSession(r engine.Request, session string) engine.Request {
	r.Session = session
	return r
}
