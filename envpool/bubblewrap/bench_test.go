package bubblewrap_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
)

// busy is the CPU time of the whole machine so far, in milliseconds, from
// /proc/stat: what children, kernel threads and interrupts use is in it, and
// so is whatever else runs. Quote it from an idle machine only.
func busy(b *testing.B) float64 {
	stat, err := os.ReadFile("/proc/stat")
	require.NoError(b, err)
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	sum := 0.0
	for i, f := range strings.Fields(string(line))[1:9] {
		if i == 3 || i == 4 { // idle, iowait
			continue
		}
		v, err := strconv.ParseFloat(f, 64)
		require.NoError(b, err)
		sum += v
	}
	const tick = 10 // ms; USER_HZ is 100 on every Linux port
	return sum * tick
}

// own is the CPU time of this process's cpuacct cgroup in milliseconds: all
// processes of the benchmark but no other, and no kernel threads. It needs a
// cgroup of its own; without one it is 0.
func own(b *testing.B) float64 {
	paths, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(b, err)
	for line := range strings.Lines(string(paths)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == "cpuacct" && f[2] != "/" {
			v, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + f[2] + "/cpuacct.usage")
			require.NoError(b, err)
			ns, err := strconv.ParseFloat(strings.TrimSpace(string(v)), 64)
			require.NoError(b, err)
			return ns / 1e6
		}
	}
	return 0
}

// measure runs the loop and reports CPU and median.
func measure(b *testing.B, f func()) {
	took := make([]time.Duration, 0, 1024)
	before, mine := busy(b), own(b)
	for b.Loop() {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
	}
	b.ReportMetric((busy(b)-before)/float64(b.N), "cpu-ms/op")
	if mine > 0 {
		b.ReportMetric((own(b)-mine)/float64(b.N), "own-ms/op")
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
}

// files is a small template like the demo's.
func files(tb testing.TB, h envpool.Host) envpool.SnapshotID {
	tb.Helper()
	dir := tb.TempDir()
	for _, n := range []string{"F1", "F2", "F3"} {
		require.NoError(tb, os.WriteFile(filepath.Join(dir, n), []byte("content of "+n+"\n"), 0o644))
	}
	id, err := h.Prepare(context.Background(), envpool.Template{Digest: "sha256:f11e5", Image: "host", Layers: []envpool.Layer{{Source: dir, Dest: "/app"}}})
	require.NoError(tb, err)
	return id
}

func claim(id envpool.SnapshotID, n int) envpool.Claim {
	return envpool.Claim{
		Lease: lease.Token{Resource: "bench/" + strconv.Itoa(n), Fence: 1}, Snapshot: id, Quota: envpool.QuotaAgent, Entropy: uint64(n),
	}
}

// BenchmarkUse is claim, one command and release, which resets and proves it.
func BenchmarkUse(b *testing.B) {
	need(b)
	ctx := context.Background()
	h := newHost(b, envpool.DefaultConfig(), config(b, b.TempDir()))
	id := files(b, h)
	n := 0
	for name, argv := range map[string][]string{"none": nil, "cat": {"cat", "F2"}, "sh": {"sh", "-c", "cat F2"}, "bash": {"bash", "-c", "cat F2"}} {
		b.Run(name, func(b *testing.B) {
			measure(b, func() {
				n++
				hd, err := h.Claim(ctx, claim(id, n))
				require.NoError(b, err)
				if argv != nil {
					r, err := h.Exec(ctx, hd, envpool.Command{Argv: argv})
					require.NoError(b, err)
					require.Equal(b, "content of F2\n", string(r.Stdout))
				}
				require.NoError(b, h.Release(ctx, hd))
			})
		})
	}
}

// BenchmarkUseParallel is BenchmarkUse with many more claimants than slots, as a fleet of rollouts has.
func BenchmarkUseParallel(b *testing.B) {
	need(b)
	ctx := context.Background()
	h := newHost(b, envpool.DefaultConfig(), config(b, b.TempDir()))
	id := files(b, h)
	var n atomic.Int64
	before, mine := busy(b), own(b)
	b.SetParallelism(100)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			hd, err := h.Claim(ctx, claim(id, int(n.Add(1))))
			if err == nil {
				_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "cat F2"}})
			}
			if err == nil {
				err = h.Release(ctx, hd)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric((busy(b)-before)/float64(b.N), "cpu-ms/op")
	if mine > 0 {
		b.ReportMetric((own(b)-mine)/float64(b.N), "own-ms/op")
	}
}

// BenchmarkExec is the round trip of one command in a warm sandbox.
func BenchmarkExec(b *testing.B) {
	need(b)
	ctx := context.Background()
	h := newHost(b, envpool.DefaultConfig(), config(b, b.TempDir()))
	hd, err := h.Claim(ctx, claim(files(b, h), 0))
	require.NoError(b, err)
	for name, argv := range map[string][]string{"true": {"true"}, "sh": {"sh", "-c", "cat F2"}} {
		b.Run(name, func(b *testing.B) {
			measure(b, func() {
				_, err := h.Exec(ctx, hd, envpool.Command{Argv: argv})
				require.NoError(b, err)
			})
		})
	}
}

// BenchmarkCold is a new sandbox up to the end of its first command, against a bare bwrap around the same command.
func BenchmarkCold(b *testing.B) {
	need(b)
	ctx := context.Background()
	b.Run("rlfleet", func(b *testing.B) {
		cfg := envpool.DefaultConfig()
		cfg.WarmLow, cfg.WarmHigh = 0, 0
		h := newHost(b, cfg, config(b, b.TempDir()))
		id := files(b, h)
		n := 0
		measure(b, func() {
			n++
			hd, err := h.Claim(ctx, claim(id, n))
			require.NoError(b, err)
			_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "cat F2"}})
			require.NoError(b, err)
			require.NoError(b, h.Release(ctx, hd))
		})
	})
	b.Run("bwrap", func(b *testing.B) {
		measure(b, func() {
			out, err := exec.Command("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
				"--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
				"--tmpfs", "/app", "--", "sh", "-c", "echo content of F2 >/app/F2; cat /app/F2").CombinedOutput()
			require.NoError(b, err, "%s", out)
		})
	})
}

// BenchmarkIdle reports what a host with warm sandboxes uses while nothing happens.
func BenchmarkIdle(b *testing.B) {
	need(b)
	newHost(b, envpool.DefaultConfig(), config(b, b.TempDir()))
	measure(b, func() { <-time.After(time.Second) })
}
