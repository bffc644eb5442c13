// Package load drives a system with many clients at a time and says how fast it
// answered. The systems that are compared are driven by the same loop.
package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Config says how a system is driven. Start from DefaultConfig.
type Config struct {
	Clients int           // at a time, each with one operation on its way
	Warm    time.Duration // before anything is counted
	For     time.Duration // then
	Rate    float64       // operations a second, of all clients; 0: as many as there can be
}

// DefaultConfig is a short full load.
func DefaultConfig(clients int) Config {
	return Config{Clients: clients, Warm: 500 * time.Millisecond, For: 2 * time.Second}
}

// Validate returns one error that names every field that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.Clients < 1 {
		errs = append(errs, errors.New("there must be a client"))
	}
	if c.Warm < 0 || c.For <= 0 {
		errs = append(errs, errors.New("the times must be positive"))
	}
	if c.Rate < 0 {
		errs = append(errs, errors.New("the rate must not be negative"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("load: config: %w", errors.Join(errs...))
	}
	return nil
}

// Op carries out one operation of a client, 0 to Clients-1, and returns how
// many units it was: puts, or episodes granted.
type Op func(ctx context.Context, client int) (int, error)

// Figures are what a system did while it was counted.
type Figures struct {
	Ops     int     `json:"ops"`
	Units   int     `json:"units"`
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50_ms"` // of an operation
	P99     float64 `json:"p99_ms"`
	Longest float64 `json:"longest_ms"`
}

// Rate is units a second.
func (f Figures) Rate() float64 { return float64(f.Units) / f.Seconds }

// tally is what one client counted.
type tally struct {
	units int
	took  []time.Duration
	err   error
}

// Drive runs the clients. The first operation that fails ends all: figures of a
// system that refuses are worth nothing.
func Drive(ctx context.Context, cfg Config, op Op) (Figures, error) {
	if err := cfg.Validate(); err != nil {
		return Figures{}, err
	}
	begin := time.Now().Add(cfg.Warm)
	end := begin.Add(cfg.For)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tallies := make([]tally, cfg.Clients)
	var wg sync.WaitGroup
	for c := range tallies {
		wg.Go(func() {
			t := &tallies[c]
			if t.err = t.client(ctx, cfg, c, begin, end, op); t.err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var f Figures
	var took []time.Duration
	var failed error
	for _, t := range tallies {
		if t.err != nil && (failed == nil || errors.Is(failed, context.Canceled)) { // the first cause, not who was ended by it
			failed = t.err
		}
		f.Units += t.units
		took = append(took, t.took...)
	}
	if failed != nil {
		return Figures{}, fmt.Errorf("load: %w", failed)
	}
	f.Ops, f.Seconds = len(took), cfg.For.Seconds()
	f.P50, f.P99, f.Longest = ms(Quantile(took, 0.5)), ms(Quantile(took, 0.99)), ms(Quantile(took, 1))
	return f, nil
}

// client does one operation after the other; what ends between begin and end
// counts. With a rate, an operation whose moment came while the one before was
// on its way has waited since that moment; a timer that is late is not the
// system's fault.
func (t *tally) client(ctx context.Context, cfg Config, c int, begin, end time.Time, op Op) error {
	var every time.Duration
	due := time.Now()
	if cfg.Rate > 0 {
		every = time.Duration(float64(cfg.Clients) / cfg.Rate * float64(time.Second))
		due = due.Add(every * time.Duration(c) / time.Duration(cfg.Clients))
	}
	for {
		from := time.Now()
		if every > 0 {
			if wait := due.Sub(from); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return ctx.Err()
				}
				from = time.Now()
			} else {
				from = due
			}
			due = due.Add(every)
		}
		if !from.Before(end) {
			return nil
		}
		units, err := op(ctx, c)
		if err != nil {
			return err
		}
		if done := time.Now(); done.After(begin) && done.Before(end) {
			t.units += units
			t.took = append(t.took, done.Sub(from))
		}
	}
}

// Quantile returns the value below which a share q of them lies; 0 of none.
func Quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(all))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
