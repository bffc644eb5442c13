package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSandboxKilledFromOutside kills sandboxes that work, by their process 1
// and by the bwrap that holds them. The host sees it: the attempt ends
// env_crash, another follows, and neither reward nor quarantine comes of it.
func TestSandboxKilledFromOutside(t *testing.T) {
	t.Parallel()
	programs, dir := setUp(t), t.TempDir()
	const nap = "0.9371" // found by it among the machine's processes
	writeTrials(t, filepath.Join(dir, "main"), []trial{
		{name: "one", work: "sleep " + nap}, {name: "two", work: "sleep " + nap}, {name: "three", work: "sleep " + nap},
	})
	spec := writeSpec(t, dir, obedientPolicy(t), env("main", "1.0", 4, 5, 0, "replace"))
	r := begin(t, programs, dir, "run", spec, "--set", "spec.steps=3")
	killed := map[string]int{}
	for _, victim := range []string{"rlguest", "bwrap", "rlguest", "bwrap"} {
		r.until(t, "a sandbox at work", func() bool {
			pid := ancestor(victim, "sleep", nap)
			if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				return false
			}
			killed[victim]++
			return true
		})
		<-time.After(500 * time.Millisecond)
	}
	require.Equal(t, 0, r.wait(t), r.said())
	require.Contains(t, lastLine(r.said()), "done: succeeded")
	clean(t, programs, dir)

	crashed := 0
	rows := attempts(t, programs, dir, faultedRun)
	for _, a := range rows {
		if a.State != "lost" || strings.HasSuffix(a.End, "cancelled") {
			continue
		}
		require.Equal(t, "env_crash", a.End, a.Episode)
		require.Nil(t, a.Reward, a.Episode)
		require.Equal(t, []string{"not_run", "drop"}, []string{a.Verdict, a.Disposition}, a.Episode)
		crashed++
		require.True(t, follows(rows, a), "nothing replaces %s", a.Episode)
	}
	require.Equal(t, 4, crashed, "killed %v", killed)
	require.Equal(t, 4, strings.Count(logOf(dir), "the sandbox's process ended: signal: killed"), "the host's evidence is missing")
	for _, f := range show(t, programs, dir, faultedRun).Failing {
		require.False(t, f.Quarantined, "%s: %s", f.Task, f.Reason)
	}
}

// brittleBwrap puts a bwrap before the real one that refuses some of the
// sandboxes, a share of ten in ten, and returns the PATH that finds it.
func brittleBwrap(t *testing.T, tenths int) string {
	t.Helper()
	real, err := exec.LookPath("bwrap")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "rlfleet-bwrap-") // where other users can reach it, as they can /usr/bin
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	script := fmt.Sprintf(`#!/bin/bash
if [ "${!#}" != true ] && (( RANDOM %% 10 < %d )); then
	echo 'bwrap: No permissions to create a new namespace' >&2
	exit 1
fi
exec %s "$@"
`, tenths, real)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bwrap"), []byte(script), 0o755))
	return "PATH=" + dir + ":" + os.Getenv("PATH")
}

// Nine of ten sandboxes cannot be made: it takes longer, and nothing else
// changes. No attempt turns into a reward, and no task is blamed.
func TestGym2552_Verifiers404_ResetFailuresChangeNothing(t *testing.T) {
	t.Parallel()
	programs, dir := setUp(t), t.TempDir()
	cmd := exec.Command(filepath.Join(programs, "rlctl"), "run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.steps=2")
	cmd.Env = append(os.Environ(), brittleBwrap(t, 9))
	r := beginWith(t, cmd, dir)
	require.Equal(t, 0, r.wait(t), r.said())
	for _, a := range attempts(t, programs, dir, damagedRun) {
		if a.State == "lost" {
			require.Equal(t, "platform_timeout", a.End, a.Episode)
			require.Nil(t, a.Reward, a.Episode)
		}
	}
	require.Empty(t, show(t, programs, dir, damagedRun).Failing)
	require.Contains(t, logOf(dir), "No permissions to create a new namespace", "no start failed: nothing was tested")
	clean(t, programs, dir)
}

// No sandbox at all can be made: starts are tried ever less often, no task is
// quarantined, and after its deadline the run fails and names the culprit.
func TestNeMoRL3488_Daytona3289_NoSandboxes(t *testing.T) {
	t.Parallel() // it mostly waits
	programs, dir := setUp(t), t.TempDir()
	args := []string{"run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.envs[0].agent.timeout=5s"}
	for _, d := range []string{"episode=10s", "batch=10s", "publish=10s", "noProgress=15s"} {
		args = append(args, "--set", "spec.deadlines."+d)
	}
	cmd := exec.Command(filepath.Join(programs, "rlctl"), args...)
	cmd.Env = append(os.Environ(), brittleBwrap(t, 10))
	r := beginWith(t, cmd, dir)
	require.Equal(t, 1, r.wait(t), r.said())
	require.Contains(t, lastLine(r.said()), "done: failed (no progress for 15s")
	require.Contains(t, lastLine(r.said()), "bwrap: No permissions to create a new namespace")
	require.Empty(t, show(t, programs, dir, damagedRun).Failing)
	require.Less(t, strings.Count(logOf(dir), "attempt lost"), 100)
	clean(t, programs, dir)
}

// follows reports whether the member of a lost attempt has a later one.
func follows(rows []attempt, lost attempt) bool {
	for _, a := range rows {
		if a.Group == lost.Group && a.Index == lost.Index && a.Attempt == lost.Attempt+1 {
			return true
		}
	}
	return false
}

// ancestor finds the process of a program above one that runs argv; 0: there is none.
func ancestor(program string, argv ...string) int {
	found := 0
	eachProcess(func(pid int, line []string) {
		if found != 0 || strings.Join(line, " ") != strings.Join(argv, " ") {
			return
		}
		for up := pid; up > 1; {
			parent, name := status(up)
			if name == program {
				found = up
				return
			}
			up = parent
		}
	})
	return found
}

// status reads a process's parent and name.
func status(pid int) (parent int, name string) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, ""
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "Name":
			name = strings.TrimSpace(value)
		case "PPid":
			parent, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return parent, name
}
