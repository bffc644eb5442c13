// Package robustness breaks a cluster of real processes and checks what it promised.
package robustness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// built are the programs that all tests share.
var built struct {
	once   sync.Once
	dir    string
	slewed error // why their clocks cannot be set; nil: they can
	err    error
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
		os.Exit(code)
	}))
}

// programs returns the directory of rlfleetd and rlctl, and why the wall clock of the first cannot be set.
func programs(t *testing.T, long bool) (dir string, slewed error) {
	t.Helper()
	if dir := os.Getenv(programsEnv); dir != "" {
		return dir, fmt.Errorf("%s names programs that were built elsewhere", programsEnv)
	}
	built.once.Do(func() { built.dir, built.slewed, built.err = build(long) })
	require.NoError(t, built.err)
	return built.dir, built.slewed
}

// build makes the programs; in the long form with a clock that can be set.
func build(long bool) (dir string, slew, err error) {
	if dir, err = os.MkdirTemp("", "rlfleet-robustness-"); err != nil {
		return "", nil, err
	}
	flags := []string{"build"}
	slew = fmt.Errorf("only the long form (%s=1) builds programs whose clock can be set", longForm)
	if long {
		kept, err := keepDir()
		if err != nil {
			return dir, slew, err
		}
		flag, err := slewed(kept) // always the same place, for the build cache
		if slew = err; err == nil {
			flags = append(flags, flag)
		}
	}
	for _, name := range []string{"rlfleetd", "rlctl"} {
		if name == "rlctl" {
			flags = flags[:1]
		}
		cmd := exec.Command("go", append(slices.Clone(flags), "-o", filepath.Join(dir, name), "./cmd/"+name)...)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, slew, fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return dir, slew, nil
}
