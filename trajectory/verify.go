package trajectory

import (
	"context"
	"fmt"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// VerifyOptions says what else Verify holds the record against.
type VerifyOptions struct {
	AcksFile string // journal written by AckJournal; empty for none
}

// Finding is an invariant that the stored data breaks.
type Finding struct {
	Invariant string `json:"invariant"` // I2 … I9, see the architecture
	Where     string `json:"where"`     // episode, group, step, version or object
	What      string `json:"what"`
}

// String returns the finding in one line.
func (f Finding) String() string { return fmt.Sprintf("%s %s: %s", f.Invariant, f.Where, f.What) }

// Report is what Verify looked at and what it found.
type Report struct {
	Run      string    `json:"run"`
	State    string    `json:"state"`    // of the run; empty while it has not ended
	Events   uint64    `json:"events"`   // last event of the gapless prefix
	Episodes int       `json:"episodes"` // sealed attempts
	Settled  int       `json:"settled"`
	Scored   int       `json:"scored"` // settled with a reward
	Groups   int       `json:"groups"`
	Steps    int       `json:"steps"`    // committed, of the surviving lineage
	Shards   int       `json:"shards"`   // opened and found to match their digests
	Tokens   int64     `json:"tokens"`   // sampled
	Trained  int64     `json:"trained"`  // tokens in the loss of some step
	MaxLag   int64     `json:"max_lag"`  // of any token trained
	Pending  int       `json:"pending"`  // groups that have not ended, of a run that has not either
	Acks     int       `json:"acks"`     // acknowledgements held against the record
	Findings []Finding `json:"findings"` // empty when the record is clean
}

// Clean reports whether nothing was found.
func (r Report) Clean() bool { return len(r.Findings) == 0 }

// String returns one summary line, and a line for each finding.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "verify: %d episodes, %d groups, %d steps: ", r.Episodes, r.Groups, r.Steps)
	switch n := len(r.Findings); n {
	case 0:
		b.WriteString("clean")
	case 1:
		b.WriteString("1 finding")
	default:
		fmt.Fprintf(&b, "%d findings", n)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n  %s", f)
	}
	return b.String()
}

// verifier checks one run. Facts of the rows are kept for the ledgers.
type verifier struct {
	run       *Run
	store     store.ObjectStore
	report    *Report
	attempts  map[string]*Attempt
	facts     map[string][]branchFacts            // by episode
	versions  map[policy.Version][]*PolicyVersion // of each lineage, in order
	consumers map[uint64][]int64                  // steps that name a group
	damage    map[string]*damage                  // by object
	order     []string                            // objects of damage, as met
	seen      map[policy.Digest]struct{}
}

// damage is an object that can't be read, with those it was asked for.
type damage struct {
	err   error
	where []string
}

// Verify re-checks a run's invariants from the stored data alone. The error is
// about the store or the journal not being readable at all; what is wrong with
// the record is in the report.
func Verify(ctx context.Context, s store.ObjectStore, run string, opts VerifyOptions) (Report, error) {
	r, err := OpenRun(ctx, s, run)
	if err != nil {
		return Report{Run: run}, err
	}
	rep := &Report{Run: run, State: r.State, Events: r.LastEvent, Groups: len(r.Groups), Steps: len(r.Steps), Findings: append([]Finding{}, r.anomalies...)}
	v := &verifier{
		run: r, store: s, report: rep, attempts: map[string]*Attempt{}, facts: map[string][]branchFacts{},
		versions: map[policy.Version][]*PolicyVersion{}, consumers: map[uint64][]int64{}, damage: map[string]*damage{}, seen: map[policy.Digest]struct{}{},
	}
	for _, a := range r.Attempts() {
		v.attempts[a.ID] = a
	}
	for _, p := range r.Versions {
		v.versions[p.Version] = append(v.versions[p.Version], p)
	}
	for _, st := range r.Steps {
		for _, g := range st.Groups {
			v.consumers[g] = append(v.consumers[g], st.Step)
		}
	}
	v.checkGroups()
	v.checkEvals()
	for _, check := range []func(context.Context) error{v.checkRows, v.checkLedgers, v.checkNewestVersion} {
		if err := check(ctx); err != nil {
			return *rep, err
		}
	}
	v.reportDamage()
	if opts.AcksFile != "" {
		if err := v.checkAcks(opts.AcksFile); err != nil {
			return *rep, err
		}
	}
	return *rep, nil
}

func (v *verifier) find(invariant, where, format string, args ...any) {
	v.report.Findings = append(v.report.Findings, Finding{Invariant: invariant, Where: where, What: fmt.Sprintf(format, args...)})
}

// unreadable notes that an object could not be read for whoever asked; one finding for each object follows.
func (v *verifier) unreadable(object, where string, err error) {
	d := v.damage[object]
	if d == nil {
		d = &damage{err: err}
		v.damage[object] = d
		v.order = append(v.order, object)
	}
	d.where = append(d.where, where)
}

func (v *verifier) reportDamage() {
	for _, object := range v.order {
		d := v.damage[object]
		names := strings.Join(d.where[:min(3, len(d.where))], ", ")
		if n := len(d.where); n > 3 {
			names += fmt.Sprintf(" and %d more", n-3)
		}
		v.find("I7", object, "%v; named by %s", d.err, names)
	}
}
