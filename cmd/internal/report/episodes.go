package report

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// episode is one sampled episode as the page shows it.
type episode struct {
	Why      string // it was chosen
	ID       string
	Verdict  string // and its colour's class
	Facts    []string
	Versions []key // legend of the token colours
	Messages []message
	Verdicts *judgement
	Broken   string // why it cannot be shown
}

// message is one row of a conversation.
type message struct {
	Role, Class string
	Note        string
	Tokens      []token // sampled messages
	Text        string  // others
	Calls       []string
	Badges      []string
}

// token is one sampled or scaffold token.
type token struct {
	Text  string
	Class string // version's colour; empty for scaffold
	Doubt string // class of the underline: the less likely the token was, the thicker
	Title string
}

// judgement is the verdict with what it rests on.
type judgement struct {
	Verdict, Class, Reason, Reward string
	Facts                          []string
	Checks                         []string
	Evidence                       []evidence
}

type evidence struct{ Kind, Text string }

// choice is an attempt with the reason for showing it.
type choice struct {
	why string
	a   *trajectory.Attempt
}

// choose draws three attempts, always the same ones for a seed: an early
// failure, a late success, and one in which something happened.
func (f *facts) choose() []choice {
	last := max(f.newest-1, 0) // nothing was trained from the newest version
	var early, late, straddle, limit, odd []*trajectory.Attempt
	for _, g := range f.run.Groups {
		if g.Suite != "" {
			continue
		}
		for _, a := range g.Attempts {
			if a.Sealed == nil || a.Sealed.MinVersion < 0 {
				continue
			}
			class, _ := outcome.Class(outcome.EndReason(endReason(a)))
			switch {
			case a.Settled == nil || a.Settled.Reward == nil:
				odd = append(odd, a)
				continue
			case a.Sealed.MaxVersion > a.Sealed.MinVersion:
				straddle = append(straddle, a)
			case class == outcome.ClassLimit:
				limit = append(limit, a)
			}
			if a.Settled.Verdict == string(outcome.Fail) && 3*a.Sealed.MinVersion <= last {
				early = append(early, a)
			}
			if a.Settled.Verdict == string(outcome.Pass) && 3*a.Sealed.MinVersion >= 2*last {
				late = append(late, a)
			}
		}
	}
	var out []choice
	draw := func(why string, stream uint64, from []*trajectory.Attempt) bool {
		r := rand.New(rand.NewPCG(uint64(f.run.Config.Seed), stream))
		for range 8 { // another one when it is shown already
			if len(from) == 0 {
				return false
			}
			a := from[r.IntN(len(from))]
			taken := false
			for _, c := range out {
				taken = taken || c.a == a
			}
			if !taken {
				out = append(out, choice{why, a})
				return true
			}
		}
		return false
	}
	draw("An early failure", 1, early)
	draw("A late success", 2, late)
	_ = draw("Across a switch of versions", 3, straddle) ||
		draw("Stopped by a limit", 4, limit) ||
		draw("Without a reward", 5, odd)
	return out
}

// episodes reads what was chosen. A part that cannot be read is said on the page.
func (f *facts) episodes(ctx context.Context, s store.ObjectStore) ([]episode, error) {
	words := loadVocabulary(ctx, s, f.run)
	var out []episode
	for _, c := range f.choose() {
		e, err := f.show(ctx, c, words)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			e.Broken = err.Error()
		}
		out = append(out, e)
	}
	return out, nil
}

func (f *facts) show(ctx context.Context, c choice, words vocabulary) (episode, error) {
	a := c.a
	e := episode{Why: c.why, ID: a.ID, Verdict: "unknown"}
	if a.Settled != nil {
		e.Verdict = verdictClass(a.Settled.Verdict)
	}
	e.Facts = append(e.Facts, "task "+a.Group.Task.GetId(), fmt.Sprintf("group %d, member %d of %d", a.Group.Group, a.Index+1, a.Group.Size))
	row, err := f.run.EpisodeRow(ctx, a)
	if err != nil {
		return e, err
	}
	steps, err := f.run.StepRows(ctx, a)
	if err != nil {
		return e, err
	}
	e.Facts = append(e.Facts,
		fmt.Sprintf("ended: %s (%s)", wordsOf(row.EndReason), row.EndClass),
		fmt.Sprintf("%d turns, %d tokens sampled of %d", row.NTurns, row.NSampledTokens, row.NSampledTokens+row.NPromptTokens),
		fmt.Sprintf("model %s, tools %s", duration(row.Time.Model), duration(row.Time.Tool)))
	if fate, err := f.fate(ctx, a); err != nil {
		e.Facts = append(e.Facts, err.Error())
	} else if fate != "" {
		e.Facts = append(e.Facts, fate)
	}
	colours := newColours(steps)
	e.Versions = colours.legend()
	for i := range steps {
		e.Messages = append(e.Messages, showMessage(&steps[i], colours, words))
	}
	v, ok, err := f.run.VerdictRow(ctx, a)
	if err != nil {
		return e, err
	}
	if ok {
		e.Verdicts = showVerdict(&v)
	}
	return e, nil
}

// fate says what a step did with the episode.
func (f *facts) fate(ctx context.Context, a *trajectory.Attempt) (string, error) {
	step, consumed := f.steps[a.Group.Group]
	if !consumed {
		return "", nil
	}
	rows, err := f.run.LedgerRows(ctx, f.run.Steps[step])
	if err != nil {
		return "", err
	}
	for _, r := range rows {
		if r.EpisodeID != a.ID {
			continue
		}
		s := fmt.Sprintf("step %d: %s", step, wordsOf(r.Outcome))
		if r.AdvantageScalar != nil {
			s += fmt.Sprintf(", advantage %+.2f", *r.AdvantageScalar)
		}
		return s + fmt.Sprintf(", lag %d", r.StalenessMax), nil
	}
	return fmt.Sprintf("step %d: not in the loss", step), nil
}

func wordsOf[S ~string](s S) string { return words(string(s)) }

func verdictClass(v string) string {
	switch outcome.Verdict(v) {
	case outcome.Pass:
		return "pass"
	case outcome.Fail:
		return "fail"
	default:
		return "unknown"
	}
}
