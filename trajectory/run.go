package trajectory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// Run is what the store says of a run: its mirrored log, and through it the
// shards. It needs no coordinator. It is not safe for concurrent use.
type Run struct {
	ID         string
	SpecDigest policy.Digest
	Spec       []byte // as submitted
	Config     *raftlog.RunConfig
	CreatedAt  time.Time // log time
	EndedAt    time.Time // log time; zero while it has not ended
	State      string    // succeeded, failed or cancelled; empty while it has not ended
	Reason     string
	Counters   *raftlog.Counters // as the state machine counted; nil while the run has not ended

	Groups      []*Group // by id
	Versions    []*PolicyVersion
	Steps       []*TrainStep // of the surviving lineage, by number
	Evals       []*raftlog.EvalDone
	Quarantined []*raftlog.TaskQuarantined

	LastEvent uint64 // of the gapless prefix
	Gap       string // why the prefix ends before the last object; empty when it does not

	rows      *rows
	groups    map[uint64]*Group
	undone    []*TrainStep // by rollbacks
	anomalies []Finding    // what the log itself has wrong
}

// Group is a group of the run with the attempts of its members.
type Group struct {
	*raftlog.GroupAdmitted
	AdmittedAt time.Time
	Attempts   []*Attempt            // that the log names, by index and attempt
	End        *raftlog.GroupEnded   // nil while it has not ended
	ends       []*raftlog.GroupEnded // more than one is a fault
	byKey      map[[2]int32]*Attempt
	superseded bool // it evaluated a version that a rollback gave up
}

// Attempt is one attempt of a member. Nil parts have not happened.
type Attempt struct {
	ID      string // EpisodeID
	Group   *Group
	Index   int32
	Attempt int32

	Sealed    *raftlog.Sealed
	SealedAt  time.Time
	Settled   *raftlog.EpisodeSettled
	SettledAt time.Time
	Lost      *raftlog.AttemptLost

	sealedSeq uint64
}

// PolicyVersion is a version of the policy.
type PolicyVersion struct {
	Version     policy.Version
	Lineage     int64
	Manifest    policy.Digest
	CommittedAt time.Time
	LiveAt      time.Time // zero when it never went live
	State       string    // committed, live, rejected or superseded: the last word
	Reason      string

	committedSeq uint64
}

// TrainStep is a committed step.
type TrainStep struct {
	*raftlog.StepCommitted
	CommittedAt time.Time
}

// OpenRun reads the mirrored log of a run: its longest gapless prefix. It
// returns store.ErrNotFound when the store has nothing of the run.
func OpenRun(ctx context.Context, s store.ObjectStore, run string) (*Run, error) {
	c, err := readChain(ctx, s, run)
	if err != nil {
		return nil, err
	}
	r := &Run{ID: run, Gap: c.gap, groups: map[uint64]*Group{}, rows: newRows(s, run)}
	for _, e := range c.events {
		r.apply(e)
	}
	if r.Config == nil {
		return nil, fmt.Errorf("trajectory: run %q: its mirrored log does not start with its creation%s: %w", run, suffix(c.gap), ErrCorrupt)
	}
	if c.gap != "" {
		r.fault("I7", "manifest", "%s; %d objects from there on are not read", c.gap, c.beyond)
	}
	for _, g := range r.Groups {
		slices.SortFunc(g.Attempts, func(a, b *Attempt) int {
			if a.Index != b.Index {
				return int(a.Index - b.Index)
			}
			return int(a.Attempt - b.Attempt)
		})
	}
	return r, nil
}

func suffix(gap string) string {
	if gap == "" {
		return ""
	}
	return " (" + gap + ")"
}

// Ended reports whether the run is in a terminal state.
func (r *Run) Ended() bool { return r.State != "" }

// Group returns a group, or nil.
func (r *Run) Group(id uint64) *Group { return r.groups[id] }

// Attempts returns all attempts that the log names, by group, index and attempt.
func (r *Run) Attempts() []*Attempt {
	var out []*Attempt
	for _, g := range r.Groups {
		out = append(out, g.Attempts...)
	}
	return out
}

// Find returns the attempt with an episode id, or nil.
func (r *Run) Find(episode string) *Attempt {
	for _, g := range r.Groups {
		for _, a := range g.Attempts {
			if a.ID == episode {
				return a
			}
		}
	}
	return nil
}

// Members returns the attempts that settled, by index: what the group was judged by.
func (g *Group) Members() []*Attempt {
	var out []*Attempt
	for _, a := range g.Attempts {
		if a.Settled != nil {
			out = append(out, a)
		}
	}
	return out
}

// EpisodeRow returns the attempt's row of the episodes table.
func (r *Run) EpisodeRow(ctx context.Context, a *Attempt) (Episode, error) {
	return r.rows.episode(ctx, a)
}

// StepRows returns the attempt's messages.
func (r *Run) StepRows(ctx context.Context, a *Attempt) ([]Step, error) {
	return r.rows.steps(ctx, a)
}

// VerdictRow returns the row of the verdict that settled the attempt; ok is false when it settled without one.
func (r *Run) VerdictRow(ctx context.Context, a *Attempt) (row Verdict, ok bool, err error) {
	return r.rows.verdict(ctx, a)
}

// LedgerRows returns what a step did with what it was offered.
func (r *Run) LedgerRows(ctx context.Context, s *TrainStep) ([]LedgerRow, error) {
	return r.rows.ledger(ctx, policy.Digest(s.Ledger))
}
