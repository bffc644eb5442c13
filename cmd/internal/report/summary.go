package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/cmd/internal/progress"
	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (f *facts) header() head {
	r := f.run
	h := head{Run: r.ID, Experiment: r.ID, State: r.State, Class: "good", Reason: r.Reason}
	if x, err := experiment.Parse(r.Spec, "the submitted spec"); err == nil {
		h.Experiment = x.Metadata.Name
	}
	switch r.State {
	case "":
		h.State, h.Class = "not ended", "warn"
		h.Reason = "the page shows what is in the store so far"
	case "succeeded":
		h.Reason = ""
	default:
		h.Class = "bad"
	}
	c := r.Config
	h.Facts = append(h.Facts, "started "+r.CreatedAt.Format("2006-01-02 15:04:05 UTC"), fmt.Sprintf("seed %d", c.Seed))
	for _, e := range c.Envs {
		h.Facts = append(h.Facts, fmt.Sprintf("env %s: groups of %d, %s training tasks", e.Name, e.GroupSize, grouped(int64(len(e.Tasks)))))
	}
	h.Facts = append(h.Facts, fmt.Sprintf("%d groups a step", c.GroupsPerStep), fmt.Sprintf("lag at most %d", c.LagMax))
	if d := r.SpecDigest; d != "" {
		h.Facts = append(h.Facts, "spec "+short(string(d)))
	}
	if r.Gap != "" {
		h.Warnings = append(h.Warnings, "The log in the store has a gap, and what comes after it is not shown: "+r.Gap)
	}
	for _, q := range r.Quarantined {
		h.Warnings = append(h.Warnings, fmt.Sprintf("Task %s was taken out: %s", q.Task.GetId(), q.Reason))
	}
	return h
}

// evals returns the evaluations of each suite by version, and the suites in order of first appearance.
func (f *facts) evals() (suites []string, by map[string][]*raftlog.EvalDone) {
	by = map[string][]*raftlog.EvalDone{}
	for _, e := range f.run.Evals {
		if by[e.Suite] == nil {
			suites = append(suites, e.Suite)
		}
		by[e.Suite] = append(by[e.Suite], e)
	}
	for _, list := range by {
		slices.SortStableFunc(list, func(a, b *raftlog.EvalDone) int { return cmp.Compare(a.Version, b.Version) })
	}
	return suites, by
}

func (f *facts) tiles() []tile {
	suites, by := f.evals()
	var out []tile
	for _, s := range suites {
		first, last := by[s][0], by[s][len(by[s])-1]
		note := fmt.Sprintf("on %s, version %d to %d", s, first.Version, last.Version)
		if first == last {
			out = append(out, tile{"reward", evalReward(last), fmt.Sprintf("on %s, version %d", s, last.Version)})
			continue
		}
		out = append(out, tile{"reward", evalReward(first) + " → " + evalReward(last), note})
	}
	if len(suites) == 0 {
		out = append(out, tile{"reward", "–", "not evaluated"})
	}
	wall := f.last.Sub(f.run.CreatedAt)
	gone, twice := progress.Audit(f.run)
	lost := 0
	for _, n := range f.lost {
		lost += n
	}
	pace := func(n int64) string {
		if wall <= 0 {
			return ""
		}
		return number(float64(n)/wall.Seconds()) + " a second"
	}
	return append(out,
		tile{"steps", fmt.Sprintf("%d of %d", len(f.run.Steps), f.run.Config.Steps), "each makes one version"},
		tile{"wall time", duration(wall), "by the run's own clock"},
		tile{"episodes", grouped(int64(len(f.settled))), fmt.Sprintf("%s, %s of them for evaluation", pace(int64(len(f.settled))), grouped(int64(f.members[1])))},
		tile{"tokens sampled", grouped(f.tokens), pace(f.tokens)},
		tile{"largest lag", fmt.Sprint(max(len(f.lag)-1, 0)), fmt.Sprintf("versions; %d allowed", f.run.Config.LagMax)},
		tile{"attempts repeated", grouped(int64(lost)), "lost, none counted as a reward"},
		tile{"lost · trained twice", fmt.Sprintf("%d · %d", gone, twice), "sealed episodes · groups"},
	)
}

func evalReward(e *raftlog.EvalDone) string {
	if e.Scored == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", e.Reward)
}

func (f *facts) tables() []table {
	return []table{f.verdictTable(), f.endTable(), f.groupTable(), f.evalTable()}
}

func (f *facts) verdictTable() table {
	t := table{Title: "Verdicts", Note: "of settled episodes", Columns: []string{"verdict", "training", "share", "evaluation", "share"}, Empty: "No episode has settled."}
	for _, v := range outcome.Verdicts {
		n, ok := f.verdicts[v]
		if !ok && (v == "not_run" || len(f.verdicts) == 0) {
			continue
		}
		t.Rows = append(t.Rows, []string{words(v), grouped(int64(n[0])), percent(n[0], f.members[0]), grouped(int64(n[1])), percent(n[1], f.members[1])})
	}
	return t
}

func (f *facts) endTable() table {
	t := table{
		Title: "How attempts ended", Note: "training and evaluation; an attempt of class environment, platform or verifier never becomes a reward",
		Columns: []string{"end reason", "class", "attempts", "share", "passed", "of judged"}, Left: map[int]bool{1: true}, Empty: "No attempt has ended.",
	}
	total := 0
	for _, e := range f.ends {
		total += e.attempts
	}
	for _, r := range f.reasons() {
		e := f.ends[r]
		class, err := outcome.Class(outcome.EndReason(r))
		if err != nil {
			class = "–"
		}
		t.Rows = append(t.Rows, []string{words(r), string(class), grouped(int64(e.attempts)), percent(e.attempts, total), grouped(int64(e.passed)), percent(e.passed, e.judged)})
	}
	return t
}

func (f *facts) groupTable() table {
	t := table{Title: "What became of the groups", Columns: []string{"outcome", "training", "share", "evaluation", "share"}, Empty: "No group was admitted."}
	var names []string
	var total [2]int
	for name, n := range f.groups {
		names = append(names, name)
		total[0], total[1] = total[0]+n[0], total[1]+n[1]
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(f.groups[b][0], f.groups[a][0]), cmp.Compare(a, b))
	})
	for _, name := range names {
		n := f.groups[name]
		t.Rows = append(t.Rows, []string{words(name), grouped(int64(n[0])), percent(n[0], total[0]), grouped(int64(n[1])), percent(n[1], total[1])})
	}
	return t
}

func (f *facts) evalTable() table {
	t := table{Title: "Evaluations", Columns: []string{"suite", "version", "mean reward", "passed", "scored", "planned"}, Empty: "Nothing was evaluated."}
	suites, by := f.evals()
	for _, s := range suites {
		list := some(by[s], shown)
		if len(list) < len(by[s]) {
			t.Note = fmt.Sprintf("%d of %d, evenly spaced", len(list), len(by[s]))
		}
		for _, e := range list {
			reward := "–"
			if e.Scored > 0 {
				reward = fmt.Sprintf("%.3f", e.Reward)
			}
			t.Rows = append(t.Rows, []string{s, fmt.Sprint(e.Version), reward, fmt.Sprint(e.Passed), fmt.Sprint(e.Scored), fmt.Sprint(e.Episodes)})
		}
	}
	return t
}

// words makes an identifier readable.
func words(s string) string { return strings.ReplaceAll(s, "_", " ") }

func percent(n, of int) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f\u00a0%%", 100*float64(n)/float64(of))
}

// short is the beginning of a digest, enough to recognise it.
func short(digest string) string {
	if len(digest) > 19 {
		return digest[:19] + "…"
	}
	return digest
}

func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// duration renders to the second, and below ten seconds to the hundredth.
func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
