package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	tinyengine "github.com/rlfleet/rlfleet/policy/engine/tiny"
	"github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// vocab is about the demo's vocabulary.
const vocab = 64

// batchOf makes n sequences of random tokens, all but the first of them actions.
func batchOf(n, length int) []tiny.Sequence {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([]tiny.Sequence, n)
	for i := range out {
		s := tiny.Sequence{Tokens: make([]int32, length), Action: make([]bool, length)}
		for t := range length {
			s.Tokens[t], s.Action[t] = int32(rng.IntN(vocab)), t > 0
		}
		out[i] = s
	}
	return out
}

// rate calls f, which returns how many tokens it did, for about a second three
// times, and returns the best tokens per second of processor and of wall time.
func (b *bench) rate(ctx context.Context, f func() (int, error)) (perCPU, perWall float64, err error) {
	for range 3 {
		runtime.GC()
		before, err := own()
		if err != nil {
			return 0, 0, err
		}
		began, tokens := time.Now(), 0
		for used := time.Duration(0); used < time.Duration(b.count(1500, 300))*time.Millisecond; {
			n, err := f()
			if err != nil {
				return 0, 0, err
			}
			if err := ctx.Err(); err != nil {
				return 0, 0, err
			}
			tokens += n
			now, err := own()
			if err != nil {
				return 0, 0, err
			}
			used = now - before
		}
		now, err := own()
		if err != nil {
			return 0, 0, err
		}
		perCPU = max(perCPU, float64(tokens)/(now-before).Seconds())
		perWall = max(perWall, float64(tokens)/time.Since(began).Seconds())
	}
	return perCPU, perWall, nil
}

// train measures forward, backward and optimizer over one batch of the demo's size, on one core.
func (b *bench) train(ctx context.Context) ([]figure.Line, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	m, err := tiny.New(tiny.DefaultConfig(vocab), 1)
	if err != nil {
		return nil, err
	}
	const sequences, length = 256, 24
	t, opt, seqs := tiny.NewBatcher(m), tiny.NewAdamW(m, tiny.DefaultAdamW()), batchOf(sequences, length)
	perCPU, _, err := b.rate(ctx, func() (int, error) {
		g, err := t.Gradient(seqs, func(_ int, logp, _, dlogp, _ []float64) {
			for i := range logp {
				dlogp[i] = -1e-3
			}
		})
		if err != nil {
			return 0, err
		}
		tiny.ClipNorm(g, 1)
		opt.Step(m, g, 1e-3)
		return sequences * length, nil
	})
	if err != nil {
		return nil, err
	}
	return []figure.Line{figure.New("train_tokens_per_cpu_second", perCPU, "tokens/s", figure.AtLeast(15_000))}, nil
}

// decode measures sampled tokens of 64 sequences through the engine: prompts,
// batching, sampling and log-probabilities included.
func (b *bench) decode(ctx context.Context) (lines []figure.Line, err error) {
	m, err := tiny.New(tiny.DefaultConfig(vocab), 1)
	if err != nil {
		return nil, err
	}
	files, err := m.Files()
	if err != nil {
		return nil, err
	}
	digest := policy.DigestOf(files[tiny.WeightsFile])
	e, err := tinyengine.New(tinyengine.DefaultConfig(),
		func(context.Context, policy.Version, policy.Digest) (map[string][]byte, error) { return files, nil },
		func(context.Context, policy.Version) (policy.Digest, error) { return digest, nil })
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := e.Close(); err == nil {
			err = cerr
		}
	}()
	if err := e.Stage(ctx, 0, digest); err != nil {
		return nil, err
	}
	if err := e.Flip(ctx, 0); err != nil {
		return nil, err
	}
	perCPU, perWall, err := b.rate(ctx, func() (int, error) { return generate(ctx, e) })
	if err != nil {
		return nil, err
	}
	b.note("decode: %.0f tokens/s of wall time", perWall)
	return []figure.Line{figure.New("decode_tokens_per_second", max(perCPU, perWall), "tokens/s", figure.AtLeast(40_000))}, nil
}

// generate continues 64 prompts of 8 tokens by 32 each, all at once, and returns how many tokens were sampled.
func generate(ctx context.Context, e engine.Generator) (int, error) {
	const sequences, prompt, sampled = 64, 8, 32
	var wg sync.WaitGroup
	var errs [sequences]error
	for i := range sequences {
		wg.Go(func() {
			r := engine.Request{Prompt: make([]int32, prompt), MaxTokens: sampled, Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: uint64(i)}}
			for t := range r.Prompt {
				r.Prompt[t] = int32((i + 7*t) % vocab)
			}
			_, errs[i] = e.Generate(ctx, r)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return sequences * sampled, nil
}
