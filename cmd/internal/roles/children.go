package roles

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
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
	output  io.Writer // of all children
	wg      sync.WaitGroup

	mu       sync.Mutex // guards restarts
	restarts map[string]int
}

// NewChildren returns a supervisor of rlfleetd processes.
func NewChildren(program string, log *slog.Logger, output io.Writer) *Children {
	return &Children{program: program, log: log, output: output, restarts: map[string]int{}}
}

// Back-off of a child that ends at once; one that lived for lived starts again without delay.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	lived      = 2 * time.Second
)

// Start keeps a child running until ctx ends; then it is asked to drain and has grace for it.
func (c *Children) Start(ctx context.Context, child Child, grace time.Duration) {
	c.wg.Go(func() {
		// A child's parent-death signal is bound to the thread that started it.
		runtime.LockOSThread()
		backoff := minBackoff
		for ctx.Err() == nil {
			began := time.Now()
			err := c.once(ctx, child, grace)
			if ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			c.restarts[child.Name]++
			c.mu.Unlock()
			if time.Since(began) >= lived {
				backoff = minBackoff
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
