package agent

import (
	"slices"

	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/trajectory"
)

// History is the append-only record of an episode: a tree of messages, of
// which the current path is what the policy sees.
type History struct {
	episode string
	tokens  []int32 // of the current path
	steps   []trajectory.Step
	tip     int32 // step at the end of the current path; -1 at a root
	branch  int32
	turn    int32 // sampled messages on the current path
}

// NewHistory returns an empty history.
func NewHistory(episode string) *History { return &History{episode: episode, tip: -1} }

// Len is the number of tokens of the current path.
func (h *History) Len() int { return len(h.tokens) }

// Tokens returns the current path; it must not be changed and is valid until the next Append.
func (h *History) Tokens() []int32 { return h.tokens }

// Steps returns the messages in the order in which they came.
func (h *History) Steps() []trajectory.Step { return h.steps }

// Append adds a message with the ids that were not sampled: the whole of it, or
// the scaffold that opens it when sampled holds what the policy made. Only
// sampled tokens are ever trained on.
func (h *History) Append(s trajectory.Step, ids []int32, sampled *engine.Response) {
	s.EpisodeID, s.Step, s.Turn, s.Branch = h.episode, int32(len(h.steps)), h.turn, h.branch
	if h.tip >= 0 {
		parent := h.tip
		s.ParentStep = &parent
	}
	s.TokenIDs = append([]int32{}, ids...)
	s.Logprobs = []float32{}
	if sampled != nil {
		s.NScaffold = int32(len(ids))
		s.TokenIDs = append(s.TokenIDs, sampled.Tokens...)
		s.Logprobs = sampled.Logprobs
		h.turn++
	}
	s.LossMask = make([]bool, len(s.TokenIDs))
	for i := len(ids); i < len(s.LossMask); i++ {
		s.LossMask[i] = true
	}
	h.steps = append(h.steps, s)
	h.tokens = append(h.tokens, s.TokenIDs...)
	h.tip = s.Step
}

// Continue makes prompt the current path. When it extends the path exactly, the
// rest is returned to be appended. Otherwise a new branch starts with an empty
// path and the whole prompt is returned: nothing is repaired.
func (h *History) Continue(prompt []int32) (rest []int32, branched bool) {
	if len(prompt) >= len(h.tokens) && slices.Equal(prompt[:len(h.tokens)], h.tokens) {
		return prompt[len(h.tokens):], false
	}
	h.tokens, h.tip, h.turn = nil, -1, 0
	h.branch++
	return prompt, true
}
