package trajectory

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// apply takes up one event. What can't be is remembered for Verify and left out.
func (r *Run) apply(e *raftlog.Event) {
	at := time.Unix(0, e.AtNs).UTC()
	r.LastEvent = e.Seq
	if r.Config == nil && e.GetRunCreated() == nil {
		return // OpenRun refuses a log without its beginning
	}
	if r.Ended() {
		r.fault("I7", fmt.Sprintf("event %d", e.Seq), "comes after the end of the run")
	}
	switch {
	case e.GetRunCreated() != nil:
		c := e.GetRunCreated()
		r.SpecDigest, r.Spec, r.Config, r.CreatedAt = policy.Digest(c.SpecDigest), c.Spec, c.Config, at
		r.Versions = append(r.Versions, &PolicyVersion{Lineage: 1, Manifest: policy.Digest(c.Manifest), CommittedAt: at, State: "committed", committedSeq: e.Seq})
	case e.GetGroupAdmitted() != nil:
		g := &Group{GroupAdmitted: e.GetGroupAdmitted(), AdmittedAt: at, byKey: map[[2]int32]*Attempt{}}
		if r.groups[g.Group] != nil {
			r.fault("I4", GroupID(r.ID, g.Group), "was admitted twice")
			return
		}
		r.groups[g.Group] = g
		r.Groups = append(r.Groups, g)
	case e.GetStepCommitted() != nil:
		r.commit(e.GetStepCommitted(), e.Seq, at)
	case e.GetRolledBack() != nil:
		r.rollBack(e.GetRolledBack())
	case e.GetVersionChanged() != nil:
		r.versionChanged(e.GetVersionChanged(), at)
	case e.GetEvalDone() != nil:
		r.Evals = append(r.Evals, e.GetEvalDone())
	case e.GetRunEnded() != nil:
		r.State, r.Reason, r.Counters, r.EndedAt = e.GetRunEnded().State, e.GetRunEnded().Reason, e.GetRunEnded().Counters, at
	case e.GetQuarantined() != nil:
		r.Quarantined = append(r.Quarantined, e.GetQuarantined())
	default:
		r.applyEpisode(e, at)
	}
}

func (r *Run) applyEpisode(e *raftlog.Event, at time.Time) {
	switch {
	case e.GetSealed() != nil:
		s := e.GetSealed()
		a := r.attempt(s.Group, s.Index, s.Attempt)
		if a == nil {
			return
		}
		if a.Sealed != nil {
			r.fault("I4", a.ID, "was sealed twice")
			return
		}
		a.Sealed, a.SealedAt, a.sealedSeq = s.Sealed, at, e.Seq
	case e.GetSettled() != nil:
		s := e.GetSettled()
		a := r.attempt(s.Group, s.Index, s.Attempt)
		if a == nil {
			return
		}
		if a.Settled != nil {
			r.fault("I4", a.ID, "was settled twice")
			return
		}
		a.Settled, a.SettledAt = s, at
	case e.GetAttemptLost() != nil:
		l := e.GetAttemptLost()
		if a := r.attempt(l.Group, l.Index, l.Attempt); a != nil {
			a.Lost = l
		}
	case e.GetGroupEnded() != nil:
		end := e.GetGroupEnded()
		g := r.groups[end.Group]
		if g == nil {
			r.fault("I3", GroupID(r.ID, end.Group), "ended but was never admitted")
			return
		}
		g.ends = append(g.ends, end)
		if g.End == nil {
			g.End = end
		}
	}
}

// attempt returns the attempt that an event names, making it on first sight.
func (r *Run) attempt(group uint64, index, attempt int32) *Attempt {
	g := r.groups[group]
	if g == nil {
		r.fault("I3", EpisodeID(r.ID, group, index, attempt), "belongs to a group that was never admitted")
		return nil
	}
	k := [2]int32{index, attempt}
	a := g.byKey[k]
	if a == nil {
		a = &Attempt{ID: EpisodeID(r.ID, group, index, attempt), Group: g, Index: index, Attempt: attempt}
		g.byKey[k] = a
		g.Attempts = append(g.Attempts, a)
	}
	return a
}

// commit adds a step and the version it makes. A commit under a higher lineage
// comes after a rollback: it supersedes what was committed from its number on.
func (r *Run) commit(c *raftlog.StepCommitted, seq uint64, at time.Time) {
	where := fmt.Sprintf("step %d", c.Step)
	for len(r.Steps) > 0 {
		last := r.Steps[len(r.Steps)-1]
		if last.Step < c.Step || last.Lineage >= c.Lineage {
			break
		}
		r.Steps = r.Steps[:len(r.Steps)-1]
	}
	if want := int64(len(r.Steps)); c.Step != want {
		r.fault("I4", where, "was committed when step %d was next", want)
		if c.Step < want {
			return
		}
	}
	r.Steps = append(r.Steps, &TrainStep{StepCommitted: c, CommittedAt: at})
	for _, v := range r.Versions {
		if v.Version > policy.Version(c.Step) && v.Lineage < c.Lineage {
			v.State = "superseded"
		}
	}
	r.Versions = append(r.Versions, &PolicyVersion{
		Version: policy.Version(c.Step + 1), Lineage: c.Lineage, Manifest: policy.Digest(c.Manifest),
		CommittedAt: at, State: "committed", committedSeq: seq,
	})
}

// rollBack undoes the steps from the version that is gone back to: their groups
// have not ended, and what was measured of later versions says nothing of those
// that take their numbers.
func (r *Run) rollBack(b *raftlog.RolledBack) {
	for len(r.Steps) > 0 && r.Steps[len(r.Steps)-1].Step >= b.To {
		last := r.Steps[len(r.Steps)-1]
		r.Steps, r.undone = r.Steps[:len(r.Steps)-1], append(r.undone, last)
		for _, id := range last.Groups {
			if g := r.groups[id]; g != nil && g.End.GetOutcome() == "consumed" {
				g.End, g.ends = nil, nil
			}
		}
	}
	for _, v := range r.Versions {
		if v.Version > policy.Version(b.To) && v.Lineage < b.Lineage {
			v.State, v.Reason = "superseded", b.Reason
		}
	}
	for _, g := range r.Groups {
		g.superseded = g.superseded || (g.Suite != "" && g.Pin > b.To)
	}
	r.Evals = slices.DeleteFunc(r.Evals, func(e *raftlog.EvalDone) bool { return e.Version > b.To })
}

func (r *Run) versionChanged(c *raftlog.VersionChanged, at time.Time) {
	for i := len(r.Versions) - 1; i >= 0; i-- {
		if v := r.Versions[i]; v.Version == policy.Version(c.Version) {
			v.State, v.Reason = c.State, c.Reason
			if c.State == "live" {
				v.LiveAt = at
			}
			return
		}
	}
	r.fault("I7", fmt.Sprintf("version %d", c.Version), "became %s but was never committed", c.State)
}

func (r *Run) fault(invariant, where, format string, args ...any) {
	r.anomalies = append(r.anomalies, Finding{Invariant: invariant, Where: where, What: fmt.Sprintf(format, args...)})
}
