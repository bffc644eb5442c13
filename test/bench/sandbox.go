package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// command is what an agent's tool call runs.
var command = []string{"sh", "-c", "cat F2"}

const content = "content of F2\n"

// sandboxes is a host with a template like the demo's.
type sandboxes struct {
	*envpool.Pool
	snapshot envpool.SnapshotID
	claims   int
}

// withHost calls f with a host that ends afterwards.
func (b *bench) withHost(ctx context.Context, cfg envpool.Config, f func(*sandboxes) error) (err error) {
	if err := bubblewrap.Check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rlfleet-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := bubblewrap.DefaultConfig(filepath.Join(dir, "host"))
	c.Guest = filepath.Join(b.bin, "rlguest")
	rt, err := bubblewrap.New(c)
	if err != nil {
		return err
	}
	p, err := envpool.NewHost(ctx, cfg, rt)
	if err != nil {
		return errors.Join(err, rt.Close())
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, p.Close(cctx))
	}()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	for _, n := range []string{"F1", "F2", "F3"} {
		if err := os.WriteFile(filepath.Join(files, n), []byte("content of "+n+"\n"), 0o644); err != nil {
			return err
		}
	}
	id, err := p.Prepare(ctx, envpool.Template{Digest: "sha256:f11e5", Image: "host", Layers: []envpool.Layer{{Source: files, Dest: "/app"}}})
	if err != nil {
		return err
	}
	return f(&sandboxes{Pool: p, snapshot: id})
}

func (s *sandboxes) claim(ctx context.Context) (envpool.Handle, error) {
	s.claims++
	return s.Claim(ctx, envpool.Claim{
		Lease: lease.Token{Resource: "bench/" + strconv.Itoa(s.claims), Fence: 1}, Snapshot: s.snapshot, Quota: envpool.QuotaAgent, Entropy: uint64(s.claims),
	})
}

func (s *sandboxes) exec(ctx context.Context, h envpool.Handle) error {
	r, err := s.Exec(ctx, h, envpool.Command{Argv: command})
	if err == nil && string(r.Stdout) != content {
		err = fmt.Errorf("the command printed %q and %q", r.Stdout, r.Stderr)
	}
	return err
}

// use is claim, perhaps a command, and release, which returns when the reset is proven.
func (s *sandboxes) use(ctx context.Context, run bool) error {
	h, err := s.claim(ctx)
	if err != nil {
		return err
	}
	if run {
		if err := s.exec(ctx, h); err != nil {
			return err
		}
	}
	return s.Release(ctx, h)
}

// sandboxUse measures the processor time of one use on the whole machine.
func (b *bench) sandboxUse(ctx context.Context) ([]figure.Line, error) {
	var lines []figure.Line
	err := b.withHost(ctx, envpool.DefaultConfig(), func(s *sandboxes) error {
		for range 20 { // caches and templates are warm
			if err := s.use(ctx, true); err != nil {
				return err
			}
		}
		for _, c := range []struct {
			name string
			run  bool
		}{{"sandbox_use_cpu", true}, {"sandbox_use_cpu_no_command", false}} {
			ms, err := b.usesCPU(ctx, s, c.name, c.run)
			if err != nil {
				return err
			}
			lines = append(lines, figure.New(c.name, ms, "ms", figure.AtMost(4)))
		}
		return nil
	})
	return lines, err
}

// How often the uses are repeated: until the machine was idle before and after
// three repetitions, and not for ever.
const (
	idleRepeats = 3
	mostRepeats = 12
)

// busyCores is how much of other programs can be subtracted; on a machine with
// more what they use meanwhile is not what they used before.
const busyCores = 0.15

// usesCPU returns milliseconds of system-wide processor time of one use: the
// least of three repetitions on an idle machine, less what else ran just before
// and after it. A machine that never was idle gives all of its time, an upper bound.
func (b *bench) usesCPU(ctx context.Context, s *sandboxes, name string, run bool) (float64, error) {
	const look = 700 * time.Millisecond
	n := b.count(600, 100)
	quiet, any := uses{total: math.Inf(1)}, uses{total: math.Inf(1)}
	before, err := drift(ctx, look)
	if err != nil {
		return 0, err
	}
	for i, idle := 0, 0; i < mostRepeats && idle < idleRepeats; i++ {
		u, err := s.uses(ctx, n, run)
		if err != nil {
			return 0, err
		}
		after, err := drift(ctx, look)
		if err != nil {
			return 0, err
		}
		u.others = max(before, after)
		before = after
		if u.total < any.total {
			any = u
		}
		if u.others <= busyCores {
			idle++
			if u.total < quiet.total {
				quiet = u
			}
		}
	}
	if math.IsInf(quiet.total, 0) {
		b.note("%s: %.2f ms in all on a machine that is not idle (%.1f other cores, load %s): an upper bound; %.2f ms of it in processes of our own", name, any.total, any.others, load(), any.own)
		return any.total, nil
	}
	less := quiet.total - quiet.others*quiet.wall
	b.note("%s: %.2f ms in all, %.2f ms less what else runs (%.2f cores); %.2f ms of it in processes of our own", name, quiet.total, less, quiet.others, quiet.own)
	return less, nil
}

// uses is what one use took, in milliseconds, as a mean over many.
type uses struct {
	total  float64 // processor time of the whole machine
	own    float64 // of it, of this process and its descendants
	wall   float64
	others float64 // cores that other programs use
}

// uses measures n uses.
func (s *sandboxes) uses(ctx context.Context, n int, run bool) (uses, error) {
	total, err := busy()
	if err != nil {
		return uses{}, err
	}
	mine, err := treeOf(os.Getpid())
	if err != nil {
		return uses{}, err
	}
	began := time.Now()
	for range n {
		if err := s.use(ctx, run); err != nil {
			return uses{}, err
		}
	}
	took := time.Since(began)
	totalAfter, err := busy()
	if err != nil {
		return uses{}, err
	}
	mineAfter, err := treeOf(os.Getpid())
	if err != nil {
		return uses{}, err
	}
	each := func(d time.Duration) float64 { return milli(d) / float64(n) }
	return uses{total: each(totalAfter - total), own: each(mineAfter.cpu() - mine.cpu()), wall: each(took)}, nil
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median of the durations, which it sorts.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// sandboxExec measures the round trip of a command in a warm sandbox.
func (b *bench) sandboxExec(ctx context.Context) ([]figure.Line, error) {
	var took []time.Duration
	err := b.withHost(ctx, envpool.DefaultConfig(), func(s *sandboxes) error {
		h, err := s.claim(ctx)
		if err != nil {
			return err
		}
		for range b.count(500, 100) {
			began := time.Now()
			if err := s.exec(ctx, h); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		return s.Release(ctx, h)
	})
	if err != nil {
		return nil, err
	}
	return []figure.Line{figure.New("sandbox_exec_p50", milli(median(took)), "ms", figure.AtMost(5))}, nil
}

// sandboxCold compares a sandbox made for one command with a bare bwrap around the same command, in turns.
func (b *bench) sandboxCold(ctx context.Context) ([]figure.Line, error) {
	cfg := envpool.DefaultConfig()
	cfg.WarmLow, cfg.WarmHigh = 0, 0
	var ours, bare []time.Duration
	err := b.withHost(ctx, cfg, func(s *sandboxes) error {
		n := b.count(100, 20)
		for i := range n + 5 {
			began := time.Now()
			if err := s.use(ctx, true); err != nil {
				return err
			}
			made := time.Now()
			if err := bareBwrap(ctx); err != nil {
				return err
			}
			if i >= 5 { // the first ones fill caches
				ours, bare = append(ours, made.Sub(began)), append(bare, time.Since(made))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	mo, mb := median(ours), median(bare)
	b.note("sandbox_cold: median %.1f ms against %.1f ms of bwrap", milli(mo), milli(mb))
	return []figure.Line{figure.New("sandbox_cold_to_bwrap", float64(mo)/float64(mb), "ratio", figure.AtMost(2))}, nil
}

// bareBwrap is what a sandbox costs without rlfleet: made, one command, gone.
func bareBwrap(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
		"--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
		"--tmpfs", "/app", "--", "sh", "-c", "echo content of F2 >/app/F2; cat /app/F2").CombinedOutput()
	if err != nil {
		return fmt.Errorf("bwrap: %w: %s", err, out)
	}
	return nil
}
