package bubblewrap_test

import (
	"bufio"
	"context"
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
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
)

// descendants lists the processes below one, with their names.
func descendants(t *testing.T, of int) map[int]string {
	t.Helper()
	parents, names := map[int]int{}, map[int]string{}
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 2 || f[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(f[1])
		names[pid] = s[strings.IndexByte(s, '(')+1 : strings.LastIndexByte(s, ')')]
	}
	out := map[int]string{}
	for pid := range parents {
		for p := parents[pid]; p > 0; p = parents[p] {
			if p == of {
				out[pid] = names[pid]
				break
			}
		}
	}
	return out
}

// guests lists the rlguests of this process.
func guests(t *testing.T) []int {
	t.Helper()
	var out []int
	for pid, name := range descendants(t, os.Getpid()) {
		if name == "rlguest" {
			out = append(out, pid)
		}
	}
	return out
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	require.NoError(t, err)
	defer unix.Close(fd)
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if err == nil && n == 1 {
			return
		}
		require.True(t, time.Now().Before(deadline), "process %d does not end", pid)
	}
}

// A sandbox that is killed from outside is the environment's failure, with
// evidence, and is replaced.
func TestCrash(t *testing.T) {
	need(t)
	ctx := context.Background()
	cfg := envpool.DefaultConfig()
	cfg.WarmLow, cfg.WarmHigh = 0, 2
	h := newHost(t, cfg, config(t, t.TempDir()))
	id := files(t, h)
	for round, during := range []bool{false, true} {
		hd, err := h.Claim(ctx, claim(id, round))
		require.NoError(t, err)
		g := guests(t)
		require.Len(t, g, 1)
		if during {
			// The command's first output says that it runs; then its process 1 is killed under it.
			failed := make(chan error, 1)
			go func() {
				_, err := h.Exec(ctx, hd, envpool.Command{Argv: []string{"sleep", "1000"}, Timeout: time.Minute})
				failed <- err
			}()
			running(t, "sleep")
			require.NoError(t, unix.Kill(g[0], unix.SIGKILL))
			require.ErrorIs(t, <-failed, envpool.ErrEnvironment)
		} else {
			require.NoError(t, unix.Kill(g[0], unix.SIGKILL))
			gone(t, g[0])
		}
		_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"true"}})
		require.ErrorIs(t, err, envpool.ErrEnvironment)
		require.ErrorContains(t, err, "the sandbox's process ended: ")
		require.ErrorIs(t, h.Write(ctx, hd, "/app/x", 0o644, nil), envpool.ErrEnvironment)
		_, err = h.Snapshot(ctx, hd)
		require.ErrorIs(t, err, envpool.ErrEnvironment)
		require.NoError(t, h.Release(ctx, hd))
		st, err := h.Stats(ctx)
		require.NoError(t, err)
		require.EqualValues(t, round+1, st.Destroyed)
		require.Zero(t, st.Leased+st.Quarantined+st.Warm)
		require.Empty(t, descendants(t, os.Getpid()))
	}
	// One that dies while it is warm is not handed out.
	hd, err := h.Claim(ctx, claim(id, 10))
	require.NoError(t, err)
	require.NoError(t, h.Release(ctx, hd))
	g := guests(t)
	require.Len(t, g, 1)
	require.NoError(t, unix.Kill(g[0], unix.SIGKILL))
	hd, err = h.Claim(ctx, claim(id, 11))
	require.NoError(t, err)
	r, err := h.Exec(ctx, hd, envpool.Command{Argv: []string{"cat", "F2"}})
	require.NoError(t, err)
	require.Equal(t, "content of F2\n", string(r.Stdout))
}

// running waits until a descendant of that name exists.
func running(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		for _, n := range descendants(t, os.Getpid()) {
			if n == name {
				return
			}
		}
		require.True(t, time.Now().Before(deadline), "no %s runs", name)
		_, _ = unix.Poll(nil, 5)
	}
}

const sweepVariable = "RLFLEET_TEST_SWEEP"

// TestSweep kills a host with its sandboxes at work: no process, mount,
// directory or cgroup may be left once another host has the data directory.
func TestSweep(t *testing.T) {
	need(t)
	if dir := os.Getenv(sweepVariable); dir != "" {
		victim(t, dir)
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	g, err := guestFile()
	require.NoError(t, err)
	for range 2 {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestSweep$")
		cmd.Env = append(os.Environ(), sweepVariable+"="+dir, guestVariable+"="+g)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		sc := bufio.NewScanner(out)
		for sc.Scan() && sc.Text() != "at work" {
			t.Log(sc.Text())
		}
		_, err = bubblewrap.New(config(t, dir))
		require.ErrorIs(t, err, envpool.ErrEnvironment, "one host at a time")
		require.ErrorContains(t, err, "another host has it")
		below := descendants(t, cmd.Process.Pid)
		require.GreaterOrEqual(t, len(below), 9, "3 × bwrap, rlguest, sleep: %v", below)
		require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
		require.Error(t, cmd.Wait())
		for pid := range below {
			gone(t, pid)
		}
	}
	h := newHost(t, envpool.DefaultConfig(), config(t, dir))
	after, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.Equal(t, string(mounts), string(after))
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, entries, 2, "the lock and this host's files: %v", entries)
	hd, err := h.Claim(context.Background(), claim(files(t, h), 1))
	require.NoError(t, err)
	_, err = h.Exec(context.Background(), hd, envpool.Command{Argv: []string{"true"}})
	require.NoError(t, err)
	require.NoError(t, h.Close(context.Background()))
	entries, err = filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "lock")}, entries)
	groups, err := filepath.Glob("/sys/fs/cgroup/*/rlfleet-*")
	require.NoError(t, err)
	for _, g := range groups {
		// Other hosts of this machine may be at work; this one's are gone.
		require.NotEqual(t, bubblewrap.CgroupName(dir), filepath.Base(g))
	}
	require.Empty(t, descendants(t, os.Getpid()))
}

// victim is a host that is at work until it is killed.
func victim(t *testing.T, dir string) {
	h := newHost(t, envpool.DefaultConfig(), config(t, dir))
	id := files(t, h)
	ctx := context.Background()
	for i := range 3 {
		hd, err := h.Claim(ctx, claim(id, i))
		require.NoError(t, err)
		_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo x >f"}})
		require.NoError(t, err)
		_, err = h.Snapshot(ctx, hd)
		require.NoError(t, err)
		_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "trap '' TERM HUP INT; setsid sleep 1000 >/dev/null 2>&1 &"}})
		require.NoError(t, err)
	}
	fmt.Println("at work")
	select {}
}
