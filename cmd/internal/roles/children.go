package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is one process of a run.
type Child struct {
	Name string
	Args []string // of rlfleetd
}

// Children runs processes and starts each again when it ends, with back-off.
type Children struct {
	program string
	log     *slog.Logger
	output  *os.File // of all children
	giveUp  func(error)
	first   time.Duration // pause before a child is started again; doubles up to maxBackoff
	wg      sync.WaitGroup

	mu       sync.Mutex // guards restarts
	restarts map[string]int
}

// NewChildren returns a supervisor of rlfleetd processes. giveUp is told, with
// what it said last, of a child that ends with an error of its own as soon as it
// has started, again and again; that child is not started any more.
func NewChildren(program string, log *slog.Logger, output *os.File, giveUp func(error)) *Children {
	return &Children{program: program, log: log, output: output, giveUp: giveUp, first: minBackoff, restarts: map[string]int{}}
}

// Back-off of a child that ends at once; one that lived for lived starts again without delay.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	lived      = 2 * time.Second
	patience   = 8 // times
)

// Start keeps a child running until ctx ends; then it is asked to drain and has grace for it.
func (c *Children) Start(ctx context.Context, child Child, grace time.Duration) {
	c.wg.Go(func() {
		// A child's parent-death signal is bound to the thread that started it.
		runtime.LockOSThread()
		backoff, failures := c.first, 0
		for ctx.Err() == nil {
			began := time.Now()
			err := c.once(ctx, child, grace)
			if ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			c.restarts[child.Name]++
			c.mu.Unlock()
			var exit *exec.ExitError
			failures++
			if time.Since(began) >= lived {
				backoff, failures = c.first, 0
			} else if errors.As(err, &exit) && exit.ExitCode() < 0 { // it was killed
				failures = 0
			}
			if failures == patience {
				c.giveUp(fmt.Errorf("%s ended %d times in a row: %s", child.Name, failures, c.lastWord(child)))
				return
			}
			c.log.Warn("process ended: starting it again", "process", child.Name, "after", time.Since(began).Round(time.Millisecond), "in", backoff, "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff):
			}
			backoff = min(2*backoff, maxBackoff)
		}
	})
}

// lastWord returns the error that a child printed last.
func (c *Children) lastWord(child Child) string {
	const most = 64 << 10
	missing := "see " + c.output.Name()
	f, err := os.Open(c.output.Name())
	if err != nil {
		return missing
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd) // else the whole file is read
	}
	b, _ := io.ReadAll(f) // what could be read
	lines := strings.Split(string(b), "\n")
	for _, line := range slices.Backward(lines) {
		if text, is := strings.CutPrefix(line, Complaint(child.Args[0])); is {
			return text
		}
	}
	return missing
}

// Complaint is what the error of a role begins with on standard error.
func Complaint(role string) string { return "rlfleetd " + role + ": " }

func (c *Children) once(ctx context.Context, child Child, grace time.Duration) error {
	cmd := exec.CommandContext(ctx, c.program, child.Args...)
	cmd.Stdout, cmd.Stderr = c.output, c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("roles: %s: %w", child.Name, err)
	}
	return nil
}

// Wait returns when every child has ended.
func (c *Children) Wait() { c.wg.Wait() }

// Restarts returns how often each child was started again.
func (c *Children) Restarts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for k, v := range c.restarts {
		out[k] = v
	}
	return out
}
