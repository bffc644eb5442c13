package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadme runs every command that the README shows on a run like the demo's.
func TestReadme(t *testing.T) {
	programs := setUp(t)
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	work := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(work, "examples"), 0o755))
	require.NoError(t, os.Symlink(programs, filepath.Join(work, "bin")))
	require.NoError(t, os.Symlink(filepath.Join(programs, "example"), filepath.Join(work, "examples", "files")))
	said, err := rlctl(t, programs, work, "run", "examples/files/small.yaml", "--set", "metadata.name=files", "--set", "spec.steps=11")
	require.NoError(t, err, said)

	require.NoError(t, os.CopyFS(filepath.Join(work, "examples", "cluster"), os.DirFS("../../examples/cluster"))) // its paths are relative

	placeholder := regexp.MustCompile(`\b(FILE|DIR|RUN)\b`)
	ran := 0
	for _, block := range strings.Split(string(text), "```")[1:] {
		for _, line := range strings.Split(block, "\n") {
			line, _, _ = strings.Cut(line, "#")
			line = strings.TrimSpace(line)
			if set, is := strings.CutPrefix(line, "export "); is {
				for _, x := range strings.Fields(set) {
					name, value, _ := strings.Cut(x, "=")
					t.Setenv(name, value)
				}
			}
			if daemon, is := strings.CutSuffix(line, " &"); is {
				cmd := exec.Command("bash", "-c", "exec "+daemon)
				p := beginWith(t, cmd, work)
				p.until(t, "listening", func() bool { return strings.Contains(p.said(), "msg=serving") })
				ran++
				continue
			}
			if !strings.HasPrefix(line, "bin/rlctl ") || placeholder.MatchString(line) {
				continue
			}
			cmd := exec.Command("bash", "-o", "pipefail", "-c", line)
			cmd.Dir = work
			out, err := cmd.CombinedOutput()
			// head closes the pipe of a long list.
			if strings.Contains(line, "| head") && err != nil && len(out) > 0 {
				err = nil
			}
			require.NoError(t, err, "%s\n%s", line, out)
			require.NotEmpty(t, out, line)
			ran++
		}
	}
	require.GreaterOrEqual(t, ran, 8, "the README shows its commands in code blocks")
}
