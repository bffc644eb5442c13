// Package agent drives one episode: it lets a policy act in a sandbox, turn by turn, and records every token.
//
// The history is a list of token ids that only grows at its end: what was
// sampled is never rendered, decoded and encoded again (invariant I9).
package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/trajectory"
)

// Renderer turns a conversation into token ids; policy/tiny has one.
type Renderer interface {
	// Start returns the opening of a history.
	Start(instruction string) []int32
	// Open returns the scaffold that opens the policy's turn.
	Open() []int32
	// Observe returns an observation's ids with special tokens disabled, and how
	// many ids were cut off its end.
	Observe(text string) (ids []int32, cut int)
	// StopIDs returns the ids that end the policy's turn.
	StopIDs() []int32
	// Text returns the view of sampled ids that tools read; it is never encoded back.
	Text(ids []int32) string
}

// Sandbox is the part of a claimed sandbox that an agent uses.
type Sandbox interface {
	Exec(ctx context.Context, c envpool.Command) (envpool.Result, error)
	Write(ctx context.Context, path string, data []byte) error
}

// Config bounds an episode.
type Config struct {
	MaxTurns      int
	MaxTokens     int           // sampled tokens of the episode
	MaxTurnTokens int           // sampled tokens of one turn
	MaxContext    int           // tokens of the history
	Timeout       time.Duration // sampling and tool time; the platform's own waits do not count
	Sampling      engine.Sampling
	Output        int64  // bytes of a tool's output read back
	AnswerPath    string // file in the sandbox that receives the final answer
}

// Episode is what an agent is given.
type Episode struct {
	ID          string
	Instruction string
	Seed        uint64 // of the sampling stream
	Pin         *int64 // evaluation: sample from exactly this version
}

// Result is what an episode came to. Failure is set instead of a judged end
// reason when the platform or the environment failed; then nothing else counts.
type Result struct {
	End     outcome.EndReason
	Failure error // nil when End goes to a verifier

	Steps     []trajectory.Step
	Turns     int
	ToolCalls int
	ToolFails int
	Sampled   int64 // tokens
	Context   int64 // longest prompt plus continuation
	Cut       int   // tool outputs that were cut
	Usage     trajectory.Usage
	Model     time.Duration
	Tool      time.Duration
	First     time.Time // first sampled message
}

// Deps are what an agent acts through. Waits is told what the episode waits for.
type Deps struct {
	Engine   engine.Generator
	Replica  string
	Renderer Renderer
	Sandbox  Sandbox
	Waits    func(what string)
	Now      func() time.Time
}

// Run plays one episode to its end. It returns an error only when the lease is
// lost or ctx ends: then the attempt is dropped without a word.
func Run(ctx context.Context, d Deps, cfg Config, ep Episode) (*Result, error) {
	r := &run{deps: d, cfg: cfg, ep: ep, res: &Result{}, hist: NewHistory(ep.ID)}
	r.hist.Append(r.userStep(), d.Renderer.Start(ep.Instruction), nil)
	for {
		end, err := r.turn(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, lease.ErrFenced) {
				return nil, fmt.Errorf("agent: episode %s: %w", ep.ID, err)
			}
			r.res.End, r.res.Failure = blame(err), err
			return r.res, nil
		}
		if end != "" {
			r.res.End, r.res.Steps = end, r.hist.Steps()
			return r.res, nil
		}
	}
}

// blame names the end reason of an error that is not the model's doing. Only
// evidence from the host's side makes it the environment's.
func blame(err error) outcome.EndReason {
	var e *engineError
	switch {
	case errors.As(err, &e):
		return outcome.EngineError
	case errors.Is(err, envpool.ErrEnvironment):
		return outcome.EnvCrash
	case errors.Is(err, envpool.ErrInvalid), errors.Is(err, envpool.ErrUnsafe), errors.Is(err, envpool.ErrUnsupported):
		return outcome.TaskSetupFailed
	default:
		return outcome.HostLost
	}
}

type engineError struct{ err error }

func (e *engineError) Error() string { return "engine: " + e.err.Error() }
func (e *engineError) Unwrap() error { return e.err }

type run struct {
	deps Deps
	cfg  Config
	ep   Episode
	res  *Result
	hist *History
}

func (r *run) spent() time.Duration { return r.res.Model + r.res.Tool }

// turn samples one message and carries out what it asks for. An empty end reason means that the episode goes on.
func (r *run) turn(ctx context.Context) (outcome.EndReason, error) {
	budget := min(r.cfg.MaxTurnTokens, r.cfg.MaxTokens-int(r.res.Sampled))
	open := r.deps.Renderer.Open()
	room := r.cfg.MaxContext - r.hist.Len() - len(open)
	switch {
	case budget <= 0:
		return outcome.MaxTokens, nil
	case room <= 0:
		return outcome.ContextOverflow, nil
	}
	prompt := append(slices.Clone(r.hist.Tokens()), open...)
	resp, err := r.sample(ctx, prompt, min(budget, room))
	if errors.Is(err, engine.ErrTooLong) {
		return outcome.ContextOverflow, nil
	}
	if err != nil {
		return "", err
	}
	r.res.Turns++
	text := r.deps.Renderer.Text(resp.Tokens)
	act := Parse(text)
	r.hist.Append(r.assistantStep(prompt, resp, text, act), open, resp)
	switch {
	case resp.Finish == engine.FinishLength && room < budget:
		return outcome.ContextOverflow, nil
	case resp.Finish == engine.FinishLength:
		return outcome.MaxTokens, nil
	case act.Final:
		return r.answer(ctx, act)
	case r.spent() >= r.cfg.Timeout:
		return outcome.WallClock, nil
	}
	timedOut, err := r.tool(ctx, act)
	switch {
	case err != nil:
		return "", err
	case timedOut:
		return outcome.WallClock, nil
	case r.res.Turns >= r.cfg.MaxTurns:
		return outcome.MaxTurns, nil
	}
	return "", nil
}

func (r *run) sample(ctx context.Context, prompt []int32, budget int) (*engine.Response, error) {
	req := engine.Request{
		Session: r.ep.ID, Prompt: prompt, MaxTokens: budget, Stop: r.deps.Renderer.StopIDs(),
		Drawn: int(r.res.Sampled), Sampling: r.cfg.Sampling,
	}
	req.Sampling.Seed = r.ep.Seed
	if r.ep.Pin != nil {
		v := pinned(*r.ep.Pin)
		req.Pin = &v
	}
	r.deps.Waits("model")
	began := r.deps.Now()
	resp, err := r.deps.Engine.Generate(ctx, req)
	r.res.Model += r.deps.Now().Sub(began)
	if err != nil {
		if errors.Is(err, engine.ErrTooLong) {
			return nil, err
		}
		return nil, &engineError{err}
	}
	if r.res.First.IsZero() {
		r.res.First = r.deps.Now()
	}
	r.res.Sampled += int64(len(resp.Tokens))
	r.res.Context = max(r.res.Context, int64(len(req.Prompt)+len(resp.Tokens)))
	r.res.Usage.Input += int64(len(req.Prompt))
	r.res.Usage.CachedInput += int64(resp.Cached)
	r.res.Usage.Output += int64(len(resp.Tokens))
	return &resp, nil
}

// answer hands in the final answer. A sandbox that an earlier command has left
// without room or place for it is the model's doing: the tests judge what is there.
func (r *run) answer(ctx context.Context, act Action) (outcome.EndReason, error) {
	r.deps.Waits("environment")
	err := r.deps.Sandbox.Write(ctx, r.cfg.AnswerPath, []byte(act.Text+"\n"))
	switch {
	case err == nil:
		return outcome.Stop, nil
	case r.res.ToolCalls > 0 && errors.Is(err, envpool.ErrTooLarge):
		return outcome.SandboxLimit, nil
	case r.res.ToolCalls > 0 && (errors.Is(err, envpool.ErrInvalid) || errors.Is(err, envpool.ErrUnsafe)):
		return outcome.Stop, nil
	}
	return "", err
}

// notRun is the result of a command that could not be started. It says nothing of the host.
func notRun() envpool.Result {
	text := []byte("sh: cannot be run\n")
	return envpool.Result{ExitCode: 127, Stderr: text, StderrTotal: int64(len(text))}
}

// tool runs one command in the sandbox and appends what it printed. Where the
// first command could be started and a later one cannot, the model has changed
// the sandbox so, and sees that; the first one's failure is the task's.
func (r *run) tool(ctx context.Context, act Action) (timedOut bool, err error) {
	r.deps.Waits("tool")
	r.res.ToolCalls++
	began := r.deps.Now()
	out, err := r.deps.Sandbox.Exec(ctx, envpool.Command{
		Argv: []string{"sh", "-c", act.Text}, Timeout: r.cfg.Timeout - r.spent(), Output: r.cfg.Output,
	})
	took := r.deps.Now().Sub(began)
	r.res.Tool += took
	if errors.Is(err, envpool.ErrInvalid) && (r.res.ToolCalls > 1 || strings.ContainsRune(act.Text, 0)) {
		out, err = notRun(), nil
	}
	if err != nil {
		return false, err
	}
	text := string(out.Stdout) + string(out.Stderr)
	step := r.toolStep(out, text, began, took)
	ids, cut := r.deps.Renderer.Observe(text)
	if cut > 0 {
		shown := r.deps.Renderer.Text(ids)
		step.Content = &shown
		t := step.ToolResult
		t.Truncated, t.Truncation, t.BytesKept = true, trajectory.TruncTokens, min(int64(len(shown)), t.BytesTotal-1)
	}
	if step.ToolResult.Status != trajectory.ToolOK {
		r.res.ToolFails++
	}
	if step.ToolResult.Truncated {
		r.res.Cut++
	}
	r.hist.Append(step, ids, nil)
	return out.Hit == envpool.HitTime, nil
}

// Action is what a message asks for.
type Action struct {
	Final bool   // the message is the final answer
	Text  string // the answer, or a shell command
}

// Parse reads an action: "answer WORDS…" gives the final answer, anything else
// is a command for the bash tool.
func Parse(text string) Action {
	text = strings.TrimSpace(text)
	first, rest, _ := strings.Cut(text, " ")
	if first == "answer" {
		return Action{Final: true, Text: strings.TrimSpace(rest)}
	}
	return Action{Text: text}
}
