package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// victims are the processes of a run; rlctl stands for the whole of it.
var victims = []string{"coordinator", "host", "engine", "publisher", "verifier", "trainer", "rollout", "rlctl"}

const (
	kills   = 30
	perRole = 3
)

// TestKill runs the small example with every role a process of its own, kills
// 30 of them at random moments, at least 3 of each role, and continues by the
// same command. Nothing acknowledged may be lost and nothing trained twice.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves the kill test out")
	}
	programs := setUp(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("RLFLEET_CHAOS_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Logf("seed %d (RLFLEET_CHAOS_SEED repeats the schedule)", seed)
	dir, acks := t.TempDir(), filepath.Join(t.TempDir(), "acks.jsonl")
	r := &chaos{t: t, programs: programs, dir: dir, acks: acks, rng: rand.New(rand.NewPCG(seed, 1)), killed: map[string]int{}}
	out := r.run()
	t.Logf("killed %v; rlctl said last: %s", r.killed, lastLine(out))
	require.Contains(t, lastLine(out), "done: succeeded")
	for _, v := range victims {
		require.GreaterOrEqual(t, r.killed[v], perRole, "%s was killed too rarely: the run ended early", v)
	}

	said, err := rlctl(t, programs, dir, "traj", "verify", "--acks", acks)
	require.NoError(t, err, said)
	require.Contains(t, said, "clean")
	t.Log(strings.TrimSpace(said))

	var run struct {
		Failing []struct{ Quarantined bool } `json:"failing_tasks"`
		MaxLag  int64                        `json:"max_lag"`
	}
	said, err = rlctl(t, programs, dir, "runs", "show", "-o", "json", "files-small-1")
	require.NoError(t, err, said)
	require.NoError(t, json.Unmarshal([]byte(said), &run))
	for _, f := range run.Failing {
		require.False(t, f.Quarantined, "an innocent task was quarantined: %s", said)
	}
	require.LessOrEqual(t, run.MaxLag, int64(2))

	// What was trained can be trained again, bit for bit, from the record.
	said, err = rlctl(t, programs, dir, "traj", "replay", "--step", "0", "--step", strconv.Itoa(r.steps/2), "--step", strconv.Itoa(r.steps-1))
	require.NoError(t, err, said)
	require.Equal(t, 3, strings.Count(said, ": same"), said)

	require.Empty(t, left(dir), "processes are left")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), dir, "mounts are left")
	hosts, err := filepath.Glob(filepath.Join(dir, ".rlfleet", "host", "*", "*"))
	require.NoError(t, err)
	for _, h := range hosts {
		require.False(t, holdsWork(h), "%s is left", h)
	}
}

// holdsWork reports whether a directory of the host's has anything of a sandbox or template in it.
func holdsWork(path string) bool {
	inside, err := os.ReadDir(path)
	return err == nil && len(inside) > 0
}

// chaos is one run under fire.
type chaos struct {
	t        *testing.T
	programs string
	dir      string
	acks     string
	rng      *rand.Rand
	steps    int

	mu     sync.Mutex // guards killed and rlctl
	killed map[string]int
	rlctl  *exec.Cmd
}

// run starts rlctl again and again until the run has ended.
func (c *chaos) run() string {
	c.steps = 150
	args := []string{
		"run", filepath.Join(c.programs, "example", "small.yaml"), "--processes", "--acks", c.acks,
		"--set", fmt.Sprintf("spec.steps=%d", c.steps), "--set", "spec.eval.every=25",
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { defer close(stopped); c.shoot(stop) }()
	defer func() { close(stop); <-stopped }()
	deadline := time.Now().Add(8 * time.Minute)
	for time.Now().Before(deadline) {
		cmd := exec.Command(filepath.Join(c.programs, "rlctl"), args...)
		cmd.Dir = c.dir
		out, err := os.Create(filepath.Join(c.dir, "out.txt"))
		require.NoError(c.t, err)
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(c.t, cmd.Start())
		c.mu.Lock()
		c.rlctl = cmd
		c.mu.Unlock()
		err = cmd.Wait()
		require.NoError(c.t, out.Close())
		said, rerr := os.ReadFile(out.Name())
		require.NoError(c.t, rerr)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
			continue // it was shot; the same command continues
		}
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(c.dir, ".rlfleet", "rlfleet.log"))
			c.t.Fatalf("rlctl ended with %v: %s\nlog: %s", err, said, tail(string(log), 4000))
		}
		return string(said)
	}
	said, _ := os.ReadFile(filepath.Join(c.dir, "out.txt"))
	log, _ := os.ReadFile(filepath.Join(c.dir, ".rlfleet", "rlfleet.log"))
	c.t.Fatalf("the run did not end: %s\nlog: %s", tail(string(said), 2000), tail(string(log), 4000))
	return ""
}

// shoot kills each victim its share of times in random order, at random moments.
func (c *chaos) shoot(stop <-chan struct{}) {
	var order []string
	for _, v := range victims {
		order = append(order, slices.Repeat([]string{v}, perRole)...)
	}
	for len(order) < kills {
		order = append(order, victims[c.rng.IntN(len(victims))])
	}
	c.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, v := range order {
		pause := time.Duration(300+c.rng.IntN(1500)) * time.Millisecond
		for {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			if c.kill(v) {
				break
			}
			pause = 100 * time.Millisecond // it is being started again
		}
	}
}

// kill sends SIGKILL to one process of the role; false when there is none now.
func (c *chaos) kill(role string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid := 0
	if role == "rlctl" {
		if c.rlctl != nil && c.rlctl.ProcessState == nil {
			pid = c.rlctl.Process.Pid
		}
	} else {
		pids := daemons(c.programs, role)
		if len(pids) > 0 {
			pid = pids[c.rng.IntN(len(pids))]
		}
	}
	if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		return false
	}
	c.killed[role]++
	return true
}

// daemons returns the processes of a role that run from these programs.
func daemons(programs, role string) []int {
	var out []int
	eachProcess(func(pid int, argv []string) {
		if len(argv) > 1 && argv[0] == filepath.Join(programs, "rlfleetd") && argv[1] == role {
			out = append(out, pid)
		}
	})
	return out
}

// left returns what still runs of this test: its daemons, and sandboxes by their paths.
func left(dir string) []string {
	var out []string
	for range 50 { // what dies with its parent needs a moment
		out = nil
		eachProcess(func(pid int, argv []string) {
			if line := strings.Join(argv, " "); strings.Contains(line, dir) {
				out = append(out, fmt.Sprintf("%d %s", pid, line))
			}
		})
		if len(out) == 0 {
			break
		}
		<-time.After(100 * time.Millisecond)
	}
	return out
}

func eachProcess(visit func(pid int, argv []string)) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil || len(b) == 0 {
			continue
		}
		visit(pid, strings.Split(strings.TrimRight(string(b), "\x00"), "\x00"))
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
