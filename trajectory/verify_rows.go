package trajectory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// branchFacts is what a ledger must say of a branch, from its messages.
type branchFacts struct {
	tokens, loss int64
	lowest       policy.Version // over the tokens in the loss
	highest      policy.Version
	sum          int64 // of the versions of the tokens in the loss
}

// checkRows reads the rows of every sealed and every judged attempt.
func (v *verifier) checkRows(ctx context.Context) error {
	attempts := v.run.Attempts()
	// Shard by shard, so that each is opened about once.
	slices.SortStableFunc(attempts, func(a, b *Attempt) int {
		return strings.Compare(a.Sealed.GetSteps().GetObject(), b.Sealed.GetSteps().GetObject())
	})
	for _, a := range attempts {
		if a.Sealed == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		v.checkSteps(ctx, a)
	}
	slices.SortStableFunc(attempts, func(a, b *Attempt) int {
		return strings.Compare(a.Settled.GetVerdictRow().GetObject(), b.Settled.GetVerdictRow().GetObject())
	})
	for _, a := range attempts {
		if a.Settled != nil {
			v.checkVerdict(ctx, a)
		}
	}
	return ctx.Err()
}

// opened reports whether rows could be read, and notes the object otherwise.
func (v *verifier) opened(kind Table, object, where string, err error) bool {
	if err == nil {
		if d := policy.Digest(object); d != "" {
			if _, again := v.seen[d]; !again {
				v.seen[d] = struct{}{}
				v.report.Shards++
			}
		}
		return true
	}
	if errors.Is(err, store.ErrNotFound) {
		err = errors.New("the shard is not in the store")
	}
	v.unreadable(fmt.Sprintf("%s %s", kind, object), where, err)
	return false
}

func (v *verifier) checkSteps(ctx context.Context, a *Attempt) {
	ref := a.Sealed.Steps.GetObject()
	steps, err := v.run.StepRows(ctx, a)
	if !v.opened(Steps, ref, a.ID, err) {
		return
	}
	if len(steps) == 0 || steps[0].EpisodeID != a.ID {
		v.find("I7", a.ID, "the log names rows of steps %s that are not its own", ref)
		return
	}
	if err := CheckSteps(steps); err != nil {
		v.find("I9", a.ID, "%v", err)
		return
	}
	for i := range steps {
		f := fault{table: Steps, episode: a.ID, step: int32(i)}
		checkColumns(&steps[i], &f)
		if f.err != nil {
			v.find("I9", a.ID, "%v", f.err)
		}
	}
	v.checkSpans(a, steps)
	v.checkEpisodeRow(ctx, a, steps)
	for _, b := range Branches(steps) {
		v.facts[a.ID] = append(v.facts[a.ID], factsOf(b, steps))
	}
}

// checkSpans requires that every token was made by a version that had been committed before, and not by a rejected one.
func (v *verifier) checkSpans(a *Attempt, steps []Step) {
	told := map[policy.Version]bool{}
	for i := range steps {
		v.report.Tokens += int64(steps[i].SampledTokens())
		for _, s := range steps[i].PolicySpans {
			p := v.made(s.PolicyVersion, a.sealedSeq)
			var why string
			switch {
			case p == nil:
				why = "was never committed"
			case p.committedSeq > a.sealedSeq:
				why = "was committed only after the episode was sealed"
			case p.State == "rejected" && a.Group.Suite == "":
				why = "was rejected: " + p.Reason
			case a.Group.Suite != "" && int64(s.PolicyVersion) != a.Group.Pin:
				why = fmt.Sprintf("is not the one the evaluation is of (%d)", a.Group.Pin)
			}
			if why != "" && !told[s.PolicyVersion] {
				told[s.PolicyVersion] = true
				v.find("I9", a.ID, "step %d has tokens of version %d, which %s", i, s.PolicyVersion, why)
			}
		}
	}
}

// made returns the version of a number that engines can have served before an
// event, else the first of that number: a rollback makes some anew.
func (v *verifier) made(number policy.Version, before uint64) *PolicyVersion {
	var found *PolicyVersion
	for _, p := range v.versions[number] {
		if found == nil || p.committedSeq <= before {
			found = p
		}
	}
	return found
}

// checkEpisodeRow holds the seal and the episodes row against the messages.
func (v *verifier) checkEpisodeRow(ctx context.Context, a *Attempt, steps []Step) {
	row, err := v.run.EpisodeRow(ctx, a)
	if !v.opened(Episodes, a.Sealed.Episode.GetObject(), a.ID, err) {
		return
	}
	if row.EpisodeID != a.ID {
		v.find("I7", a.ID, "the log names the episodes row of %s", row.EpisodeID)
		return
	}
	if err := checkRow(&row); err != nil {
		v.find("I9", a.ID, "%v", err)
	}
	want := row
	Count(&want, steps)
	if row.NSteps != want.NSteps || row.NTurns != want.NTurns || row.NBranches != want.NBranches || row.NToolCalls != want.NToolCalls ||
		row.NSampledTokens != want.NSampledTokens || row.NPromptTokens != want.NPromptTokens {
		v.find("I9", a.ID, "its row counts %d steps, %d turns, %d sampled of %d tokens; its messages have %d, %d, %d of %d",
			row.NSteps, row.NTurns, row.NSampledTokens, row.NSampledTokens+row.NPromptTokens,
			want.NSteps, want.NTurns, want.NSampledTokens, want.NSampledTokens+want.NPromptTokens)
	}
	if row.StepsRef != refOf(a.Sealed.Steps) {
		v.find("I7", a.ID, "its row names other rows of steps than the log")
	}
	s := a.Sealed
	if string(row.EndReason) != s.EndReason {
		v.find("I5", a.ID, "its row ended with %q, the log says %q", row.EndReason, s.EndReason)
	}
	lowest, highest := int64(-1), int64(-1)
	if want.PolicyVersionMin != nil {
		lowest, highest = int64(*want.PolicyVersionMin), int64(*want.PolicyVersionMax)
	}
	if s.Tokens != want.NSampledTokens || s.MinVersion != lowest || s.MaxVersion != highest {
		v.find("I2", a.ID, "the log has %d tokens of versions %d to %d, its messages %d of %d to %d", s.Tokens, s.MinVersion, s.MaxVersion, want.NSampledTokens, lowest, highest)
	}
}

// checkVerdict holds a settled reward against its verdict row and that row against its components.
func (v *verifier) checkVerdict(ctx context.Context, a *Attempt) {
	row, ok, err := v.run.VerdictRow(ctx, a)
	if !v.opened(Verdicts, a.Settled.GetVerdictRow().GetObject(), a.ID, err) || !ok {
		return
	}
	s := a.Settled
	if row.EpisodeID != a.ID {
		v.find("I5", a.ID, "the log names the verdict row of %s", row.EpisodeID)
		return
	}
	if err := checkRow(&row); err != nil {
		v.find("I5", a.ID, "%v", err)
	}
	if string(row.Verdict) != s.Verdict {
		v.find("I5", a.ID, "settled as %s, its verdict row says %s", s.Verdict, row.Verdict)
	}
	if !equal(s.Reward, row.Reward) {
		v.find("I5", a.ID, "settled with reward %s, its verdict row says %s", number(s.Reward), number(row.Reward))
	}
	if row.Disposition != "" && string(row.Disposition) != s.Disposition {
		v.find("I5", a.ID, "settled as %s, its verdict row says %s", s.Disposition, row.Disposition)
	}
}

func equal(a, b *float64) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

func number(x *float64) string {
	if x == nil {
		return "null"
	}
	return fmt.Sprintf("%g", *x)
}

func factsOf(b Branch, steps []Step) branchFacts {
	var f branchFacts
	for at, i := range b.Steps {
		f.tokens += int64(len(steps[i].TokenIDs))
		if at < b.Fresh {
			continue
		}
		for _, s := range steps[i].PolicySpans {
			if f.loss == 0 || s.PolicyVersion < f.lowest {
				f.lowest = s.PolicyVersion
			}
			f.highest = max(f.highest, s.PolicyVersion)
			f.loss += int64(s.Length)
			f.sum += int64(s.Length) * int64(s.PolicyVersion)
		}
	}
	return f
}
