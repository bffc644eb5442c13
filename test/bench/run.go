package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trajectory"
)

// experimentRun is one `rlctl run` of the example, watched while it works.
type experimentRun struct {
	b       *bench
	cmd     *exec.Cmd
	out     *os.File
	storage string
	name    string // of the run

	peak  int64 // most resident memory of the process tree, bytes; read after watch has ended
	watch sync.WaitGroup
	done  chan struct{} // closed when the process has ended
}

// start runs an experiment of the scratch directory in a storage of its own,
// which keeps what earlier calls of bench left there no longer.
func (b *bench) start(ctx context.Context, spec, label string, sets ...string) (*experimentRun, error) {
	r := &experimentRun{b: b, storage: filepath.Join(b.work, "runs", label), done: make(chan struct{})}
	if err := os.RemoveAll(r.storage); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.storage, 0o755); err != nil {
		return nil, err
	}
	args := []string{"run", filepath.Join(b.work, spec), "--set", "spec.storage=file://" + r.storage, "--set", "metadata.name=" + label}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	r.name = label + "-1"
	var err error
	if r.out, err = os.Create(filepath.Join(r.storage, "out.txt")); err != nil {
		return nil, err
	}
	r.cmd = exec.CommandContext(ctx, filepath.Join(b.bin, "rlctl"), args...)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) } // it ends its sandboxes
	r.cmd.WaitDelay = 30 * time.Second
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.out.Close())
	}
	r.watch.Go(r.memory)
	return r, nil
}

// memory samples the resident memory of the process tree.
func (r *experimentRun) memory() {
	t := time.NewTicker(300 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-t.C:
		}
		if t, err := treeOf(r.cmd.Process.Pid); err == nil {
			r.peak = max(r.peak, t.resident())
		}
	}
}

// wait returns the processor time that the run's processes used, when it has ended well.
func (r *experimentRun) wait() (time.Duration, error) {
	err := r.cmd.Wait()
	close(r.done)
	r.watch.Wait()
	err = errors.Join(err, r.out.Close())
	said, rerr := os.ReadFile(r.out.Name())
	if err = errors.Join(err, rerr); err != nil {
		if len(said) > 2000 {
			said = said[len(said)-2000:]
		}
		return 0, fmt.Errorf("rlctl run: %w: %s", err, said)
	}
	return r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime(), nil
}

// stop ends a run that something else went wrong with.
func (r *experimentRun) stop(cause error) error {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	_, err := r.wait()
	return errors.Join(cause, err)
}

// steps counts the committed steps by the run's step log.
func (r *experimentRun) steps() int {
	b, err := os.ReadFile(filepath.Join(r.storage, r.name, "steps.jsonl"))
	if err != nil {
		return 0 // not yet made
	}
	return bytes.Count(b, []byte(`"kind":"step"`))
}

// reach waits until the run has committed n steps.
func (r *experimentRun) reach(ctx context.Context, n int, within time.Duration) error {
	for end := time.Now().Add(within); r.steps() < n; {
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the run has committed %d of %d steps after %s", r.steps(), n, within)
		}
	}
	return nil
}

// control pauses or resumes the run.
func (r *experimentRun) control(ctx context.Context, action string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(r.b.bin, "rlctl"), "runs", action, r.name, "--storage", "file://"+r.storage).CombinedOutput()
	if err != nil {
		return fmt.Errorf("rlctl runs %s: %w: %s", action, err, out)
	}
	return nil
}

// record opens what the run has recorded.
func (r *experimentRun) record(ctx context.Context) (*trajectory.Run, error) {
	s, err := file.Open(r.storage)
	if err != nil {
		return nil, err
	}
	return trajectory.OpenRun(ctx, s, r.name)
}
