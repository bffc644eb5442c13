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

// built holds the programs, the tasks and the initial policy that all tests share.
var built struct {
	once sync.Once
	dir  string
	err  error
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
	built.once.Do(func() { built.dir, built.err = build() })
	require.NoError(t, built.err)
	return built.dir
}

func build() (string, error) {
	dir, err := os.MkdirTemp("", "rlfleet-e2e-")
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return dir, err
	}
	ex := filepath.Join(dir, "example")
	if err := os.CopyFS(ex, os.DirFS(filepath.Join(root, "examples/files"))); err != nil {
		return dir, err
	}
	for _, x := range []string{"tasks", "policy", "tasks-latency", ".rlfleet"} {
		if err := os.RemoveAll(filepath.Join(ex, x)); err != nil {
			return dir, err
		}
	}
	for _, c := range [][]string{
		{"go", "build", "-o", dir + "/rlctl", "./cmd/rlctl"},
		{"go", "build", "-o", dir + "/rlfleetd", "./cmd/rlfleetd"},
		{"env", "CGO_ENABLED=0", "go", "build", "-ldflags", "-s -w", "-o", dir + "/rlguest", "./cmd/rlguest"},
		{"go", "run", "./examples/files/gen", "-out", ex + "/tasks", "-seed", "3", "-train", "48", "-eval", "16", "-sft", dir + "/sft.jsonl"},
		{dir + "/rlctl", "policy", "init", "--sft", dir + "/sft.jsonl", "--steps", "80", "--out", ex + "/policy"},
	} {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	return dir, nil
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
