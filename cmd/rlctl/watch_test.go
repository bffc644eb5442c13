package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A run that makes no progress is looked at less often, until it makes some.
func TestPauseBetweenLooks(t *testing.T) {
	w, at := &watcher{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := func(after time.Duration, progress int64) time.Duration {
		at = at.Add(after)
		return w.pause(&raftlog.Run{ProgressNs: progress}, at)
	}
	require.Equal(t, lookEvery, look(0, 0), "a run that has just begun")
	require.Equal(t, lookEvery, look(idleAfter-1, 0))
	require.Equal(t, lookIdle, look(1, 0))
	require.Equal(t, lookIdle, look(time.Hour, 0))
	require.Equal(t, lookEvery, look(lookIdle, 7), "progress")
	require.Equal(t, lookEvery, look(time.Second, 7))
	require.Equal(t, lookIdle, look(idleAfter, 7))
	require.Equal(t, lookEvery, w.pause(nil, at), "a coordinator that does not answer may be back soon")
}
