package progress

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trainer"
)

func newStatus() Status {
	s := Status{
		Run: "files-1", State: "running", Step: 40, Steps: 150, Head: 40, Live: 40,
		Evals: []Eval{{Suite: "held-out", Reward: 0.16, Done: true}, {Suite: "held-out", Version: 40, Reward: 0.412, Done: true}},
		Pass:  112, Fail: 398, LagMean: 0.4, LagMax: 1, LagRun: 2, LagBound: 2,
		EpisodesPerSecond: 212.3, TokensPerSecond: 3111, Sandboxes: 24, SandboxesMax: 64,
		WaitsFor: "groups: 12 of 16 complete", Since: 4 * time.Second, Elapsed: 62 * time.Second, ETA: 70 * time.Second,
	}
	for i := range 40 {
		s.Rewards = append(s.Rewards, 0.14+0.005*float64(i))
	}
	return s
}

func TestLine(t *testing.T) {
	require.Equal(t, "step 40/150 version 40 live 40 reward 0.34 eval 0.41@40 pass 112 fail 398 indet 0 lag 1 212 ep/s 3.1k tok/s sandboxes 24 waits for groups: 12 of 16 complete (4s) eta 1m10s", Line(newStatus()))
	require.Equal(t, "paused step 0/150 version 0 pass 0 fail 0 indet 0 lag 0 0 ep/s 0 tok/s sandboxes 0", Line(Status{State: "paused", Steps: 150, Live: -1}))
	s := newStatus()
	s.WaitsFor, s.Since = "episodes (9 queued); the oldest is 7/1", time.Millisecond
	require.Contains(t, Line(s), " waits for episodes (9 queued) eta ")
	s.Evals = append(s.Evals, Eval{Suite: "other", Version: 40, Reward: math.NaN(), Done: true}, Eval{Suite: "held-out", Version: 50, Reward: 0.9})
	require.Contains(t, Line(s), " eval held-out 0.41@40 eval other -@40 ", "what runs is not shown as a result")
}

func TestDone(t *testing.T) {
	r := Result{
		State: "succeeded", Suite: "held-out", Before: 0.164, After: 0.961, Steps: 96, Took: 161 * time.Second, Episodes: 26112,
		MaxLag: 2, Best: ".rlfleet/files-1/policies/90",
	}
	require.Equal(t, "done: succeeded  reward 0.16 -> 0.96 on held-out  96 steps in 2m41s  26,112 episodes  lost 0  trained twice 0  stale 0  max lag 2  best policy .rlfleet/files-1/policies/90", Done(r))
	require.Equal(t, "done: failed (no progress for 15m:\tno engine is ready)  reward not measured  0 steps in 15m00s  0 episodes  lost 0  trained twice 0  stale 0  max lag 0",
		strings.Replace(Done(Result{State: "failed", Reason: "no progress for 15m:\n no engine is ready", Took: 15 * time.Minute}), ": no", ":\tno", 1))
	require.Contains(t, Done(Result{State: "paused", Reason: "version 7 was rejected", Suite: "held-out", Before: 0.1, After: math.NaN()}), "done: paused (version 7 was rejected)  reward 0.10 -> - on held-out  ")
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.25: "0.2", 7: "7", 9.96: "10", 212.3: "212", 999.6: "1.0k", 3111: "3.1k", 31111: "31k", 999_499: "999k", 1_234_567: "1.2M"} {
		require.Equal(t, want, short(x), x)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 26112: "26,112", 1234567: "1,234,567", -1000: "-1,000"} {
		require.Equal(t, want, grouped(n))
	}
	for d, want := range map[time.Duration]string{0: "0s", 59600 * time.Millisecond: "1m00s", 161 * time.Second: "2m41s", 63 * time.Minute: "1h03m"} {
		require.Equal(t, want, took(d))
	}
}

func TestSparkline(t *testing.T) {
	nan := math.NaN()
	require.Equal(t, "▁▅█", sparkline([]float64{0, 0.5, 1}, 10))
	require.Equal(t, "▂▂", sparkline([]float64{0.15, 0.16}, 10), "noise is not stretched to the full height")
	require.Equal(t, "▁ █", sparkline([]float64{0, nan, 1}, 10))
	require.Equal(t, "▁█", sparkline([]float64{0, 0, nan, 1, 1, 1}, 2), "means of the parts")
	require.Equal(t, "▁█", sparkline([]float64{-3, 5}, 2))
	require.Empty(t, sparkline(nil, 10))
	require.Empty(t, sparkline([]float64{1}, 0))
}

// A panel never wraps: at any width, with anything in it.
func TestPanelFits(t *testing.T) {
	long := newStatus()
	long.Run, long.WaitsFor, long.Lost = strings.Repeat("long-name-", 12), strings.Repeat("something that takes long ", 20), 1234
	long.Evals = append(long.Evals, Eval{Suite: "a-suite-with-a-long-name", Version: 120, Reward: 0.5, Done: true}, Eval{Suite: "held-out", Version: 50, Episodes: 3, Planned: 128})
	long.Pass, long.Fail, long.Indeterminate = 1_234_567, 2_345_678, 3_456_789
	for name, s := range map[string]Status{"usual": newStatus(), "empty": {}, "long": long} {
		for _, width := range []int{20, 40, 79, 80, 119, 200} {
			for _, colour := range []bool{false, true} {
				for _, l := range newPalette(colour).panel(s, width) {
					require.LessOrEqual(t, lipgloss.Width(l), width, "%s at %d: %q", name, width, l)
					require.NotContains(t, l, "\n")
				}
			}
		}
	}
}

func TestPanelShares(t *testing.T) {
	p := newPalette(false)
	require.Equal(t, "█▒▒▒▒▒▒▒▒░", p.shares(10, 1, 9998, 1), "what occurs is seen")
	require.Equal(t, "█████▒▒▒▒▒", p.shares(10, 5, 5, 0))
	require.Equal(t, "──────────", p.shares(10, 0, 0, 0))
	require.Equal(t, "━━━──", p.fill(3, 5, 5))
	require.Equal(t, "━━━━━", p.fill(9, 5, 5))
}

// screen plays what a view writes, as a terminal would.
type screen struct {
	lines [][]rune
	row   int
}

var sequence = regexp.MustCompile(`\x1b\[(\d*)([AJKm])`)

func (s *screen) Write(b []byte) (int, error) {
	text := string(b)
	col := 0
	for len(text) > 0 {
		for len(s.lines) <= s.row {
			s.lines = append(s.lines, nil)
		}
		if m := sequence.FindStringSubmatchIndex(text); m != nil && m[0] == 0 {
			n := 0
			_, _ = fmt.Sscan(text[m[2]:m[3]], &n)
			switch text[m[4]:m[5]] {
			case "A":
				s.row -= n
			case "J":
				s.lines = append(s.lines[:s.row], s.lines[s.row][:min(col, len(s.lines[s.row]))])
			case "K":
				s.lines[s.row] = s.lines[s.row][:min(col, len(s.lines[s.row]))]
			}
			text = text[m[1]:]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			col = 0
		case '\n':
			s.row, col = s.row+1, 0
		default:
			line := s.lines[s.row]
			for len(line) <= col {
				line = append(line, ' ')
			}
			line[col] = r
			s.lines[s.row], col = line, col+1
		}
	}
	return len(b), nil
}

func (s *screen) String() string {
	var b strings.Builder
	for _, l := range s.lines {
		b.WriteString(strings.TrimRight(string(l), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

const panel40 = `
files-1  running                                             1m02s · 1m10s left
  step      ━━━━━━━─────────────────────  40 of 150 · 26%
  reward    ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▃▃▃  0.34 in training
  held-out  0.16 at version 0 → 0.41 at 40
  verdicts  ██████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  pass 112 · fail 398 · indeterminate 0
  policy    version 40, live 40 · lag 0.4 mean, 1 max · in the whole run 2 of 2
  rate      212 episodes/s · 3.1k tokens/s · 24 of 64 sandboxes
  waits for groups: 12 of 16 complete · 4s
`

func TestViewDrawsOverItself(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	var s screen
	v := New(&s, true)
	v.Note("before anything is known")
	first := newStatus()
	first.Evals, first.WaitsFor = nil, strings.Repeat("a long wait ", 12)
	v.Update(first)
	v.Update(newStatus())
	require.Equal(t, "before anything is known\n"+panel40, s.String(), "the shorter panel leaves nothing of the longer one")
	v.Note("a worker was lost")
	require.Equal(t, "before anything is known\na worker was lost\n"+panel40, s.String())
	v.Close()
	fmt.Fprintln(&s, "done: succeeded")
	require.Equal(t, "before anything is known\na worker was lost\n"+panel40+"done: succeeded\n", s.String())
}

func TestViewWritesOnlyWhatChanged(t *testing.T) {
	t.Setenv("TERM", "xterm")
	var b bytes.Buffer
	v := New(&b, true)
	v.Update(newStatus())
	n := b.Len()
	v.Update(newStatus())
	require.Equal(t, n, b.Len())
}

func TestColourCanBeTurnedOff(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	var b bytes.Buffer
	New(&b, true).Update(newStatus())
	require.NotRegexp(t, `\x1b\[[0-9;]*m`, b.String())
}

func TestPlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		v := New(&b, false)
		s := newStatus()
		for range 48 { // twelve seconds
			v.Update(s)
			time.Sleep(250 * time.Millisecond)
		}
		require.Equal(t, 3, strings.Count(b.String(), "\n"), "at 0, 5 and 10 seconds")
		v.Note("a worker was lost")
		s.Evals = append(s.Evals, Eval{Suite: "held-out", Version: 50, Reward: 0.5, Done: true})
		v.Update(s)
		s.State = "paused"
		v.Update(s)
		v.Update(s)
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		require.Len(t, lines, 6, "an evaluation and a change of state are said at once")
		require.Equal(t, "a worker was lost", lines[3])
		require.Contains(t, lines[4], "eval 0.50@50")
		require.Regexp(t, "^paused ", lines[5])
		require.NotContains(t, b.String(), "\x1b")
		v.Close()
	})
}

func TestTracker(t *testing.T) {
	run := &raftlog.Run{Id: "files-1", State: raftlog.RunState_RUN_STATE_RUNNING, Live: -1, Config: &raftlog.RunConfig{Steps: 100, LagMax: 2}}
	var tr Tracker
	s := tr.Status(testTime, run, nil, nil)
	require.Equal(t, Status{Run: "files-1", State: "running", Steps: 100, Live: -1, LagBound: 2}, s, "one look tells no rate")
	steps := []*raftlog.Step{newStep(1, 1, 0.5), newStep(0, 1, 0.25), {Run: "files-1", Step: 2}, {Run: "other", State: raftlog.StepState_STEP_STATE_COMMITTED}}
	delete(steps[0].Metrics, trainer.RewardMean)
	steps[0].Metrics[trainer.LagMax] = 1
	open := newEval(10, 0)
	open.Done = false
	for i := int64(1); i <= 60; i++ { // 30 seconds at 50 episodes a second, 1 step in 5 seconds
		run.Head = i / 10
		run.Counters = &raftlog.Counters{EpisodesSettled: 25 * i, EpisodesPassed: 10, Tokens: 500 * i}
		s = tr.Status(testTime.Add(time.Duration(i)*500*time.Millisecond), run, steps, []*raftlog.EvalResult{open, newEval(0, 128), {Run: "other"}})
	}
	require.InDelta(t, 50, s.EpisodesPerSecond, 1e-9)
	require.InDelta(t, 1000, s.TokensPerSecond, 1e-9)
	require.Equal(t, 94*5*time.Second, s.ETA)
	require.Equal(t, []float64{0.25}, s.Rewards[:1])
	require.True(t, math.IsNaN(s.Rewards[1]), "a step without a reward has none")
	require.EqualValues(t, 1, s.LagMax)
	require.Equal(t, Eval{Suite: "held-out", Reward: 0.25, Episodes: 128, Planned: 128, Done: true}, s.Evals[0])
	require.True(t, math.IsNaN(s.Evals[1].Reward))
	for i := range 2000 {
		tr.Status(testTime.Add(30*time.Second+time.Duration(i)*250*time.Millisecond), run, nil, nil)
	}
	require.Less(t, len(tr.past), 500, "the past is forgotten")
	s = tr.Status(testTime.Add(time.Hour), run, nil, nil)
	require.Zero(t, s.EpisodesPerSecond, "a run that stands still has no rate")
	require.Zero(t, s.ETA)
}
