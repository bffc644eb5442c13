package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/test/bench/figure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-only", "("}, {"-such"}} {
		var out, notes bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &out, &notes))
		require.Empty(t, out.String())
		require.NotEmpty(t, notes.String())
	}
}

// What cannot be measured fails, says what, and leaves nothing behind.
func TestFailedMeasurement(t *testing.T) {
	var out, notes bytes.Buffer
	work := filepath.Join(t.TempDir(), "work")
	require.Equal(t, 1, run(t.Context(), []string{"-only", "^failover$", "-rlfleetd", "/no/such", "-work", work}, &out, &notes))
	require.Empty(t, out.String())
	require.Contains(t, notes.String(), "bench-coordinator: failover: start the cluster: ")
	_, err := os.Stat(work)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The state machine's stall is measured with a small state, and the scratch directory is emptied.
func TestStall(t *testing.T) {
	var out, notes bytes.Buffer
	work := filepath.Join(t.TempDir(), "work")
	run(t.Context(), []string{"-quick", "-only", "^stall$", "-work", work}, &out, &notes) // short or not is the machine's
	require.Regexp(t, `(?m)^apply_stall_snapshot +[0-9.]+ ms +<=20 +(ok|short|noisy)$`, out.String(), notes.String())
	require.NoDirExists(t, work)
}

// A figure that is good is measured once, whatever the machine does; one that
// is short is measured again only while the machine is noisy, at most three times.
func TestMeasure(t *testing.T) {
	for name, c := range map[string]struct {
		values  []float64
		spreads []float64 // before and after each
		late    bool      // no time is left to measure again
		err     error
		calls   int
		word    string
	}{
		"good on a noisy machine":    {[]float64{1}, []float64{9, 9}, false, nil, 1, "ok"},
		"failed":                     {[]float64{3}, []float64{9, 9}, false, errors.New("broken"), 1, "short"},
		"short on a quiet machine":   {[]float64{3}, []float64{0.1, 0.2}, false, nil, 1, "short"},
		"good when measured again":   {[]float64{3, 1}, []float64{0.1, 0.3, 0.1, 0.1}, false, nil, 2, "ok"},
		"short when it is quiet":     {[]float64{3, 3}, []float64{0.3, 0.1, 0.1, 0.1}, false, nil, 2, "short"},
		"always noisy":               {[]float64{3, 3, 3}, []float64{0.3, 0.1, 0.1, 0.3, 0.3, 0.3}, false, nil, 3, "noisy"},
		"noisy and late":             {[]float64{3}, []float64{0.3, 0.1, 0.3, 0.3}, true, nil, 1, "noisy"},
		"late, then the noise ended": {[]float64{3}, []float64{0.3, 0.1, 0.3, 0.1}, true, nil, 1, "short"},
	} {
		t.Run(name, func(t *testing.T) {
			calls, looks := 0, 0
			b := &bench{notes: &bytes.Buffer{}, until: time.Now().Add(time.Hour), spread: func() float64 {
				looks++
				return c.spreads[looks-1]
			}}
			if c.late {
				b.until = time.Now()
			}
			lines, err := b.measure(t.Context(), group{name, func(*bench, context.Context) ([]figure.Line, error) {
				calls++
				return []figure.Line{figure.New("x", c.values[calls-1], "s", figure.AtMost(2))}, c.err
			}})
			require.Equal(t, c.err, err)
			require.Equal(t, c.calls, calls)
			require.Len(t, lines, 1)
			require.True(t, strings.HasSuffix(lines[0].String(), " "+c.word), lines[0])
		})
	}
}

// The same work takes some time, and the spread of it is a share.
func TestSpread(t *testing.T) {
	require.NotZero(t, spin())
	require.GreaterOrEqual(t, spread(), 0.0)
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 3.0, median([]float64{4, 3, 2, 1}))
}

// Time runs out with the last reason.
func TestUntil(t *testing.T) {
	err := until(t.Context(), 50*time.Millisecond, func(context.Context) error { return os.ErrClosed })
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, until(t.Context(), time.Second, func(context.Context) error { return nil }))
}
