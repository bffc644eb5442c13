package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
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

// colours gives each policy version of an episode a colour of its own.
type colours struct {
	versions []policy.Version
	class    map[policy.Version]string
}

func newColours(steps []trajectory.Step) colours {
	c := colours{class: map[policy.Version]string{}}
	for i := range steps {
		for _, s := range steps[i].PolicySpans {
			if _, known := c.class[s.PolicyVersion]; !known {
				c.class[s.PolicyVersion] = []string{"v1", "v2", "v3", "v4"}[len(c.versions)%4]
				c.versions = append(c.versions, s.PolicyVersion)
			}
		}
	}
	return c
}

func (c colours) legend() (out []key) {
	for _, v := range c.versions {
		out = append(out, key{"token", c.class[v], fmt.Sprintf("version %d", v)})
	}
	return out
}

func showMessage(s *trajectory.Step, c colours, words vocabulary) message {
	m := message{Role: string(s.Role), Class: string(s.Role)}
	if s.Content != nil {
		m.Text = *s.Content
	}
	if s.Branch > 0 {
		m.Note = fmt.Sprintf("branch %d", s.Branch)
	}
	if s.Sampled {
		m.Tokens = showTokens(s, c, words)
		m.Note = strings.TrimSpace(m.Note + " " + wordsOf(s.FinishReason))
		if d := s.Time.Queue + s.Time.Prefill + s.Time.Decode; d > 0 {
			m.Note += ", " + duration(d)
		}
	}
	for _, call := range s.ToolCalls {
		m.Calls = append(m.Calls, call.Name+" "+arguments(call))
		if !call.ValidJSON {
			m.Badges = append(m.Badges, "arguments do not parse")
		}
	}
	if t := s.ToolResult; t != nil {
		m.Role = t.Name
		m.Note = fmt.Sprintf("%s, %s", wordsOf(t.Status), duration(t.Duration))
		if t.ExitCode != nil {
			m.Note += fmt.Sprintf(", exit %d", *t.ExitCode)
		}
		if t.Truncated {
			m.Badges = append(m.Badges, fmt.Sprintf("cut to %s of %s bytes", grouped(t.BytesKept), grouped(t.BytesTotal)))
		}
		if m.Text == "" {
			m.Badges = append(m.Badges, "no output")
		}
	}
	return m
}

// arguments shows a call with one text argument as that text, others as they were written.
func arguments(c trajectory.ToolCall) string {
	var one map[string]string
	if json.Unmarshal([]byte(c.Arguments), &one) == nil && len(one) == 1 {
		for _, v := range one {
			return v
		}
	}
	return c.Arguments
}

// showTokens pairs the sampled tokens with their log-probabilities and versions.
func showTokens(s *trajectory.Step, c colours, words vocabulary) []token {
	var out []token
	n, span := int32(0), 0
	for i, id := range s.TokenIDs {
		t := token{Text: words.text(id)}
		if !s.LossMask[i] {
			t.Title = fmt.Sprintf("token %d, not sampled", id)
			out = append(out, t)
			continue
		}
		for span < len(s.PolicySpans) && n >= s.PolicySpans[span].Start+s.PolicySpans[span].Length {
			span++
		}
		t.Class = "v1"
		version := ""
		if span < len(s.PolicySpans) {
			v := s.PolicySpans[span].PolicyVersion
			t.Class, version = c.class[v], fmt.Sprintf(", version %d", v)
		}
		lp := float64(s.Logprobs[n])
		t.Title = fmt.Sprintf("token %d%s\nlog-probability %.3f (%.1f\u00a0%%)", id, version, lp, 100*math.Exp(lp))
		switch p := math.Exp(lp); {
		case p < 0.1:
			t.Doubt = "d3"
		case p < 0.5:
			t.Doubt = "d2"
		case p < 0.9:
			t.Doubt = "d1"
		}
		out = append(out, t)
		n++
	}
	return out
}

func showVerdict(v *trajectory.Verdict) *judgement {
	j := &judgement{Verdict: wordsOf(v.Verdict), Class: verdictClass(string(v.Verdict)), Reason: wordsOf(v.Reason), Reward: "no reward"}
	if v.Reward != nil {
		j.Reward = "reward " + number(*v.Reward)
	}
	j.Facts = append(j.Facts, fmt.Sprintf("%s, try %d, %s", v.VerifierID, v.Attempt, duration(v.Duration)))
	if v.ExitCode != nil {
		j.Facts = append(j.Facts, fmt.Sprintf("exit %d", *v.ExitCode))
	}
	if v.Disposition != "" {
		j.Facts = append(j.Facts, "disposition "+wordsOf(v.Disposition))
	}
	if v.Reruns > 0 {
		j.Facts = append(j.Facts, fmt.Sprintf("%d of %d reruns agree", v.Agreeing, v.Reruns))
	}
	j.Facts = append(j.Facts, "tests "+short(string(v.VerifierDigest)))
	for _, c := range v.RewardComponents {
		value := "null"
		if c.Value != nil {
			value = number(*c.Value)
		}
		j.Checks = append(j.Checks, fmt.Sprintf("%s = %s × %s", c.Name, value, number(c.Weight)))
	}
	for _, c := range v.Checks {
		text := fmt.Sprintf("%s: %s", c.Name, c.Status)
		if c.Message != nil && *c.Message != "" {
			text += ": " + *c.Message
		}
		j.Checks = append(j.Checks, text)
	}
	for _, e := range v.Evidence {
		text := fmt.Sprintf("%s bytes, %s", grouped(e.Bytes), short(string(e.SHA256)))
		if e.Excerpt != nil {
			text = *e.Excerpt
		}
		j.Evidence = append(j.Evidence, evidence{wordsOf(e.Kind), text})
	}
	return j
}

// blob is the kind of a policy's stored objects, its manifest and its files.
const blob = "blob"

// vocabulary are the words of a policy's tokenizer. Without one, tokens are shown by their numbers.
type vocabulary map[int32]string

// loadVocabulary reads the tokenizer.json of version 0; any failure leaves the numbers.
func loadVocabulary(ctx context.Context, s store.ObjectStore, r *trajectory.Run) vocabulary {
	if len(r.Versions) == 0 {
		return nil
	}
	raw, err := store.GetObject(ctx, s, r.ID, r.Versions[0].Manifest, blob)
	if err != nil {
		return nil
	}
	m, err := policy.ParseManifest(raw)
	if err != nil {
		return nil
	}
	for _, file := range m.Files {
		if file.Path != "tokenizer.json" {
			continue
		}
		data, err := store.GetObject(ctx, s, r.ID, file.Digest, blob)
		if err != nil {
			return nil
		}
		v, err := parseVocabulary(data)
		if err != nil {
			return nil
		}
		return v
	}
	return nil
}

var errVocabulary = errors.New("report: tokenizer.json has no vocabulary")

// parseVocabulary takes the words out of a tokenizer.json of Hugging Face's tokenizers.
func parseVocabulary(data []byte) (vocabulary, error) {
	var t struct {
		Model struct {
			Vocab map[string]int32 `json:"vocab"`
		} `json:"model"`
		Added []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("report: tokenizer.json: %w", err)
	}
	v := vocabulary{}
	for word, id := range t.Model.Vocab {
		// Byte-level tokenizers write a space and a line's end as letters that can be seen.
		v[id] = strings.NewReplacer("Ġ", " ", "▁", " ", "Ċ", "⏎").Replace(word)
	}
	for _, a := range t.Added {
		v[a.ID] = a.Content
	}
	if len(v) == 0 {
		return nil, errVocabulary
	}
	return v, nil
}

func (v vocabulary) text(id int32) string {
	if w, ok := v[id]; ok {
		return w
	}
	return fmt.Sprintf("#%d", id)
}
