package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFullDisk fills the disk under a run, wherever it is then: the run stops
// with one sentence, and with room again the same command ends clean.
func TestFullDisk(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	disk := filepath.Join(dir, "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	size := func(flags uintptr, bytes string) error {
		return unix.Mount("tmpfs", disk, "tmpfs", flags, "size="+bytes)
	}
	if err := size(0, "22m"); err != nil {
		t.Skipf("SKIPPED, no run met a full disk: a file system in memory cannot be mounted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	command := []string{
		"run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.steps=20", "--set", "spec.storage=file://disk/runs",
		"--metrics", "",
	}
	full := []string{"no space left on device", "free space"}
	refuses(t, programs, dir, 1, full, command...)
	refuses(t, programs, dir, 1, full, command...) // from where it got to, or before it starts

	out, err := rlctl(t, programs, dir, "doctor", "--storage", "file://disk/runs")
	require.Equal(t, 1, code(t, err))
	require.Contains(t, out, "BAD  storage")

	require.NoError(t, size(unix.MS_REMOUNT, "400m"))
	said, err := rlctl(t, programs, dir, command...)
	require.NoError(t, err, said)
	require.Contains(t, lastLine(said), "done: succeeded")
	require.Contains(t, lastLine(said), "20 steps")
	said, err = rlctl(t, programs, dir, "traj", "verify", "--storage", "file://disk/runs")
	require.NoError(t, err, said)
	require.True(t, strings.HasSuffix(strings.TrimSpace(said), "clean"), said)
}
