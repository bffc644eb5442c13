// Package e2e runs the real programs on the real example and kills them.
package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
)

// built holds the programs, and the tasks and the initial policy, that all tests share.
var built struct {
	programs, example sync.Once
	dir               string
	err, exampleErr   error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// setUp builds everything once and returns its directory: rlctl, rlfleetd,
// rlguest, and the example with tasks and policy.
func setUp(t *testing.T) string {
	t.Helper()
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, nothing was run end to end: %v", err)
	}
	dir := programsOnly(t)
	built.example.Do(func() { built.exampleErr = makeExample(dir) })
	require.NoError(t, built.exampleErr)
	return dir
}

// programsOnly is setUp for tests that run no episode.
func programsOnly(t *testing.T) string {
	t.Helper()
	built.programs.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "rlfleet-e2e-"); built.err == nil {
			built.err = commands(
				[]string{"go", "build", "-o", built.dir + "/rlctl", "./cmd/rlctl"},
				[]string{"go", "build", "-o", built.dir + "/rlfleetd", "./cmd/rlfleetd"},
				[]string{"env", "CGO_ENABLED=0", "go", "build", "-ldflags", "-s -w", "-o", built.dir + "/rlguest", "./cmd/rlguest"})
		}
	})
	require.NoError(t, built.err)
	return built.dir
}

func makeExample(dir string) error {
	ex := filepath.Join(dir, "example")
	if err := os.CopyFS(ex, os.DirFS("../../examples/files")); err != nil {
		return err
	}
	for _, x := range []string{"tasks", "policy", "tasks-latency", ".rlfleet"} {
		if err := os.RemoveAll(filepath.Join(ex, x)); err != nil {
			return err
		}
	}
	return commands(
		[]string{"go", "run", "./examples/files/gen", "-out", ex + "/tasks", "-seed", "3", "-train", "48", "-eval", "16", "-sft", dir + "/sft.jsonl"},
		[]string{dir + "/rlctl", "policy", "init", "--sft", dir + "/sft.jsonl", "--steps", "80", "--out", ex + "/policy"})
}

// commands runs commands in the repository's root.
func commands(all ...[]string) error {
	for _, c := range all {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	return nil
}

// rlctl runs a command to its end in dir and returns what it said.
func rlctl(t *testing.T, programs, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(programs, "rlctl"), args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
