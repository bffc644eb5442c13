package bubblewrap

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
)

// The way commands take into a version 2 cgroup, also where its controllers
// are bound to version 1 and so nothing is limited.
func TestUnifiedCgroups(t *testing.T) {
	if err := Check(); err != nil {
		t.Skipf("SKIPPED, no sandboxes on this machine: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: cgroups need root")
	}
	dir := t.TempDir()
	c, err := newUnified(dir)
	if err != nil {
		t.Skipf("SKIPPED: no version 2 hierarchy that can be written: %v", err)
	}
	cfg := DefaultConfig(dir)
	cfg.NoCgroups, cfg.Guest = true, filepath.Join(t.TempDir(), "rlguest")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", cfg.Guest, "github.com/rlfleet/rlfleet/cmd/rlguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	r, err := New(cfg)
	require.NoError(t, err)
	r.cgroups = c
	ctx := context.Background()
	h, err := envpool.NewHost(ctx, envpool.DefaultConfig(), r)
	require.NoError(t, err)
	id, err := h.Prepare(ctx, envpool.Template{Digest: "sha256:x"})
	require.NoError(t, err)
	for use := range 3 {
		cl := envpool.Claim{Snapshot: id, Quota: envpool.QuotaAgent}
		cl.Lease.Resource, cl.Lease.Fence = "r", lease.Fence(use+1)
		hd, err := h.Claim(ctx, cl)
		require.NoError(t, err)
		res, err := h.Exec(ctx, hd, envpool.Command{Argv: []string{"cat", "/proc/self/cgroup", "/proc/1/cgroup"}})
		require.NoError(t, err)
		require.Contains(t, string(res.Stdout), "0::/"+CgroupName(dir)+"/s")
		require.Equal(t, 1, strings.Count(string(res.Stdout), "/commands\n"), "%s", res.Stdout)
		require.Equal(t, 1, strings.Count(string(res.Stdout), "/guest\n"), "%s", res.Stdout)
		_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"no-such-program"}})
		require.ErrorIs(t, err, envpool.ErrInvalid)
		res, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "sleep 100 & exec true"}})
		require.NoError(t, err)
		require.Zero(t, res.ExitCode)
		require.NoError(t, h.Release(ctx, hd))
	}
	require.NoError(t, h.Close(ctx))
	require.NoDirExists(t, c.unified)
}

func TestCounter(t *testing.T) {
	f := filepath.Join(t.TempDir(), "memory.events")
	require.NoError(t, os.WriteFile(f, []byte("low 0\nhigh 0\nmax 31\noom 2\noom_kill 7\noom_group_kill 0\n"), 0o600))
	file, err := os.Open(f)
	require.NoError(t, err)
	defer file.Close()
	require.EqualValues(t, 7, counter(file, "oom_kill"))
	require.EqualValues(t, 31, counter(file, "max"))
	require.Zero(t, counter(file, "absent"))
	require.Zero(t, counter(nil, "max"))
}

// Limits have other names in version 2, and the guest does not count.
func TestUnifiedLimits(t *testing.T) {
	dir := t.TempDir()
	g := &group{dirs: map[string]string{"memory": dir, "pids": dir, "cpu": dir}}
	l := envpool.DefaultConfig().Limits
	for _, n := range []string{"memory.max", "pids.max", "cpu.max"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), nil, 0o600))
	}
	require.NoError(t, g.limit(l))
	for n, want := range map[string]string{"memory.max": "536870912", "pids.max": "64", "cpu.max": "100000"} {
		b, err := os.ReadFile(filepath.Join(dir, n))
		require.NoError(t, err)
		require.Equal(t, want, string(b), n)
	}
}

func TestCgroupMount(t *testing.T) {
	const table = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	for controller, want := range map[string][2]string{
		"cpu": {"/", "/sys/fs/cgroup/cpu,cpuacct"}, "memory": {"/docker/abc", "/sys/fs/cgroup/memory"}, "pids": {},
	} {
		root, at := cgroupMount(table, controller)
		require.Equal(t, want, [2]string{root, at}, controller)
	}
}
