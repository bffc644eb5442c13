package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/trajectory"
)

func trajShow() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use:   "show RUN EPISODE",
		Short: "Show one episode: its messages, who sampled them, and how it was judged.",
		Long:  "Show one episode. EPISODE is an id as `traj ls` prints it, or GROUP/INDEX for the attempt of that member that settled, or GROUP/INDEX/ATTEMPT.",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := at.record(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := findEpisode(r, args[1])
			if err != nil {
				return err
			}
			e, err := readEpisode(cmd.Context(), r, a)
			if err != nil {
				return err
			}
			if at.output == "json" {
				return e.json(cmd.OutOrStdout())
			}
			return e.print(cmd.OutOrStdout())
		},
	}
	at.add(c)
	return c
}

// shown is an attempt with its rows; nil parts were not recorded.
type shown struct {
	attempt *trajectory.Attempt
	row     *trajectory.Episode
	steps   []trajectory.Step
	verdict *trajectory.Verdict
}

func readEpisode(ctx context.Context, r *trajectory.Run, a *trajectory.Attempt) (*shown, error) {
	e := &shown{attempt: a}
	if a.Sealed != nil {
		row, err := r.EpisodeRow(ctx, a)
		if err != nil {
			return nil, err
		}
		e.row = &row
		if e.steps, err = r.StepRows(ctx, a); err != nil {
			return nil, err
		}
	}
	if a.Settled != nil {
		v, ok, err := r.VerdictRow(ctx, a)
		if err != nil {
			return nil, err
		}
		if ok {
			e.verdict = &v
		}
	}
	return e, nil
}

func (e *shown) json(w io.Writer) error {
	out := trajFull{trajRow: trajRowOf(e.attempt), Steps: []json.RawMessage{}}
	if !e.attempt.SealedAt.IsZero() {
		out.SealedAt = &e.attempt.SealedAt
	}
	if !e.attempt.SettledAt.IsZero() {
		out.SettledAt = &e.attempt.SettledAt
	}
	var err error
	if e.row != nil {
		if out.Row, err = trajectory.RowJSON(*e.row); err != nil {
			return err
		}
	}
	for _, s := range e.steps {
		raw, err := trajectory.RowJSON(s)
		if err != nil {
			return err
		}
		out.Steps = append(out.Steps, raw)
	}
	if e.verdict != nil {
		if out.Verdict, err = trajectory.RowJSON(*e.verdict); err != nil {
			return err
		}
	}
	return printJSON(w, out)
}

func (e *shown) print(w io.Writer) error {
	x := trajRowOf(e.attempt)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  task %s  %s\n", x.Episode, dash(x.Task), x.State)
	if e.row != nil {
		fmt.Fprintf(&b, "policy version %s, %d turns, %d sampled of %d tokens, ended %s, on %s in %s\n",
			x.versions(), e.row.NTurns, e.row.NSampledTokens, e.row.NSampledTokens+e.row.NPromptTokens, x.End, e.row.WorkerID, took(e.row))
	}
	if x.State == "lost" {
		fmt.Fprintf(&b, "lost: %s\n", x.End)
	}
	for i := range e.steps {
		printStep(&b, &e.steps[i])
	}
	e.printVerdict(&b, x)
	_, err := io.WriteString(w, b.String())
	return err
}

func took(r *trajectory.Episode) string {
	if r.StartedAt == nil || r.FinishedAt == nil {
		return "an unknown time"
	}
	return r.FinishedAt.Sub(*r.StartedAt).Round(time.Millisecond).String()
}

// printStep writes one message: who, how many tokens by which version and how likely, then its text.
func printStep(b *strings.Builder, s *trajectory.Step) {
	fmt.Fprintf(b, "\n[%d] %s", s.Step, s.Role)
	if s.Branch > 0 {
		fmt.Fprintf(b, " (branch %d)", s.Branch)
	}
	if n := s.SampledTokens(); n > 0 {
		var sum float64
		for _, lp := range s.Logprobs {
			sum += float64(lp)
		}
		var by []string
		for _, p := range s.PolicySpans {
			by = append(by, fmt.Sprintf("%d by version %d", p.Length, p.PolicyVersion))
		}
		fmt.Fprintf(b, "  %d tokens (%s), mean logprob %.3f, %s", n, strings.Join(by, ", "), sum/float64(n), s.FinishReason)
	}
	if t := s.ToolResult; t != nil {
		fmt.Fprintf(b, "  %s: %s", t.Name, t.Status)
		if t.ExitCode != nil {
			fmt.Fprintf(b, ", exit %d", *t.ExitCode)
		}
		fmt.Fprintf(b, ", %s", t.Duration.Round(time.Microsecond))
		if t.Truncated {
			fmt.Fprintf(b, ", %d of %d bytes shown (%s)", t.BytesKept, t.BytesTotal, t.Truncation)
		}
	}
	b.WriteByte('\n')
	if s.Content != nil {
		for line := range strings.SplitSeq(strings.TrimRight(*s.Content, "\n"), "\n") {
			fmt.Fprintf(b, "    %s\n", printable(line))
		}
	}
	for _, c := range s.ToolCalls {
		fmt.Fprintf(b, "    → %s %s\n", c.Name, printable(c.Arguments))
	}
}

// printable keeps what an environment printed from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && (r < ' ' || (r >= 0x7f && r < 0xa0)) {
			return '\uFFFD'
		}
		return r
	}, s)
}

func (e *shown) printVerdict(b *strings.Builder, x trajRow) {
	if x.State != "settled" {
		return
	}
	fmt.Fprintf(b, "\nverdict %s, reward %s, %s", x.Verdict, reward(x.Reward), x.Disposition)
	if x.GroupEnd != "" {
		fmt.Fprintf(b, "; group %s", x.GroupEnd)
	}
	if x.Step != nil {
		fmt.Fprintf(b, " by step %d", *x.Step)
	}
	b.WriteByte('\n')
	v := e.verdict
	if v == nil {
		return
	}
	fmt.Fprintf(b, "  %s by %s in %s\n", v.Reason, v.VerifierID, v.Duration.Round(time.Millisecond))
	for _, c := range v.RewardComponents {
		fmt.Fprintf(b, "  %s: %s × %g\n", c.Name, reward(c.Value), c.Weight)
	}
	for _, c := range v.Checks {
		fmt.Fprintf(b, "  check %s: %s\n", printable(c.Name), c.Status)
	}
	for _, ev := range v.Evidence {
		if ev.Excerpt == nil || strings.TrimSpace(*ev.Excerpt) == "" {
			continue
		}
		fmt.Fprintf(b, "  %s, %d bytes:\n", ev.Kind, ev.Bytes)
		for line := range strings.SplitSeq(strings.TrimRight(*ev.Excerpt, "\n"), "\n") {
			fmt.Fprintf(b, "    %s\n", printable(line))
		}
	}
}
