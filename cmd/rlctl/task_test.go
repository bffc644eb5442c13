package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/task"
)

// writeTask writes a task whose tests accept the answer 7; solve is its solution/solve.sh.
func writeTask(t *testing.T, dir, solve string) {
	t.Helper()
	for name, text := range map[string]string{
		"task.toml":              "artifacts = [\"/app/answer.txt\"]\n[task]\nname = \"" + filepath.Base(dir) + "\"\n[verifier]\nenvironment_mode = \"separate\"\n",
		"instruction.md":         "answer 7\n",
		"environment/Dockerfile": "FROM x\nWORKDIR /app\n",
		"tests/test.sh":          "read -r got < /app/answer.txt\n[ \"$got\" = 7 ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n",
		"solution/solve.sh":      solve,
	} {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
}

func TestTaskValidate(t *testing.T) {
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, no task was validated in a real sandbox: %v", err)
	}
	guest := filepath.Join(t.TempDir(), "rlguest")
	build := exec.Command("go", "build", "-o", guest, "github.com/rlfleet/rlfleet/cmd/rlguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, string(text))

	validate := func(dir string) (string, error) {
		var out bytes.Buffer
		c := taskCommand()
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetArgs([]string{"validate", dir, "--guest", guest})
		c.SetOut(&out)
		err := c.ExecuteContext(context.Background())
		return out.String(), err
	}
	dir := t.TempDir()
	writeTask(t, filepath.Join(dir, "train", "good"), "echo 7 > answer.txt\n")
	writeTask(t, filepath.Join(dir, "eval", "also"), "echo 7 > answer.txt\n")
	out, err := validate(dir)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	require.Regexp(t, `^ok   good  solution 1, nothing 0`, lines[0])
	require.Regexp(t, `^ok   also  `, lines[1])
	require.Equal(t, "2 validated, 0 bad", lines[2])

	writeTask(t, filepath.Join(dir, "train", "uncovered"), "echo 7 > elsewhere.txt\n")
	out, err = validate(dir)
	require.ErrorIs(t, err, errSilent, "said already; exit code 1")
	require.Contains(t, out, "BAD  uncovered  solution fails (reward 0): it left none of the artifacts [/app/answer.txt]")
	require.Contains(t, out, "3 validated, 1 bad")

	out, err = validate(filepath.Join(dir, "train", "good"))
	require.NoError(t, err)
	require.Contains(t, out, "1 validated, 0 bad")

	_, err = validate(t.TempDir())
	require.ErrorIs(t, err, task.ErrInvalid)
	require.ErrorContains(t, err, "there is no task directory in it")
}
