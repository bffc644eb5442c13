package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/trajectory"
)

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
		kind, text := wordsOf(e.Kind), fmt.Sprintf("%s bytes, %s", grouped(e.Bytes), short(string(e.SHA256)))
		if e.Excerpt != nil {
			text = *e.Excerpt
		}
		if e.Bytes == 0 {
			kind, text = kind+": empty", ""
		}
		j.Evidence = append(j.Evidence, evidence{kind, text})
	}
	return j
}
