package tiny

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Turn is one turn of a demonstration.
type Turn struct {
	Role    string `json:"role"` // user, assistant or tool
	Content string `json:"content"`
}

// Episode is one demonstration: a user turn, then assistant turns with tool (or
// user) turns between them.
type Episode struct {
	Turns []Turn `json:"turns"`
}

// maxLine is the longest line of a corpus, in bytes.
const maxLine = 16 << 20

// ReadCorpus reads JSON Lines, one Episode a line; empty lines are skipped.
func ReadCorpus(r io.Reader) ([]Episode, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	var out []Episode
	for line := 1; s.Scan(); line++ {
		if len(s.Bytes()) == 0 {
			continue
		}
		var e Episode
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("tiny: read corpus: line %d: %v: %w", line, err, ErrCorpus)
		}
		if err := e.validate(); err != nil {
			return nil, fmt.Errorf("tiny: read corpus: line %d: %w", line, err)
		}
		out = append(out, e)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("tiny: read corpus: %w", err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("tiny: read corpus: no episodes: %w", ErrCorpus)
	}
	return out, nil
}

// validate returns ErrCorpus unless the turns alternate between the policy and the others.
func (e Episode) validate() error {
	acts := false
	for i, t := range e.Turns {
		switch {
		case t.Role != "user" && t.Role != "assistant" && t.Role != "tool":
			return fmt.Errorf("turn %d has role %q, want user, assistant or tool: %w", i, t.Role, ErrCorpus)
		case i == 0 && t.Role != "user":
			return fmt.Errorf("first turn has role %q, want user: %w", t.Role, ErrCorpus)
		case i > 0 && (t.Role == "assistant") == (e.Turns[i-1].Role == "assistant"):
			return fmt.Errorf("turn %d: policy and environment must alternate: %w", i, ErrCorpus)
		}
		acts = acts || t.Role == "assistant"
	}
	if !acts {
		return fmt.Errorf("no assistant turn: %w", ErrCorpus)
	}
	return nil
}

// Sequence renders a demonstration as the rollout would have recorded it:
// actions are the assistant's words and <end>.
func (r *Renderer) Sequence(e Episode) (Sequence, error) {
	if err := e.validate(); err != nil {
		return Sequence{}, fmt.Errorf("tiny: render episode: %w", err)
	}
	var s Sequence
	add := func(ids []int32, action bool) {
		for _, id := range ids {
			s.Tokens = append(s.Tokens, id)
			s.Action = append(s.Action, action)
		}
	}
	for i, t := range e.Turns {
		switch {
		case t.Role == "assistant":
			add(r.Open(), false)
			add(append(r.tok.Encode(t.Content), End), true)
		case i == 0:
			add(r.Start(t.Content), false)
		default:
			ids, _ := r.Observe(t.Content)
			add(ids, false)
		}
	}
	return s, nil
}
