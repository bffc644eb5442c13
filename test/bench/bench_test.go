package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trajectory"
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

// What cannot be measured fails, and says what.
func TestFailedMeasurement(t *testing.T) {
	var out, notes bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"-only", "^demo$", "-bin", t.TempDir(), "-work", t.TempDir()}, &out, &notes))
	require.Empty(t, out.String())
	require.Contains(t, notes.String(), "bench: demo: ")
}

func TestDistance(t *testing.T) {
	require.Equal(t, 0.0, distance([]float64{1, 2, 3}, []float64{3, 2, 1}))
	require.Equal(t, 1.0, distance([]float64{1, 2}, []float64{3, 4, 5}))
	require.Equal(t, 1.0, distance([]float64{3, 4, 5}, []float64{1, 2}))
	require.InDelta(t, 0.5, distance([]float64{1, 2, 3, 4}, []float64{3, 4, 5, 6}), 1e-12)
	require.InDelta(t, 0.25, distance([]float64{1, 1, 1, 2}, []float64{1, 1, 1, 1}), 1e-12)
	require.True(t, math.IsNaN(distance(nil, []float64{1})))
}

// The critical distance is exceeded in about 5 % of cases by equal distributions, and by unequal ones nearly always.
func TestCritical(t *testing.T) {
	require.InDelta(t, 1.358*math.Sqrt(2.0/100), critical(100, 100), 1e-3)
	require.Zero(t, critical(0, 5))
	rng := rand.New(rand.NewPCG(3, 4))
	draw := func(n int, shift float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = math.Exp(rng.NormFloat64() + shift)
		}
		return out
	}
	equal, unequal := 0, 0
	const trials = 1000
	for range trials {
		a := draw(200, 0)
		if distance(a, draw(150, 0)) > critical(200, 150) {
			equal++
		}
		if distance(a, draw(150, 0.5)) > critical(200, 150) {
			unequal++
		}
	}
	require.InDelta(t, 0.045, float64(equal)/trials, 0.025)
	require.Greater(t, float64(unequal)/trials, 0.95)
}

func TestProcessTable(t *testing.T) {
	p, err := processOf("12 (a) b) (c) S 7 12 12 0 -1 4194560 100 0 0 0 3 4 5 6 20 0 9 0 55 1000 250 18446744073709551615 1 1 0")
	require.NoError(t, err)
	require.Equal(t, process{pid: 12, parent: 7, cpu: 180 * time.Millisecond, resident: 250 * int64(os.Getpagesize())}, p)
	for _, bad := range []string{"", "12 a S 7", "12 (a) S 7", "12 (a) S x 12 12 0 -1 4194560 100 0 0 0 3 4 5 6 20 0 9 0 55 1000 250 1"} {
		_, err := processOf(bad)
		require.Error(t, err, bad)
	}
	own, err := treeOf(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), own[0].pid)
	require.Greater(t, own.resident(), int64(1<<20))
	_, err = treeOf(1 << 30)
	require.ErrorIs(t, err, os.ErrProcessDone)
}

func TestBusy(t *testing.T) {
	d, err := busyOf("cpu  10 20 30 1000 500 1 2 3 7 0")
	require.NoError(t, err)
	require.Equal(t, 630*time.Millisecond, d) // without idle, iowait, steal and guest
	for _, bad := range []string{"", "cpu0 1 2", "cpu 1 2 3 4 5 6 x 8"} {
		_, err := busyOf(bad)
		require.Error(t, err, bad)
	}
}

// groupsOf makes a run of steps of two groups; slow groups are trained late if late is set.
func groupsOf(steps int, late bool) *trajectory.Run {
	r := &trajectory.Run{}
	step := func(i int) int64 { return int64(i / 2) }
	for i := range 2 * steps {
		g := &trajectory.Group{GroupAdmitted: &raftlog.GroupAdmitted{Group: uint64(i)}}
		slow := i%4 == 0
		ns := int64(1e9)
		if slow {
			ns = 9e9
		}
		at := step(i)
		if late && slow {
			at = int64(steps - 1)
		}
		g.End = &raftlog.GroupEnded{Outcome: "consumed", Step: at}
		g.Attempts = []*trajectory.Attempt{{Sealed: &raftlog.Sealed{DurationNs: ns}}, {}}
		r.Groups = append(r.Groups, g)
	}
	r.Groups = append(r.Groups, &trajectory.Group{GroupAdmitted: &raftlog.GroupAdmitted{Suite: "held-out"}, Attempts: []*trajectory.Attempt{{Sealed: &raftlog.Sealed{DurationNs: 1}}}})
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range steps {
		r.Steps = append(r.Steps, &trajectory.TrainStep{CommittedAt: base.Add(time.Duration(i) * time.Second)})
	}
	return r
}

// Passing over slow groups shows in the middle of a run, though at its end all are trained.
func TestDurations(t *testing.T) {
	trained, dispatched := durations(groupsOf(100, false))
	require.Len(t, trained, 100)
	require.Equal(t, trained, dispatched)
	trained, dispatched = durations(groupsOf(100, true))
	require.Len(t, trained, len(dispatched))
	require.Greater(t, distance(trained, dispatched), critical(len(trained), len(dispatched)))
}

func TestPace(t *testing.T) {
	pace, err := stepsPerMinute(groupsOf(10, false), 4, 10, 2)
	require.NoError(t, err)
	require.InDelta(t, 60, pace, 1e-9)
	_, err = stepsPerMinute(groupsOf(10, false), 4, 11, 2)
	require.Error(t, err)
}

func TestQuantile(t *testing.T) {
	s := []float64{5, 1, 4, 2, 3}
	require.Equal(t, 3.0, quantile(s, 0.5))
	require.Equal(t, 5.0, quantile(s, 0.99))
	require.Equal(t, []float64{5, 1, 4, 2, 3}, s)
	require.Equal(t, "none", quartiles(nil))
}
