package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

// latency is the p99 of grants at half of the peak rate, against the p99 of
// fsync measured at the same time on the same disk: a page written to the end
// of a file and synced, a hundred times a second.
func (b *bench) latency(ctx context.Context) ([]figure.Line, error) {
	ours, err := b.cluster(ctx)
	if err != nil {
		return nil, err
	}
	name := func(what string) string { return fmt.Sprint(what, "-", time.Now().UnixMilli()) }
	if b.peak == 0 {
		f, err := b.load(ctx, "rlfleet", ours.addresses(), "-run", name("peak"), "-connections", fmt.Sprint(connections))
		if err != nil {
			return nil, err
		}
		b.peak = f.Rate()
	}
	probing, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var syncs []time.Duration
	var failed error
	wg.Go(func() { syncs, failed = probe(probing, filepath.Join(b.work, "probe")) })
	f, err := b.load(ctx, "rlfleet", ours.addresses(), "-run", name("half"), "-connections", fmt.Sprint(connections),
		"-rate", fmt.Sprint(b.peak/2), "-for", fmt.Sprint(b.count(5, 1), "s"))
	stop()
	wg.Wait()
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	p99 := load.Quantile(syncs, 0.99).Seconds() * 1e3
	b.note("at %.0f grants/s: p50 %.1f ms, p99 %.1f ms; %d fsyncs beside them: p50 %.2f ms, p99 %.1f ms",
		f.Rate(), f.P50, f.P99, len(syncs), load.Quantile(syncs, 0.5).Seconds()*1e3, p99)
	return []figure.Line{figure.New("grant_p99_to_fsync_p99", f.P99/p99, "ratio", figure.AtMost(5))}, nil
}

// probe syncs a file a hundred times a second until ctx ends.
func probe(ctx context.Context, path string) (took []time.Duration, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer closing(&err, f)
	page := make([]byte, 4096)
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return took, nil
		}
		from := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(from))
	}
}
