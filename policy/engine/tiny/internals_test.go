package tiny

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

func TestT3_LogprobsAreProcessed(t *testing.T) {
	want := []float64{-0.142932, -2.142932, -4.142932}
	seen := map[int32]bool{}
	var s sampler
	for i := range 2000 {
		id, lp := s.draw([]float32{2, 1, 0}, engine.Sampling{Temperature: 0.5, TopP: 1}, uniform(1, uint64(i)))
		require.InDelta(t, want[id], lp, 1e-6)
		seen[id] = true
	}
	require.Len(t, seen, 3)
}

func TestT4_FiltersRenormalise(t *testing.T) {
	want := map[int32]float64{0: -0.313262, 1: -1.313262}
	seen := map[int32]bool{}
	var s sampler
	for i := range 2000 {
		id, lp := s.draw([]float32{2, 1, 0}, engine.Sampling{Temperature: 1, TopP: 0.9}, uniform(2, uint64(i)))
		require.Contains(t, want, id)
		require.InDelta(t, want[id], lp, 1e-6)
		seen[id] = true
	}
	require.Len(t, seen, 2)
	id, lp := s.draw([]float32{1, 3, 3}, engine.Sampling{Temperature: 1, TopP: 1, TopK: 1}, 0.999)
	require.Equal(t, int32(1), id, "lowest id among equals")
	require.Zero(t, lp)
}

func TestDrawTakesTheEnds(t *testing.T) {
	var s sampler
	id, _ := s.draw([]float32{0, 0, -1000}, engine.Sampling{Temperature: 1, TopP: 1}, 1-1e-17)
	require.Equal(t, int32(1), id, "never a token of no mass")
	id, _ = s.draw([]float32{-1000, 0, 0}, engine.Sampling{Temperature: 1, TopP: 1}, 0)
	require.Equal(t, int32(1), id)
}

func TestUniformIsUniform(t *testing.T) {
	const n, bins = 40000, 20
	for name, at := range map[string]func(i uint64) float64{
		"along a stream": func(i uint64) float64 { return uniform(7, i) },
		"across seeds":   func(i uint64) float64 { return uniform(i, 0) },
		"diagonal":       func(i uint64) float64 { return uniform(i, n-i) },
	} {
		var counts [bins]float64
		for i := range uint64(n) {
			u := at(i)
			require.Greater(t, u, 0.0)
			require.Less(t, u, 1.0)
			counts[int(u*bins)]++
		}
		var chi float64
		for _, c := range counts {
			chi += (c - n/bins) * (c - n/bins) / (n / bins)
		}
		require.Less(t, chi, 50.0, name)
	}
}

func testModel(t *testing.T) *model.Model {
	t.Helper()
	m, err := model.New(model.DefaultConfig(32), 1)
	require.NoError(t, err)
	return m
}

func TestPrefixesKeepWithinTheirBound(t *testing.T) {
	m := testModel(t)
	var dec model.Decoder
	w := &weights{model: m}
	p := newPrefixes(64 << 10)
	p.live(w)
	ids := make([]int32, 30)
	for i := range 50 {
		c := model.NewCache(m)
		_, err := dec.Extend(m, []model.Extension{{Cache: c, Tokens: ids[:29]}})
		require.NoError(t, err)
		p.put(fmt.Sprint(i), w, ids, c)
		require.LessOrEqual(t, p.held, int64(64<<10))
		require.Equal(t, len(p.byKey), p.order.Len())
	}
	require.Nil(t, p.take("0", w, ids), "the oldest is gone")
	require.Nil(t, p.take("49", &weights{model: m}, ids), "other weights, other salt")
	c := p.take("49", w, ids)
	require.NotNil(t, c)
	require.Equal(t, 29, c.Len())
	require.Nil(t, p.take("49", w, ids), "taken")
	p.live(&weights{model: m})
	require.Empty(t, p.byKey)
	require.Zero(t, p.held)
	require.Nil(t, p.take("48", w, ids))
}

func files(t *testing.T) func(context.Context, policy.Version, policy.Digest) (map[string][]byte, error) {
	t.Helper()
	f, err := testModel(t).Files()
	require.NoError(t, err)
	return func(_ context.Context, v policy.Version, _ policy.Digest) (map[string][]byte, error) {
		if v == 66 {
			c := model.DefaultConfig(64)
			m, err := model.New(c, 1)
			if err != nil {
				return nil, err
			}
			return m.Files()
		}
		return f, nil
	}
}

func TestVersionsHeldAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxVersions = 3
	e, err := New(cfg, files(t), func(context.Context, policy.Version) (policy.Digest, error) { return "", nil })
	require.NoError(t, err)
	defer e.Close()
	ctx := t.Context()
	require.NoError(t, e.Stage(ctx, 0, "a"))
	require.NoError(t, e.Flip(ctx, 0))
	for v := policy.Version(1); v < 10; v++ {
		require.NoError(t, e.Stage(ctx, v, "a"))
		require.LessOrEqual(t, len(e.shelf.byVersion), 3)
		require.Contains(t, e.shelf.byVersion, policy.Version(0), "live stays")
		require.Contains(t, e.shelf.byVersion, v)
	}
	require.ErrorIs(t, e.Flip(ctx, 3), engine.ErrVersion)
	require.NoError(t, e.Flip(ctx, 9))
	require.ErrorIs(t, e.Stage(ctx, 66, "a"), engine.ErrVersion, "another vocabulary")
}

func TestLoadsOfOneVersionAreShared(t *testing.T) {
	load := files(t)
	begun, proceed := make(chan struct{}, 8), make(chan struct{})
	e, err := New(DefaultConfig(), func(ctx context.Context, v policy.Version, d policy.Digest) (map[string][]byte, error) {
		begun <- struct{}{}
		select {
		case <-proceed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return load(ctx, v, d)
	}, nil)
	require.NoError(t, err)
	defer e.Close()
	first, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 4)
	go func() { errs <- e.Stage(first, 1, "a") }()
	<-begun
	for range 3 {
		go func() { errs <- e.Stage(t.Context(), 1, "a") }()
	}
	cancel() // the first caller's end is not the others'
	err = <-errs
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, errors.Is(err, engine.ErrVersion))
	<-begun
	close(proceed)
	for range 3 {
		require.NoError(t, <-errs)
	}
	require.Empty(t, begun, "one load for three")
}

func TestSoftmaxOfExtremes(t *testing.T) {
	probs := make([]float64, 3)
	logz := model.Softmax(probs, []float32{1e30, 0, -1e30})
	require.Equal(t, float64(float32(1e30)), logz)
	require.Equal(t, []float64{1, 0, 0}, probs)
	require.False(t, math.IsNaN(logz))
}
