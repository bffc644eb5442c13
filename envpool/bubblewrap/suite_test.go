package bubblewrap_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/envpooltest"
)

func suiteConfig() envpool.Config {
	c := envpool.DefaultConfig()
	c.MaxAgents, c.MaxVerifiers, c.WarmLow, c.WarmHigh = 4, 2, 1, 6
	return c
}

func TestSuite(t *testing.T) {
	need(t)
	envpooltest.Run(t, func(t *testing.T) envpool.Host { return newHost(t, suiteConfig(), config(t, t.TempDir())) })
}

// Without cgroups, what holds as root must hold too, by other means.
func TestSuiteWithoutCgroups(t *testing.T) {
	need(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: without root there are no cgroups, and TestSuite has shown it")
	}
	envpooltest.Run(t, func(t *testing.T) envpool.Host {
		c := config(t, t.TempDir())
		c.NoCgroups = true
		return newHost(t, suiteConfig(), c)
	})
}

// TestSuiteRootless runs TestSuite again as an ordinary user.
func TestSuiteRootless(t *testing.T) {
	need(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: TestSuite itself is rootless here")
	}
	guest, err := guestFile()
	require.NoError(t, err)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	_, err = envpooltest.BuildAttack(dir) // beside the test program, where the suite looks
	require.NoError(t, err)
	const user = 54321
	work := filepath.Join(dir, "work")
	require.NoError(t, os.Mkdir(work, 0o755))
	require.NoError(t, os.Chown(work, user, user))
	for from, to := range map[string]string{guest: "rlguest", "/proc/self/exe": "test"} {
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), b, 0o755))
	}
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run", "^(TestSuite|TestCrash|TestSweep)$", "-test.v", "-test.timeout", "5m")
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + work, "TMPDIR=" + work, guestVariable + "=" + filepath.Join(dir, "rlguest")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestSuite/attack")
	require.NotContains(t, string(out), "SKIP")
}
