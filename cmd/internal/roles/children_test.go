package roles

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// supervise starts a script as a child until it is given up or has been started
// again n times, and returns why it was given up.
func supervise(t *testing.T, script string, n int) error {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "rlfleetd")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o755))
	logs, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer logs.Close()
	given := make(chan error, 1)
	c := NewChildren(program, slog.New(slog.DiscardHandler), logs, func(err error) { given <- err })
	c.first = time.Microsecond
	ctx, cancel := context.WithCancel(t.Context())
	defer c.Wait()
	defer cancel()
	c.Start(ctx, Child{Name: "trainer", Args: []string{"trainer"}}, time.Second)
	for c.Restarts()["trainer"] < n {
		select {
		case err := <-given:
			return err
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func TestChildThatCannotStartIsGivenUp(t *testing.T) {
	err := supervise(t, "echo 'rlfleetd engine: other' >&2; echo 'rlfleetd trainer: the disk is on fire' >&2; echo noise; exit 1", 50)
	require.EqualError(t, err, "trainer ended 8 times in a row: the disk is on fire")
}

func TestChildThatIsKilledIsNotGivenUp(t *testing.T) {
	require.NoError(t, supervise(t, "kill -9 $$", 12))
}
