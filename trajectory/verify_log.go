package trajectory

import (
	"math"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
)

// checkGroups holds the log against I3 (nothing sealed is lost), I4 (exactly once) and I5 (blame).
func (v *verifier) checkGroups() {
	for id, steps := range v.consumers {
		if v.run.Group(id) == nil {
			v.find("I4", GroupID(v.run.ID, id), "is trained by step %d but was never admitted", steps[0])
		}
	}
	for _, g := range v.run.Groups {
		v.checkGroup(g)
		for _, a := range g.Attempts {
			v.checkAttempt(a)
		}
	}
}

func (v *verifier) checkGroup(g *Group) {
	where := GroupID(v.run.ID, g.Group)
	steps := v.consumers[g.Group]
	if len(steps) > 1 {
		v.find("I4", where, "was consumed by steps %v", steps)
	}
	if len(g.ends) > 1 {
		v.find("I4", where, "ended %d times", len(g.ends))
	}
	if g.End == nil {
		switch {
		case len(steps) > 0:
			v.find("I4", where, "is in the batch of step %d but was not consumed", steps[0])
		case v.run.Ended():
			v.find("I3", where, "was neither consumed nor dropped, and the run has ended")
		default:
			v.report.Pending++
		}
		return
	}
	switch g.End.Outcome {
	case "consumed":
		if len(steps) == 0 || !slices.Contains(steps, g.End.Step) {
			v.find("I4", where, "was consumed by step %d, which does not name it", g.End.Step)
		}
		v.checkComplete(g)
	case "evaluated":
		if g.Suite == "" {
			v.find("I3", where, "is a training group and was only evaluated")
		}
		v.checkComplete(g)
	case "dropped":
		if g.End.Reason == "" {
			v.find("I3", where, "was dropped without a reason")
		}
		if len(steps) > 0 {
			v.find("I4", where, "was dropped and is in the batch of step %d", steps[0])
		}
	default:
		v.find("I3", where, "ended as %q", g.End.Outcome)
	}
}

// checkComplete requires that each member of a group has settled, once.
func (v *verifier) checkComplete(g *Group) {
	settled := make([]int, g.Size)
	for _, a := range g.Members() {
		if a.Index < 0 || a.Index >= g.Size {
			v.find("I4", a.ID, "is outside its group of %d", g.Size)
			continue
		}
		settled[a.Index]++
	}
	for i, n := range settled {
		if n != 1 {
			v.find("I4", GroupID(v.run.ID, g.Group), "%s, but %d attempts of member %d have settled", g.End.Outcome, n, i)
		}
	}
}

func (v *verifier) checkAttempt(a *Attempt) {
	if a.Sealed != nil {
		v.report.Episodes++
		v.checkSealed(a)
	}
	s := a.Settled
	if s == nil {
		return
	}
	v.report.Settled++
	verdict := outcome.Verdict(s.Verdict)
	judged := verdict == outcome.Pass || verdict == outcome.Fail
	if judged && a.Sealed == nil {
		v.find("I3", a.ID, "was judged %s but never sealed", s.Verdict)
	}
	if s.Reward != nil {
		v.report.Scored++
		if !judged {
			v.find("I5", a.ID, "has reward %g, but its verdict is %s: no judgement is not a reward", *s.Reward, s.Verdict)
		}
		if math.IsNaN(*s.Reward) || math.IsInf(*s.Reward, 0) {
			v.find("I5", a.ID, "has reward %g", *s.Reward)
		}
		if s.VerdictRow.GetObject() == "" {
			v.find("I5", a.ID, "has reward %g without a verdict row", *s.Reward)
		}
	}
	if outcome.Disposition(s.Disposition).InStatistics() && s.Reward == nil {
		v.find("I5", a.ID, "counts in its group's statistics (%s) without a reward", s.Disposition)
	}
	if int(a.Group.Env) >= len(v.run.Config.Envs) {
		v.find("I5", a.ID, "is of env %d, which the run does not have", a.Group.Env)
		return
	}
	on := map[outcome.EndReason]outcome.Disposition{}
	for reason, d := range v.run.Config.Envs[a.Group.Env].LimitsOn {
		on[outcome.EndReason(reason)] = outcome.Disposition(d)
	}
	end := outcome.EndReason(a.Sealed.GetEndReason())
	if want := outcome.Decide(end, verdict, on); outcome.Disposition(s.Disposition) != want {
		v.find("I5", a.ID, "has disposition %s; end reason %q and verdict %s give %s", s.Disposition, end, s.Verdict, want)
	}
}

// checkSealed requires that a sealed attempt ends: settled, lost with a reason and replaced, or dropped with its group.
func (v *verifier) checkSealed(a *Attempt) {
	ended := a.Group.End != nil
	switch {
	case a.Settled != nil && a.Lost != nil:
		v.find("I4", a.ID, "settled and was lost (%s)", a.Lost.Reason)
	case a.Settled != nil:
	case a.Lost != nil:
		if a.Lost.Reason == "" {
			v.find("I3", a.ID, "was lost without a reason")
		}
		// Its member goes on with another attempt, for which checkComplete asks.
	case ended && a.Group.End.Outcome != "dropped":
		v.find("I3", a.ID, "was sealed and never settled, and its group was %s", a.Group.End.Outcome)
	case !ended && v.run.Ended():
		v.find("I3", a.ID, "was sealed and never settled, and the run has ended")
	}
}

// checkEvals recomputes each evaluation from the members that settled.
func (v *verifier) checkEvals() {
	type key struct {
		suite   string
		version int64
	}
	sum, scored := map[key]float64{}, map[key]int32{}
	for _, g := range v.run.Groups {
		if g.Suite == "" || g.superseded {
			continue
		}
		for _, a := range g.Members() {
			if a.Settled.Reward != nil {
				k := key{g.Suite, g.Pin}
				sum[k] += *a.Settled.Reward
				scored[k]++
			}
		}
	}
	for _, e := range v.run.Evals {
		k := key{e.Suite, e.Version}
		var mean float64
		if scored[k] > 0 {
			mean = sum[k] / float64(scored[k])
		}
		if e.Scored != scored[k] || math.Abs(e.Reward-mean) > 1e-9 {
			v.find("I5", "eval "+e.Suite, "of version %d reports %g over %d, its episodes give %g over %d", e.Version, e.Reward, e.Scored, mean, scored[k])
		}
	}
}
