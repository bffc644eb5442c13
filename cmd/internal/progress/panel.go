package progress

import (
	"fmt"
	"math"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
)

const (
	labelWidth = 12 // columns of the labels, with their indent
	barMin     = 8
	barMax     = 64
	panelMax   = 120 // wider terminals leave the rest empty: long lines are hard to read
)

// palette colours parts of the panel. Only the sixteen colours of the
// terminal's own theme are used: they fit light and dark ones.
type palette struct {
	title, dim, good, bad, warn lipgloss.Style
}

func newPalette(colour bool) palette {
	if !colour {
		return palette{}
	}
	return palette{
		title: lipgloss.NewStyle().Bold(true),
		dim:   lipgloss.NewStyle().Faint(true),
		good:  lipgloss.NewStyle().Foreground(lipgloss.Green),
		bad:   lipgloss.NewStyle().Foreground(lipgloss.Red),
		warn:  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	}
}

// state colours a run's state.
func (p palette) state(s string) string {
	switch s {
	case "succeeded":
		return p.good.Render(s)
	case "failed", "cancelled":
		return p.bad.Render(s)
	case "paused":
		return p.warn.Render(s)
	default:
		return s
	}
}

// panel renders a status as lines of at most width columns, below an empty one.
func (p palette) panel(s Status, width int) []string {
	width = min(width, panelMax)
	stepText := fmt.Sprintf("%d of %d", s.Step, s.Steps)
	if s.Steps > 0 {
		stepText += fmt.Sprintf(" · %d%%", 100*s.Step/s.Steps)
	}
	rewardText := reward2(s.reward()) + " in training"
	verdictText := fmt.Sprintf("pass %s · fail %s · indeterminate %s", grouped(s.Pass), grouped(s.Fail), grouped(s.Indeterminate))
	bar := width - labelWidth - 2 - max(lipgloss.Width(stepText), lipgloss.Width(rewardText), lipgloss.Width(verdictText))
	bar = min(max(bar, barMin), barMax)

	lines := []string{"", p.head(s, width)}
	row := func(label, text string) {
		lines = append(lines, p.dim.Render(fmt.Sprintf("  %-*s", labelWidth-2, label))+text)
	}
	row("step", p.fill(s.Step, s.Steps, bar)+"  "+stepText)
	spark := sparkline(s.Rewards, bar)
	row("reward", p.good.Render(spark)+strings.Repeat(" ", bar-lipgloss.Width(spark))+"  "+rewardText)
	for _, e := range p.evals(s) {
		row(e[0], e[1])
	}
	row("verdicts", p.shares(bar, s.Pass, s.Fail, s.Indeterminate)+"  "+verdictText)
	row("policy", p.policy(s))
	row("rate", p.rate(s))
	for i, text := range p.waits(s, width-labelWidth) {
		row([]string{"waits for", ""}[min(i, 1)], text)
	}
	for i, l := range lines {
		lines[i] = cut(l, width)
	}
	return lines
}

// head is the name on the left and the time on the right.
func (p palette) head(s Status, width int) string {
	left := p.title.Render(s.Run) + "  " + p.state(s.State)
	right := took(s.Elapsed)
	if s.ETA > 0 {
		right += " · " + took(s.ETA) + " left"
	}
	gap := width - lipgloss.Width(left) - lipgloss.Width(right)
	return left + strings.Repeat(" ", max(gap, 2)) + right
}

// fill draws how much is done.
func (p palette) fill(done, of int64, width int) string {
	n := 0
	if of > 0 {
		n = int(min(done, of) * int64(width) / of)
	}
	return p.good.Render(strings.Repeat("━", n)) + p.dim.Render(strings.Repeat("─", width-n))
}

// shares draws the verdicts side by side; a verdict that occurs has at least one column.
func (p palette) shares(width int, pass, fail, indeterminate int64) string {
	counts := []int64{pass, fail, indeterminate}
	styles := []lipgloss.Style{p.good, p.bad, p.dim}
	total := pass + fail + indeterminate
	if total == 0 {
		return p.dim.Render(strings.Repeat("─", width))
	}
	columns := make([]int, len(counts))
	rest, largest := width, 0
	for i, n := range counts {
		columns[i] = int(n * int64(width) / total)
		if n > 0 && columns[i] == 0 {
			columns[i] = 1
		}
		rest -= columns[i]
		if n > counts[largest] {
			largest = i
		}
	}
	columns[largest] += rest
	var b strings.Builder
	for i, glyph := range []string{"█", "▒", "░"} {
		b.WriteString(styles[i].Render(strings.Repeat(glyph, columns[i])))
	}
	return b.String()
}

// evals are one row for each suite: label and text.
func (p palette) evals(s Status) [][2]string {
	names, done := s.suites()
	var rows [][2]string
	for _, name := range names {
		list := done[name]
		first, last, best := list[0], list[len(list)-1], list[0]
		for _, e := range list {
			if e.Reward > best.Reward || math.IsNaN(best.Reward) {
				best = e
			}
		}
		text := fmt.Sprintf("%s at version %d", reward2(first.Reward), first.Version)
		if len(list) > 1 {
			text += fmt.Sprintf(" → %s at %d", p.title.Render(reward2(last.Reward)), last.Version)
		}
		if best.Version != last.Version && best.Version != first.Version {
			text += fmt.Sprintf(" · best %s at %d", reward2(best.Reward), best.Version)
		}
		rows = append(rows, [2]string{cut(name, labelWidth-3), text})
	}
	for _, e := range s.Evals {
		if !e.Done {
			text := fmt.Sprintf("version %d: %d of %d episodes", e.Version, e.Episodes, e.Planned)
			rows = append(rows, [2]string{"evaluating", text})
			break
		}
	}
	if len(rows) == 0 {
		rows = append(rows, [2]string{"eval", p.dim.Render("-")})
	}
	return rows
}

func (p palette) policy(s Status) string {
	live := "none live yet"
	if s.Live >= 0 {
		live = fmt.Sprintf("live %d", s.Live)
	}
	lag := fmt.Sprintf("lag %s mean, %d max · in the whole run %d of %d", short(s.LagMean), s.LagMax, s.LagRun, s.LagBound)
	if s.LagRun > s.LagBound {
		lag = p.bad.Render(lag)
	}
	return fmt.Sprintf("version %d, %s · %s", s.Head, live, lag)
}

func (p palette) rate(s Status) string {
	boxes := fmt.Sprintf("%d sandboxes", s.Sandboxes)
	if s.SandboxesMax > 0 {
		boxes = fmt.Sprintf("%d of %d sandboxes", s.Sandboxes, s.SandboxesMax)
	}
	text := fmt.Sprintf("%s episodes/s · %s tokens/s · %s", short(s.EpisodesPerSecond), short(s.TokensPerSecond), boxes)
	if s.Lost > 0 {
		text += " · " + p.warn.Render(fmt.Sprintf("%s repeated", grouped(s.Lost)))
	}
	return text
}

// patience is how long a wait is normal.
const patience = 15 * time.Second

// waits says what the run waits for on one or two lines.
func (p palette) waits(s Status, width int) []string {
	if s.WaitsFor == "" {
		return []string{p.dim.Render("-")}
	}
	style := lipgloss.NewStyle()
	if s.Since > patience {
		style = p.warn
	}
	since := ""
	if s.Since >= time.Second {
		since = " · " + took(s.Since)
	}
	lines := wrap(oneLine(s.WaitsFor)+since, width)
	if len(lines) > 2 {
		lines = []string{lines[0], cut(lines[1]+" "+lines[2], width-lipgloss.Width(since)) + since}
	}
	for i := range lines {
		lines[i] = style.Render(lines[i])
	}
	return lines
}

// wrap breaks a text between words.
func wrap(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		n := len(lines)
		if n > 0 && lipgloss.Width(lines[n-1])+1+lipgloss.Width(word) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
