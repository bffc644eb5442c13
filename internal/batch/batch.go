// Package batch collects items and hands them on together: when they are large, when the oldest has waited, or when nothing more is coming.
package batch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Config says when a batch closes.
type Config struct {
	Period time.Duration // longest that an item waits
	Size   int           // sum of the items' sizes at which a batch closes at once
	Idle   func() bool   // nothing more is coming now: do not wait
}

// Validate refuses a configuration that never closes a batch.
func (c Config) Validate() error {
	if c.Period <= 0 || c.Size < 1 || c.Idle == nil {
		return errors.New("batch: period, size and idle must be set")
	}
	return nil
}

// Batcher is safe for concurrent use. Run hands batches on, one at a time, in the order added.
type Batcher[T any] struct {
	cfg   Config
	flush func(ctx context.Context, items []T)

	mu      sync.Mutex // guards pending, since, size and closed
	pending []T
	since   time.Time // of the oldest pending
	size    int
	closed  bool

	poke chan struct{}
}

// New returns a batcher that hands batches to flush.
func New[T any](cfg Config, flush func(ctx context.Context, items []T)) *Batcher[T] {
	return &Batcher[T]{cfg: cfg, flush: flush, poke: make(chan struct{}, 1)}
}

// Add takes an item of a size, in whatever unit Config.Size has.
func (b *Batcher[T]) Add(item T, size int) {
	b.mu.Lock()
	if len(b.pending) == 0 {
		b.since = time.Now()
	}
	b.pending = append(b.pending, item)
	b.size += size
	b.mu.Unlock()
	b.Nudge()
}

// Nudge makes Run look again whether it is idle.
func (b *Batcher[T]) Nudge() {
	select {
	case b.poke <- struct{}{}:
	default:
	}
}

// Close makes Run flush what there is and return.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.Nudge()
}

// Run hands batches to flush, with ctx, until Close.
func (b *Batcher[T]) Run(ctx context.Context) {
	for {
		items, wait, done := b.due(b.cfg.Idle())
		if done {
			return
		}
		if len(items) > 0 {
			b.flush(ctx, items)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-b.poke:
		case <-t.C:
		}
		t.Stop()
	}
}

func (b *Batcher[T]) due(idle bool) (items []T, wait time.Duration, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 {
		return nil, time.Hour, b.closed
	}
	left := b.cfg.Period - time.Since(b.since)
	if left > 0 && b.size < b.cfg.Size && !idle && !b.closed {
		return nil, left, false
	}
	items, b.pending, b.size = b.pending, nil, 0
	return items, 0, false
}
