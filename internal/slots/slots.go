// Package slots bounds how many pieces of work run at once and says when one ends.
package slots

import (
	"context"
	"sync"
	"time"
)

// Slots is safe for concurrent use.
type Slots struct {
	max int

	mu     sync.Mutex // guards active, freed and ended
	active int
	freed  chan struct{} // closed when a piece of work ends
	ended  func()
	done   sync.WaitGroup
}

// New returns slots for at most n pieces of work at once.
func New(n int) *Slots { return &Slots{max: n, freed: make(chan struct{})} }

// Free returns how many more may start.
func (s *Slots) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.max - s.active
}

// Idle reports whether nothing runs.
func (s *Slots) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active == 0
}

// Freed returns a channel that is closed when the next piece of work ends. Take
// it before looking at Free, so that no end is missed.
func (s *Slots) Freed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freed
}

// Go starts work in a slot of its own; the caller has looked at Free.
func (s *Slots) Go(work func()) {
	s.mu.Lock()
	s.active++
	s.mu.Unlock()
	s.done.Go(func() {
		defer func() {
			s.mu.Lock()
			s.active--
			close(s.freed)
			s.freed = make(chan struct{})
			ended := s.ended
			s.mu.Unlock()
			if ended != nil {
				ended()
			}
		}()
		work()
	})
}

// OnEnd sets what is called after each piece of work.
func (s *Slots) OnEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = f
}

// Wait returns when nothing runs any more; nothing may be started meanwhile.
func (s *Slots) Wait() { s.done.Wait() }

// Pause waits for d, or returns ctx's error when it ends first.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
