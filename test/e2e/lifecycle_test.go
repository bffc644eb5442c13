package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// steps returns how many a run has committed, −1 while there is no such run.
func steps(t *testing.T, programs, dir, run string) int64 {
	t.Helper()
	said, err := rlctl(t, programs, dir, "runs", "ls", "-o", "json")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(said) { // the first run is the only one
		if n, is := strings.CutPrefix(strings.TrimSpace(line), `"step": `); is {
			v, err := strconv.ParseInt(strings.TrimSuffix(n, ","), 10, 64)
			require.NoError(t, err, said)
			return v
		}
	}
	return -1
}

// beyond waits until a run has committed more than n steps.
func (p *program) beyond(t *testing.T, programs, dir, run string, n int64) int64 {
	t.Helper()
	now := n
	p.until(t, fmt.Sprintf("step after %d", n), func() bool { now = steps(t, programs, dir, run); return now > n })
	return now
}

// cpu returns the processor time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks time.Duration
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

// TestLifeCycle follows one run through everything that people do to runs.
func TestLifeCycle(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	const run = "files-small-1"
	command := []string{"run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.steps=5000"}
	control := func(action string) {
		t.Helper()
		said, err := rlctl(t, programs, dir, "runs", action, run)
		require.NoError(t, err, said)
		require.Contains(t, said, run+": ")
	}
	r := begin(t, programs, dir, command...)
	n := r.beyond(t, programs, dir, run, 0)

	// A second one on the same storage is refused, and the first does not notice.
	busy := []string{fmt.Sprintf("another rlctl run (process %d) works in .rlfleet", r.cmd.Process.Pid)}
	refuses(t, programs, dir, 1, busy, command...)
	refuses(t, programs, dir, 1, busy, append(command, "--processes")...)
	refuses(t, programs, dir, 1, busy, append(command, "--new")...)
	r.beyond(t, programs, dir, run, n)

	control("pause")
	refuses(t, programs, dir, 1, []string{"is paused", "cancel"}, "runs", "rm", run)
	r.until(t, "end of what was running", func() bool {
		said, err := rlctl(t, programs, dir, "runs", "show", "-o", "json", run)
		return err == nil && !strings.Contains(said, `"leased"`) && !strings.Contains(said, `"sealed"`)
	})
	idle := idleShare(t, r.cmd.Process.Pid)
	t.Logf("a paused run uses %.1f %% of a core", 100*idle)
	require.Less(t, idle, 0.05)
	x := show(t, programs, dir, run)
	require.Equal(t, "paused", x.State)
	require.Contains(t, x.Waiting, "rlctl runs resume "+run)
	n = x.Step
	control("resume")
	n = r.beyond(t, programs, dir, run, n)

	// The first Ctrl-C drains: nothing that was begun is lost.
	r.signal(t, os.Interrupt)
	require.Equal(t, 0, r.wait(t), r.said())
	require.Equal(t, "stopped: the same command continues run "+run, lastLine(r.said()))
	require.Zero(t, show(t, programs, dir, run).Lost, tail(logOf(dir), 4000))
	clean(t, programs, dir)

	// A stopped storage answers and obeys, too.
	control("pause")
	said, err := rlctl(t, programs, dir, "runs", "why", run)
	require.NoError(t, err)
	require.Contains(t, said, "No process works on it now")
	require.Contains(t, said, "is paused")
	refuses(t, programs, dir, 1, []string{"of another experiment", "rlctl runs cancel " + run}, append(command, "--set", "spec.seed=8")...)
	refuses(t, programs, dir, 1, []string{"is not finished", "without --new"}, append(command, "--new")...)
	r = begin(t, programs, dir, command...)
	r.until(t, "word of the pause", func() bool { return strings.Contains(r.said(), "paused") })
	control("resume")
	r.beyond(t, programs, dir, run, n)

	control("cancel")
	require.Equal(t, 1, r.wait(t), r.said())
	require.Contains(t, lastLine(r.said()), "done: cancelled (asked for by rlctl runs cancel)")
	for _, action := range []string{"pause", "resume", "cancel"} {
		refuses(t, programs, dir, 1, []string{"has ended: cancelled"}, "runs", action, run)
	}
	clean(t, programs, dir)
	control("rm")
	refuses(t, programs, dir, 1, []string{`no run "` + run + `"`}, "runs", "rm", run)
	require.NoDirExists(t, filepath.Join(dir, ".rlfleet", run))
}

// idleShare measures for 5 seconds what part of a core a process uses.
func idleShare(t *testing.T, pid int) float64 {
	t.Helper()
	before, at := cpu(t, pid), time.Now()
	<-time.After(5 * time.Second)
	return (cpu(t, pid) - before).Seconds() / time.Since(at).Seconds()
}

// TestFinishedRun: the same command shows a finished run again, --new starts another.
func TestFinishedRun(t *testing.T) {
	t.Parallel()
	programs, dir := setUp(t), t.TempDir()
	command := []string{"run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.steps=1"}
	first, err := rlctl(t, programs, dir, command...)
	require.NoError(t, err, first)
	again, err := rlctl(t, programs, dir, command...)
	require.NoError(t, err, again)
	require.Contains(t, again, "run files-small-1 has ended already; --new starts another")
	require.Equal(t, lastLine(first), lastLine(again))
	other, err := rlctl(t, programs, dir, append(command, "--new")...)
	require.NoError(t, err, other)
	require.Contains(t, other, "run files-small-2 in")
	for _, run := range []string{"files-small-1", "files-small-2"} {
		clean(t, programs, dir, run)
	}
}

// TestInterrupt: a drain waits for what runs, a second Ctrl-C does not.
func TestInterrupt(t *testing.T) {
	t.Parallel() // it mostly waits
	programs, dir := setUp(t), t.TempDir()
	const nap = "2.4131" // found by it among the machine's processes
	writeTrials(t, filepath.Join(dir, "main"), []trial{{name: "one", work: "sleep " + nap}, {name: "two", work: "sleep " + nap}})
	spec := writeSpec(t, dir, obedientPolicy(t), env("main", "1.0", 4, 3, 0, "replace"))
	command := []string{"run", spec, "--set", "spec.steps=4", "--set", "spec.envs[0].agent.timeout=20s"}
	atWork := func() bool { return ancestor("rlguest", "sleep", nap) != 0 }

	for _, how := range [][]string{{"--processes"}, nil} {
		r := begin(t, programs, dir, slices.Concat(command, how)...)
		r.until(t, "a sandbox at work", atWork)
		r.signal(t, os.Interrupt)
		require.Equal(t, 0, r.wait(t), r.said())
		require.Contains(t, r.said(), "another Ctrl-C stops at once")
		require.Zero(t, show(t, programs, dir, faultedRun).Lost, "the drain lost what was running")
		require.False(t, atWork())
	}

	r := begin(t, programs, dir, command...)
	r.until(t, "a sandbox at work", atWork)
	r.signal(t, os.Interrupt)
	r.until(t, "word of the drain", func() bool { return strings.Contains(r.said(), "another Ctrl-C stops at once") })
	r.signal(t, os.Interrupt)
	require.Equal(t, -1, r.wait(t), r.said())
	require.Equal(t, syscall.SIGINT, r.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.Empty(t, left(dir), "processes are left")

	said, err := rlctl(t, programs, dir, command...)
	require.NoError(t, err, said)
	require.Contains(t, lastLine(said), "done: succeeded")
	clean(t, programs, dir)
}
