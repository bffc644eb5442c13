package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program is an rlctl in the background. It is killed with the test.
type program struct {
	cmd  *exec.Cmd
	out  string // file that it prints to
	done chan struct{}
}

// begin starts rlctl in dir.
func begin(t *testing.T, programs, dir string, args ...string) *program {
	t.Helper()
	return beginWith(t, exec.Command(filepath.Join(programs, "rlctl"), args...), dir)
}

// beginWith starts a prepared command in dir.
func beginWith(t *testing.T, cmd *exec.Cmd, dir string) *program {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "said-")
	require.NoError(t, err)
	defer f.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, f, f
	require.NoError(t, cmd.Start())
	p := &program{cmd: cmd, out: f.Name(), done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
	})
	return p
}

// said returns what it has printed.
func (p *program) said() string {
	b, _ := os.ReadFile(p.out)
	return string(b)
}

// patience bounds every wait of these tests, on a machine with other work too.
const patience = 90 * time.Second

// until waits for a condition while the program runs.
func (p *program) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.After(patience)
	for !holds() {
		select {
		case <-p.done:
			t.Fatalf("it ended before %s: %s", what, p.said())
		case <-late:
			t.Fatalf("no %s: %s", what, p.said())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// signal sends one.
func (p *program) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// wait returns the exit code; −1 is the end by a signal.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("it does not end: %s", p.said())
	}
	return p.cmd.ProcessState.ExitCode()
}

// code is the exit code behind the error of a command.
func code(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil {
		require.True(t, errors.As(err, &exit), "%v", err)
		return exit.ExitCode()
	}
	return 0
}
