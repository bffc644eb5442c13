package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/trajectory"
)

// facts are what one pass over a run's attempts leaves.
type facts struct {
	run    *trajectory.Run
	newest int64            // newest committed version
	steps  map[uint64]int64 // surviving step that consumed a group
	last   time.Time        // log time of the last thing known

	versions []byVersion // index is a version
	verdicts map[string][2]int
	ends     map[string]*ending
	lost     map[string]int    // attempts that ended without settling their member, by reason
	groups   map[string][2]int // by outcome and reason
	began    int64             // versions up to here began an attempt
	lag      []int             // trained episodes; index is the lag of the oldest token
	straddle int               // of them with tokens of several versions

	settled, sealed []moment // in the order of the log's groups, not of time
	tokens          int64
	members         [2]int // settled members, of training and of evaluation
}

// byVersion counts the training episodes that a version began.
type byVersion struct {
	verdicts map[string]int
	ends     map[string]int
}

// ending counts the attempts that ended in one way.
type ending struct {
	attempts, judged, passed int
}

// moment is when something was finished, and how much of it.
type moment struct {
	at time.Time
	n  int64
}

// where is the column of a count that keeps training and evaluation apart.
func where(g *trajectory.Group) int {
	if g.Suite != "" {
		return 1
	}
	return 0
}

func collect(r *trajectory.Run) *facts {
	f := &facts{
		run: r, steps: map[uint64]int64{}, last: r.CreatedAt, verdicts: map[string][2]int{}, ends: map[string]*ending{},
		lost: map[string]int{}, groups: map[string][2]int{}, began: 1,
	}
	for _, st := range r.Steps {
		f.newest = st.Step + 1
		f.note(st.CommittedAt)
		for _, g := range st.Groups {
			f.steps[g] = st.Step
		}
	}
	f.versions = make([]byVersion, f.newest+1)
	for i := range f.versions {
		f.versions[i] = byVersion{verdicts: map[string]int{}, ends: map[string]int{}}
	}
	for _, g := range r.Groups {
		f.note(g.AdmittedAt)
		f.addGroup(g)
		for _, a := range g.Attempts {
			f.addAttempt(a)
		}
	}
	f.note(r.EndedAt)
	return f
}

func (f *facts) note(t time.Time) {
	if t.After(f.last) {
		f.last = t
	}
}

func (f *facts) addGroup(g *trajectory.Group) {
	what := "still open"
	if g.End != nil {
		what = g.End.Outcome
		if g.End.Reason != "" {
			what += ": " + g.End.Reason
		}
	}
	count := f.groups[what]
	count[where(g)]++
	f.groups[what] = count
}

func (f *facts) addAttempt(a *trajectory.Attempt) {
	if a.Sealed != nil {
		f.note(a.SealedAt)
		f.sealed = append(f.sealed, moment{a.SealedAt, a.Sealed.Tokens})
		f.tokens += a.Sealed.Tokens
	}
	reason := endReason(a)
	if a.Lost != nil {
		f.lost[reason]++
	}
	if a.Settled == nil && a.Lost == nil {
		return
	}
	e := f.ends[reason]
	if e == nil {
		e = &ending{}
		f.ends[reason] = e
	}
	e.attempts++
	column := where(a.Group)
	start := f.within(startVersion(a))
	v := f.versions[start]
	if column == 0 {
		v.ends[reason]++
		f.began = max(f.began, start+1)
	}
	if a.Settled == nil {
		return
	}
	f.note(a.SettledAt)
	f.settled = append(f.settled, moment{a.SettledAt, 1})
	f.members[column]++
	count := f.verdicts[a.Settled.Verdict]
	count[column]++
	f.verdicts[a.Settled.Verdict] = count
	switch outcome.Verdict(a.Settled.Verdict) {
	case outcome.Pass:
		e.judged, e.passed = e.judged+1, e.passed+1
	case outcome.Fail:
		e.judged++
	}
	if column == 0 {
		v.verdicts[a.Settled.Verdict]++
		f.addLag(a)
	}
}

// addLag counts an episode that a step trained on, by its oldest token.
func (f *facts) addLag(a *trajectory.Attempt) {
	step, consumed := f.steps[a.Group.Group]
	if !consumed || a.Sealed == nil || a.Sealed.MinVersion < 0 || !outcome.Disposition(a.Settled.Disposition).InLoss() {
		return
	}
	lag := max(step-a.Sealed.MinVersion, 0)
	for int64(len(f.lag)) <= lag {
		f.lag = append(f.lag, 0)
	}
	f.lag[lag]++
	if a.Sealed.MaxVersion > a.Sealed.MinVersion {
		f.straddle++
	}
}

// within counts what a version began that was rolled back with the newest one.
func (f *facts) within(version int64) int64 {
	return min(max(version, 0), int64(len(f.versions)-1))
}

// startVersion is the version that began an attempt: that of its oldest token,
// or the one that was live when its group was admitted.
func startVersion(a *trajectory.Attempt) int64 {
	if a.Sealed != nil && a.Sealed.MinVersion >= 0 {
		return a.Sealed.MinVersion
	}
	return a.Group.Live
}

// endReason is how an attempt ended, as the log says it last.
func endReason(a *trajectory.Attempt) string {
	switch {
	case a.Lost != nil && a.Settled == nil:
		return a.Lost.Reason
	case a.Settled.GetEndReason() != "":
		return a.Settled.EndReason
	case a.Sealed != nil:
		return a.Sealed.EndReason
	default:
		return "unknown"
	}
}

// reasons returns the end reasons, most frequent first.
func (f *facts) reasons() []string {
	var out []string
	for r := range f.ends {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(f.ends[b].attempts, f.ends[a].attempts), cmp.Compare(a, b))
	})
	return out
}
