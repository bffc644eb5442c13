package bubblewrap_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
)

// guestVariable names rlguest in the environment of a child of a test.
const guestVariable = "RLFLEET_GUEST"

// guestFile is rlguest, built once for all tests; a child of a test gets it by the variable.
var guestFile = sync.OnceValues(func() (string, error) {
	if f := os.Getenv(guestVariable); f != "" {
		return f, nil
	}
	f := filepath.Join(buildDir, "rlguest")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", f, "github.com/rlfleet/rlfleet/cmd/rlguest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rlguest: %w: %s", err, out)
	}
	return f, nil
})

var buildDir string

func TestMain(m *testing.M) {
	code := func() int {
		var err error
		if buildDir, err = os.MkdirTemp("", "rlguest-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(buildDir)
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}()
	os.Exit(code)
}

// need skips where the tier cannot run, and says what would mend it.
func need(t testing.TB) {
	t.Helper()
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, no sandboxes on this machine: %v", err)
	}
}

func config(t testing.TB, dir string) bubblewrap.Config {
	t.Helper()
	g, err := guestFile()
	require.NoError(t, err)
	c := bubblewrap.DefaultConfig(dir)
	c.Guest = g
	return c
}

// newHost starts a host that ends with the test.
func newHost(t testing.TB, cfg envpool.Config, rc bubblewrap.Config) *envpool.Pool {
	t.Helper()
	rt, err := bubblewrap.New(rc)
	require.NoError(t, err)
	p, err := envpool.NewHost(context.Background(), cfg, rt)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, p.Close(ctx))
	})
	return p
}
