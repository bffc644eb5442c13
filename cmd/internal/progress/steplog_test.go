package progress

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trainer"
)

var testTime = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

func newStep(n, lineage int64, reward float64) *raftlog.Step {
	return &raftlog.Step{
		Run: "files-1", Step: n, Lineage: lineage, State: raftlog.StepState_STEP_STATE_COMMITTED, Groups: []uint64{1, 2},
		Metrics:     map[string]float64{trainer.RewardMean: reward, trainer.Loss: -0.5, "own": 2, "kind": 9},
		CommittedNs: testTime.Add(time.Duration(n) * time.Second).UnixNano(),
	}
}

func newEval(version int64, scored int32) *raftlog.EvalResult {
	return &raftlog.EvalResult{Run: "files-1", Suite: "held-out", Version: version, Episodes: 128, Settled: 128, Scored: scored, RewardSum: 32, Passed: 32, Done: true}
}

func readLog(t *testing.T, dir string) (lines []string, rows []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, StepsFile))
	require.NoError(t, err)
	for line := range bytes.Lines(data) {
		var row map[string]any
		require.NoError(t, json.Unmarshal(line, &row))
		lines, rows = append(lines, string(line)), append(rows, row)
	}
	return lines, rows
}

func openLog(t *testing.T, dir string) *StepLog {
	t.Helper()
	l, err := OpenStepLog(dir)
	require.NoError(t, err)
	return l
}

func TestStepLogLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := openLog(t, dir)
	require.NoError(t, l.Append(newStep(0, 1, 0.25), map[string]float64{Live: 0, EpisodesPerSecond: 100.5, "zeta": 1, "step": 9}))
	require.NoError(t, l.AppendEval(newEval(0, 128), testTime))
	require.NoError(t, l.AppendEval(newEval(10, 0), testTime))
	require.NoError(t, l.Close())
	lines, rows := readLog(t, dir)
	require.Equal(t, `{"kind":"step","time":"2026-11-03T10:00:00Z","lineage":1,"step":0,"version":1,"groups":2,`+
		`"reward_mean":0.25,"reward_std":null,"entropy":null,"kl_behaviour":null,"clip_fraction_pos":null,"clip_fraction_neg":null,`+
		`"ess":null,"grad_norm":null,"loss":-0.5,"length_p50":null,"length_p95":null,"truncated":null,"zero_variance":null,"masked":null,`+
		`"lag_mean":null,"lag_max":null,"tokens":null,"train_seconds":null,"wait_seconds":null,`+
		`"live":0,"episodes_per_second":100.5,"tokens_per_second":null,"sandboxes":null,"episodes":null,"passed":null,"failed":null,"indeterminate":null,`+
		`"own":2,"zeta":1}`+"\n", lines[0])
	require.Equal(t, `{"kind":"eval","time":"2026-11-03T10:00:00Z","suite":"held-out","version":0,"episodes":128,"scored":128,"passed":32,"reward_mean":0.25}`+"\n", lines[1])
	require.Nil(t, rows[2]["reward_mean"], "nothing scored is not a reward of 0")
	for _, name := range trainer.MetricNames {
		require.Contains(t, rows[0], name)
	}
	require.NotContains(t, slices.Collect(maps.Keys(rows[0])), "")
	files, err := os.ReadDir(filepath.Join(dir, TensorBoardDir))
	require.NoError(t, err)
	require.Len(t, files, 1)
}

// Whoever starts again appends everything again: the file stays the same.
func TestStepLogIsIdempotent(t *testing.T) {
	dir := t.TempDir()
	appendAll := func() {
		l := openLog(t, dir)
		for i := range int64(3) {
			require.NoError(t, l.Append(newStep(i, 1, 0.5), nil))
			require.NoError(t, l.Append(newStep(i, 1, 0.7), nil), "once committed, a step does not change")
		}
		open := newStep(3, 1, 0.5)
		open.State = raftlog.StepState_STEP_STATE_ASSIGNED
		require.NoError(t, l.Append(open, nil))
		require.NoError(t, l.AppendEval(newEval(0, 128), testTime))
		running := newEval(10, 5)
		running.Done = false
		require.NoError(t, l.AppendEval(running, testTime))
		require.NoError(t, l.Close())
	}
	appendAll()
	first, _ := readLog(t, dir)
	require.Len(t, first, 4)
	appendAll()
	again, _ := readLog(t, dir)
	require.Equal(t, first, again)
	files, err := os.ReadDir(filepath.Join(dir, TensorBoardDir))
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing new makes no event file")

	l := openLog(t, dir)
	require.NoError(t, l.Append(newStep(1, 2, 0.6), nil), "after a rollback the step is made again")
	require.NoError(t, l.Close())
	after, rows := readLog(t, dir)
	require.Equal(t, first, after[:4])
	require.EqualValues(t, 2, rows[4]["lineage"])
}

// A kill may cut the last line anywhere; the step is then written again.
func TestStepLogRepairsItsEnd(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for i := range int64(2) {
		require.NoError(t, l.Append(newStep(i, 1, 0.5), nil))
	}
	require.NoError(t, l.Close())
	path := filepath.Join(dir, StepsFile)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	first := bytes.IndexByte(whole, '\n') + 1
	for _, size := range []int{0, 1, first - 1, first, first + 1, first + 40, len(whole) - 1, len(whole)} {
		require.NoError(t, os.WriteFile(path, whole[:size], 0o600))
		l := openLog(t, dir)
		for i := range int64(2) {
			require.NoError(t, l.Append(newStep(i, 1, 0.5), nil))
		}
		require.NoError(t, l.Close())
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(whole), string(got), "cut at %d", size)
	}
}

func TestStepLogRefusesWhatItDidNotWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, StepsFile), []byte("{\"kind\":\"step\",\"step\":0}\nnonsense\n"), 0o600))
	_, err := OpenStepLog(dir)
	require.ErrorContains(t, err, "line 2 cannot be read")
	require.ErrorContains(t, err, "move the file away")
}
