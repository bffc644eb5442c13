package tiny

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// BenchmarkGenerate reports tokens for each second of processor time, with
// everything a request costs: 64 sequences at once at the demo's model size, 32 tokens each.
func BenchmarkGenerate(b *testing.B) {
	m, err := model.New(model.DefaultConfig(64), 1)
	if err != nil {
		b.Fatal(err)
	}
	f, err := m.Files()
	if err != nil {
		b.Fatal(err)
	}
	e, err := New(DefaultConfig(), func(context.Context, policy.Version, policy.Digest) (map[string][]byte, error) { return f, nil }, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	ctx := b.Context()
	if err := e.Stage(ctx, 0, "a"); err != nil {
		b.Fatal(err)
	}
	if err := e.Flip(ctx, 0); err != nil {
		b.Fatal(err)
	}
	start := processor(b)
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				_, err := e.Generate(ctx, engine.Request{
					Session: fmt.Sprint(i), Prompt: []int32{1, 2, 3, 4, 5, 6, 7, 8}, MaxTokens: 32,
					Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: uint64(i)},
				})
				if err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	used := processor(b) - start
	n := float64(e.Stats().Sampled)
	b.ReportMetric(n/used.Seconds(), "tok/cpu-s")
	b.ReportMetric(n/b.Elapsed().Seconds(), "tok/s")
}

func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
