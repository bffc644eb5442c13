package robustness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/internal/failpoint"
)

// TestLoop runs the small example on a cluster of three nodes, with real
// sandboxes, verifiers and training, while its processes are killed at every
// named point that they pass, and nodes of the cluster with them. The run must
// end as it would have, and the record must have what was acknowledged.
func TestLoop(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves the loop out")
	}
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, no run on a cluster: %v", err)
	}
	r := newRun(t)
	t.Logf("seed %d (%s repeats the schedule)", r.seed, seedEnv)
	l := &loop{run: r, rng: rand.New(rand.NewPCG(r.seed, 3)), dir: t.TempDir(), steps: 12}
	if r.long {
		l.steps = 40
	}
	l.prepare()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := newCluster(ctx, r.dir, filepath.Join(l.dir, ".rlfleet"), r.programs, 3, r.seed)
	defer func() { require.NoError(t, c.close()) }()
	require.NoError(t, err)
	l.c = c
	said := l.underFire(ctx)
	require.Contains(t, said, "done: succeeded")
	require.NoError(t, c.well(ctx))
	l.check(ctx)
	t.Logf("loop: ok, seed %d, %d steps, killed %v", r.seed, l.steps, l.killed)
}

// loop is a run of the example on a cluster.
type loop struct {
	*run
	c     *cluster
	rng   *rand.Rand
	dir   string // where rlctl runs, with the run's storage
	steps int

	mu     sync.Mutex // guards killed, rlctl
	killed map[string]int
	rlctl  *exec.Cmd
}

func (l *loop) example() string { return filepath.Join(l.dir, "example") }
func (l *loop) acks() string    { return filepath.Join(l.dir, "acks.jsonl") }
func (l *loop) plan() string    { return filepath.Join(l.dir, "failpoints") }

// prepare makes the guest, the tasks and the initial policy.
func (l *loop) prepare() {
	l.killed = map[string]int{}
	require.NoError(l.t, os.CopyFS(l.example(), os.DirFS("../../examples/files")))
	for _, x := range []string{"tasks", "policy", "tasks-latency", ".rlfleet"} {
		require.NoError(l.t, os.RemoveAll(filepath.Join(l.example(), x)))
	}
	for _, argv := range [][]string{
		{"env", "CGO_ENABLED=0", "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(l.programs, "rlguest"), "./cmd/rlguest"},
		{"go", "run", "./examples/files/gen", "-out", l.example() + "/tasks", "-seed", "3", "-train", "48", "-eval", "16", "-sft", l.dir + "/sft.jsonl"},
		{filepath.Join(l.programs, "rlctl"), "policy", "init", "--sft", l.dir + "/sft.jsonl", "--steps", "80", "--out", l.example() + "/policy"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		require.NoError(l.t, err, string(out))
	}
}

// command is an rlctl in the run's directory that reaches the cluster.
func (l *loop) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(l.programs, "rlctl"), args...)
	cmd.Dir = l.dir
	cmd.Env = append(os.Environ(), failpoint.Env+"=@"+l.plan(),
		"RLFLEET_COORDINATOR="+strings.Join(l.c.addresses(), ","), "RLFLEET_TLS="+l.c.certs("chaos"))
	return cmd
}

// underFire starts rlctl again and again until the run has ended, and returns what it said last.
func (l *loop) underFire(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	shooting, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { l.shoot(shooting) })
	defer work.Wait()
	defer stop()
	out := filepath.Join(l.dir, "out.txt")
	for ctx.Err() == nil {
		f, err := os.Create(out)
		require.NoError(l.t, err)
		cmd := l.command("run", filepath.Join(l.example(), "small.yaml"), "--processes", "--acks", l.acks(),
			"--coordinator", strings.Join(l.c.addresses(), ","), "--set", fmt.Sprintf("spec.steps=%d", l.steps), "--set", "spec.eval.every=10")
		cmd.Stdout, cmd.Stderr = f, f
		require.NoError(l.t, cmd.Start())
		l.mu.Lock()
		l.rlctl = cmd
		l.mu.Unlock()
		end := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		end()
		require.NoError(l.t, f.Close())
		said, _ := os.ReadFile(out)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
			continue // it was shot; the same command continues
		}
		if err != nil {
			l.t.Fatalf("rlctl ended with %v: %s\nlog: %s", err, said, l.log())
		}
		return string(said)
	}
	l.t.Fatalf("the run did not end\nlog: %s", l.log())
	return ""
}

func (l *loop) log() string {
	b, _ := os.ReadFile(filepath.Join(l.dir, ".rlfleet", "rlfleet.log"))
	return string(b[max(0, len(b)-4000):])
}

// shoot kills one process after the other: a role at each of its points, and
// between them nodes of the cluster, rlctl with everything under it, and the network.
func (l *loop) shoot(ctx context.Context) {
	n := &nemesis{c: l.c, rng: l.rng, notes: map[string]int{}}
	var points []failpoint.Point
	for _, p := range failpoint.All() {
		switch role, _, _ := strings.Cut(string(p), "."); role {
		case "rollout", "verifier", "trainer", "publisher":
			points = append(points, p)
		}
	}
	l.rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	l.await(ctx, 60*time.Second, func() bool { b, _ := os.ReadFile(l.acks()); return len(b) > 0 })
	for i := 0; ctx.Err() == nil; i++ {
		p := points[i%len(points)]
		if l.at(ctx, p) {
			l.count(string(p))
		}
		switch l.rng.IntN(6) {
		case 0:
			n.leader(ctx).kill()
			l.count("the cluster's leader")
		case 1:
			n.any().kill()
			l.count("a node of the cluster")
		case 2:
			m := n.leader(ctx)
			l.c.net.set(m.name, "*", flow{cut: true})
			l.c.net.set("*", m.name, flow{cut: true})
			n.hold(ctx, time.Second, 4*time.Second)
			l.c.net.heal()
			l.count("the network around the leader")
		case 3:
			l.mu.Lock()
			if l.rlctl != nil && l.rlctl.ProcessState == nil && l.rlctl.Process.Signal(syscall.SIGKILL) == nil {
				l.killed["rlctl"]++
			}
			l.mu.Unlock()
		case 4:
			if l.killRole("host") {
				l.count("host")
			}
		default:
			if l.killRole("engine") {
				l.count("engine")
			}
		}
		if err := l.c.well(ctx); err != nil && ctx.Err() == nil {
			l.t.Error(err)
			return
		}
	}
}

func (l *loop) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed[what]++
}

// await polls until something holds; false when it does not in time.
func (l *loop) await(ctx context.Context, limit time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// at kills whichever process passes a point next.
func (l *loop) at(ctx context.Context, p failpoint.Point) bool {
	_ = os.Remove(l.plan() + ".fired")
	if err := os.WriteFile(l.plan()+".new", []byte(p+"=kill"), 0o644); err != nil {
		l.t.Error(err)
	}
	if err := os.Rename(l.plan()+".new", l.plan()); err != nil {
		l.t.Error(err)
	}
	defer os.Remove(l.plan())
	return l.await(ctx, 15*time.Second, func() bool {
		_, err := os.Stat(l.plan() + ".fired")
		return err == nil
	})
}

// killRole kills one process of a role of this run.
func (l *loop) killRole(role string) bool {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		argv := strings.Split(string(b), "\x00")
		if len(argv) > 1 && argv[0] == filepath.Join(l.programs, "rlfleetd") && argv[1] == role {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	return false
}

// check looks at what the run left.
func (l *loop) check(ctx context.Context) {
	run := func(args ...string) string {
		cmd := l.command(args...)
		out, err := cmd.CombinedOutput()
		require.NoError(l.t, err, string(out))
		return string(out)
	}
	said := run("traj", "verify", "--acks", l.acks())
	require.Contains(l.t, said, "clean")
	l.t.Log(strings.TrimSpace(said))
	var show struct {
		State   string `json:"state"`
		Step    int64  `json:"step"`
		MaxLag  int64  `json:"max_lag"`
		Failing []struct {
			Quarantined bool `json:"quarantined"`
		} `json:"failing_tasks"`
	}
	said = run("runs", "show", "-o", "json", "files-small-1")
	require.NoError(l.t, json.Unmarshal([]byte(said), &show), said)
	require.Equal(l.t, "succeeded", show.State, said)
	require.EqualValues(l.t, l.steps, show.Step, said)
	require.LessOrEqual(l.t, show.MaxLag, int64(2), said)
	for _, f := range show.Failing {
		require.False(l.t, f.Quarantined, "an innocent task was quarantined: %s", said)
	}
	_, err := l.same(ctx, l.c)
	require.NoError(l.t, err)
}
