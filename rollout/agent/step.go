package agent

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/trajectory"
)

func pinned(v int64) policy.Version { return policy.Version(v) }

// actor is the policy that is trained; multi-agent roles will name others.
const actor = "actor"

type message struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
	ToolID    string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// newStep fills what every message has.
func (r *run) newStep(role trajectory.Role, m message) trajectory.Step {
	m.Role = string(role)
	b, err := json.Marshal(m)
	if err != nil { // strings and structs always encode
		b = []byte("{}")
	}
	content := m.Content
	return trajectory.Step{
		Role: role, Content: &content, MessageJSON: string(b), MessageHash: trajectory.HashMessage(string(b)),
		CreatedAt: r.deps.Now().UTC(),
	}
}

func (r *run) userStep() trajectory.Step {
	return r.newStep(trajectory.User, message{Content: r.ep.Instruction})
}

func (r *run) callID() string { return "call-" + strconv.Itoa(r.res.Turns) }

func (r *run) assistantStep(prompt []int32, resp *engine.Response, text string, act Action) trajectory.Step {
	m := message{Content: text}
	var calls []trajectory.ToolCall
	if !act.Final {
		args, err := json.Marshal(map[string]string{"command": act.Text})
		if err != nil {
			args = []byte("{}")
		}
		m.ToolCalls = []toolCall{{ID: r.callID(), Type: "function", Function: function{Name: "bash", Arguments: string(args)}}}
		calls = []trajectory.ToolCall{{ID: r.callID(), Name: "bash", Arguments: string(args), ValidJSON: true}}
	}
	s := r.newStep(trajectory.Assistant, m)
	s.Sampled, s.ToolCalls = true, calls
	s.PolicySpans = trajectory.NewSpans(resp.Spans, r.deps.Replica)
	name := actor
	s.PolicyID = &name
	seed := int64(r.ep.Seed)
	length := int32(len(prompt))
	s.PromptLen, s.PromptPrefixSHA256 = &length, trajectory.HashTokens(prompt)
	c := r.cfg.Sampling
	s.Sampling = &trajectory.Sampling{
		Temperature: c.Temperature, TopP: c.TopP, TopK: c.TopK, RepetitionPenalty: 1,
		MaxTokens: int32(r.cfg.MaxTurnTokens), Stop: []string{}, StopTokenIDs: r.deps.Renderer.StopIDs(), Seed: &seed,
	}
	s.FinishReason = trajectory.FinishLength
	if resp.Finish == engine.FinishStop {
		s.FinishReason = trajectory.FinishStop
		last := resp.Tokens[len(resp.Tokens)-1]
		s.StopMatch = &trajectory.StopMatch{Kind: trajectory.StopToken, TokenID: &last}
	}
	s.NResumed = int32(max(0, len(resp.Spans)-1))
	return s
}

func (r *run) toolStep(out envpool.Result, text string, began time.Time, took time.Duration) trajectory.Step {
	s := r.newStep(trajectory.Tool, message{Content: text, ToolID: r.callID()})
	code := int32(out.ExitCode)
	total, kept := out.StdoutTotal+out.StderrTotal, int64(len(text))
	res := &trajectory.ToolResult{
		CallID: r.callID(), Name: "bash", Status: trajectory.ToolOK, ExitCode: &code, StartedAt: began.UTC(), Duration: took,
		BytesTotal: total, BytesKept: kept, Truncated: kept < total, Truncation: trajectory.TruncNone,
	}
	switch {
	case out.Hit == envpool.HitTime:
		res.Status = trajectory.ToolTimeout
	case out.ExitCode != 0 || out.Hit != "":
		res.Status = trajectory.ToolError
	}
	if res.Truncated {
		res.Truncation = trajectory.TruncHead
	}
	s.ToolResult = res
	s.Time.Tool = took
	return s
}
