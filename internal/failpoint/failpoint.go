// Package failpoint lets a test make a process fail at a named point: be
// killed, be delayed, or get an error.
//
// Points are off unless the process was started with a plan; one that is off
// costs an atomic load. The plan is the only package-level state of rlfleet
// that changes: a point deep in a call must be found without being handed
// through every constructor, or it would not be placed.
package failpoint

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Env is the environment variable that mains hand to Start.
const Env = "RLFLEET_FAILPOINTS"

// plan is what a process was told to do; nil is nothing.
var plan atomic.Pointer[armed]

// armed is a plan with what is left of it.
type armed struct {
	file string // the plan's file; the first process that acts takes it away

	mu    sync.Mutex // guards terms, taken
	terms map[Point][]term
	taken bool
}

// At is passed by the code at a point that returns no error.
func At(p Point) { _ = Err(p) }

// Err is passed by the code at a point; the error, if any, is the test's.
func Err(p Point) error {
	a := plan.Load()
	if a == nil {
		return nil
	}
	return a.hit(p)
}

// Around does f between two points.
func Around(before, after Point, f func() error) error {
	if err := Err(before); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	At(after)
	return nil
}

// Start follows what the environment says: a plan (see parse), or "@FILE": then
// the plan is what FILE holds whenever it exists, and the first process that
// acts on it renames it to FILE.fired, so that of many processes one fails,
// once; FILE.armed appears when one has read it. The returned function ends the
// watch of the file.
func Start(ctx context.Context, spec string) (stop func(), err error) {
	if spec == "" {
		return func() {}, nil
	}
	file, isFile := strings.CutPrefix(spec, "@")
	if !isFile {
		terms, err := parse(spec)
		if err != nil {
			return nil, err
		}
		plan.Store(&armed{terms: terms})
		return func() { plan.Store(nil) }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { follow(ctx, file) })
	return func() { cancel(); wg.Wait(); plan.Store(nil) }, nil
}

// follow reads the plan's file whenever it is another one.
func follow(ctx context.Context, file string) {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	var last os.FileInfo
	for {
		info, err := os.Stat(file)
		switch {
		case err != nil && last != nil:
			last = nil
			if a := plan.Load(); a != nil && !a.acting() {
				plan.Store(nil)
			}
		case err == nil && (last == nil || !os.SameFile(info, last) || !info.ModTime().Equal(last.ModTime())):
			if b, err := os.ReadFile(file); err == nil {
				if terms, err := parse(string(b)); err == nil {
					last = info
					plan.Store(&armed{file: file, terms: terms})
					_ = os.WriteFile(file+".armed", nil, 0o644) // whoever armed it may wait for that
				}
			}
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

// acting reports whether this process is the one that the plan's file was for.
func (a *armed) acting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken
}

// hit counts a pass of a point and does what its turn is.
func (a *armed) hit(p Point) error {
	t, due := a.turn(p)
	if !due {
		return nil
	}
	switch t.kind {
	case kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing after the point happens
	case exit:
		os.Exit(t.code)
	case sleep:
		time.Sleep(t.delay)
	case fail:
		return fmt.Errorf("failpoint %s: %w", p, t.err)
	}
	return nil
}

// turn returns the term of this pass, if it does anything and this process is the one to do it.
func (a *armed) turn(p Point) (term, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := a.terms[p]
	if len(left) == 0 {
		return term{}, false
	}
	t := left[0]
	if t.kind != off && !a.takeLocked(p) {
		return term{}, false
	}
	if t.count > 0 {
		rest := append([]term(nil), left...)
		if rest[0].count--; rest[0].count == 0 {
			rest = rest[1:]
		}
		a.terms[p] = rest
	}
	return t, t.kind != off
}

// takeLocked claims the plan's file for this process.
func (a *armed) takeLocked(p Point) bool {
	if a.file == "" || a.taken {
		return true
	}
	fired := a.file + ".fired"
	err := os.Rename(a.file, fired)
	if err != nil { // another process was first
		clear(a.terms)
		return false
	}
	a.taken = true
	_ = os.WriteFile(fired+".by", fmt.Appendf(nil, "%d %s", os.Getpid(), p), 0o644) // for the test's report only
	return true
}
