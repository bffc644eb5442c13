package failpoint

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain is also the program that the tests kill: it passes one point three times.
func TestMain(m *testing.M) {
	spec := os.Getenv(Env)
	if spec == "" {
		goleak.VerifyTestMain(m)
		return
	}
	stop, err := Start(context.Background(), spec)
	if err != nil {
		os.Exit(9)
	}
	defer stop()
	if spec[0] == '@' { // until the file has been read
		for plan.Load() == nil {
			<-time.After(time.Millisecond)
		}
	}
	for range 3 {
		At(LogAppendAfter)
		_, _ = os.Stdout.WriteString("passed\n")
	}
}

// child runs this binary with a plan and returns what it printed and how it ended.
func child(t *testing.T, spec string) (string, syscall.WaitStatus) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), Env+"="+spec)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return string(out), cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func TestActions(t *testing.T) {
	for name, c := range map[string]struct {
		spec, out string
		signal    syscall.Signal
		code      int
	}{
		"nothing":       {"log.append.after=off", "passed\npassed\npassed\n", -1, 0},
		"kill":          {"log.append.after=kill", "", syscall.SIGKILL, -1},
		"kill at third": {"log.append.after=2*off->kill", "passed\npassed\n", syscall.SIGKILL, -1},
		"another point": {"log.append.before=kill", "passed\npassed\npassed\n", -1, 0},
		"exit":          {"log.append.after=1*off->exit(7)", "passed\n", -1, 7},
		"no such point": {"log.append.middle=kill", "", -1, 9},
	} {
		t.Run(name, func(t *testing.T) {
			out, status := child(t, c.spec)
			require.Equal(t, c.out, out)
			require.Equal(t, c.signal, status.Signal())
			require.Equal(t, c.code, status.ExitStatus())
		})
	}
}

func TestErrorsAreCounted(t *testing.T) {
	stop, err := Start(t.Context(), "log.append.before=1*off->2*error(ENOSPC); mirror.put.before=error(the store is away)")
	require.NoError(t, err)
	require.NoError(t, Err(LogAppendBefore))
	require.ErrorIs(t, Err(LogAppendBefore), syscall.ENOSPC)
	require.ErrorIs(t, Err(LogAppendBefore), syscall.ENOSPC)
	require.NoError(t, Err(LogAppendBefore))
	for range 3 {
		require.ErrorContains(t, Err(MirrorPutBefore), "the store is away")
	}
	stop()
	require.NoError(t, Err(MirrorPutBefore), "off again")
}

// Of many processes that follow one file exactly one fails, and only once.
func TestFileFiresOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan")
	require.NoError(t, os.WriteFile(file, []byte("log.append.after=1*off->kill"), 0o644))
	out, status := child(t, "@"+file)
	require.Equal(t, "passed\n", out)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.NoFileExists(t, file)
	require.FileExists(t, file+".fired")
	by, err := os.ReadFile(file + ".fired.by")
	require.NoError(t, err)
	require.Contains(t, string(by), "log.append.after")

	stop, err := Start(t.Context(), "@"+file)
	require.NoError(t, err)
	defer stop()
	arm := func(text string) *armed {
		before := plan.Load()
		require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o644))
		require.NoError(t, os.Rename(file+".new", file))
		require.Eventually(t, func() bool { a := plan.Load(); return a != nil && a != before }, 5*time.Second, time.Millisecond)
		return plan.Load()
	}
	arm("log.append.before=1*error(x)")
	require.NoError(t, os.Remove(file), "another process takes it")
	require.NoError(t, Err(LogAppendBefore))
	arm("log.append.before=2*error(x)")
	require.Error(t, Err(LogAppendBefore))
	require.Error(t, Err(LogAppendBefore), "the rest of the plan is this process's")
	require.NoError(t, Err(LogAppendBefore))
}

func TestBadPlans(t *testing.T) {
	for _, spec := range []string{
		"x", "x=kill", "log.append.after", "log.append.after=die", "log.append.after=0*kill",
		"log.append.after=-1*kill", "log.append.after=exit(x", "log.append.after=exit(x)", "log.append.after=sleep(soon)",
		"log.append.after=error(this point returns none)",
	} {
		_, err := Start(t.Context(), spec)
		require.Error(t, err, spec)
	}
	require.NoError(t, errors.Join(Err(LogAppendBefore)), "a bad plan is no plan")
}

func BenchmarkOff(b *testing.B) {
	for b.Loop() {
		At(ApplyBefore)
	}
}
