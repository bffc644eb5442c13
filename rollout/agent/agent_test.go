package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/trajectory"
)

// words renders with one id a word; decoding an id and encoding it again gives
// another id, as merging tokenizers do (trap T1).
type words struct {
	ids map[string]int32
	of  []string
	max int
}

const (
	idBOS, idAct, idEnd = 0, 1, 2
)

func newWords() *words {
	return &words{ids: map[string]int32{}, of: []string{"<bos>", "<act>", "<end>"}}
}

func (w *words) encode(text string) []int32 {
	var out []int32
	for _, x := range strings.Fields(text) {
		id, ok := w.ids[x]
		if !ok {
			id = int32(len(w.of))
			w.ids[x] = id
			w.of = append(w.of, x)
		}
		out = append(out, id)
	}
	return out
}

// other returns an id that reads like the word but is not what encode gives.
func (w *words) other(word string) int32 {
	w.of = append(w.of, word)
	return int32(len(w.of) - 1)
}

func (w *words) Start(s string) []int32 { return append([]int32{idBOS}, w.encode(s)...) }
func (w *words) Open() []int32          { return []int32{idAct} }
func (w *words) StopIDs() []int32       { return []int32{idEnd} }
func (w *words) Observe(s string) ([]int32, int) {
	ids := w.encode(s)
	if w.max > 0 && len(ids) > w.max {
		return ids[:w.max], len(ids) - w.max
	}
	return ids, 0
}

func (w *words) Text(ids []int32) string {
	var out []string
	for _, id := range ids {
		if id != idEnd {
			out = append(out, w.of[id])
		}
	}
	return strings.Join(out, " ")
}

// script is an engine that says what it is told to.
type script struct {
	w       *words
	say     []string // one a turn; "…" at the end leaves out the stop
	spans   []policy.Span
	err     error
	prompts [][]int32
	calls   []engine.Request
}

func (s *script) Generate(_ context.Context, r engine.Request) (engine.Response, error) {
	s.prompts = append(s.prompts, slices.Clone(r.Prompt))
	s.calls = append(s.calls, r)
	if s.err != nil {
		return engine.Response{}, s.err
	}
	text, open := strings.CutSuffix(s.say[len(s.calls)-1], "…")
	var ids []int32
	for _, x := range strings.Fields(text) {
		ids = append(ids, s.w.other(x))
	}
	out := engine.Response{Finish: engine.FinishLength}
	if !open {
		ids, out.Finish = append(ids, idEnd), engine.FinishStop
	}
	out.Tokens, out.Logprobs = ids, make([]float32, len(ids))
	for i := range out.Logprobs {
		out.Logprobs[i] = -0.5
	}
	out.Spans = policy.Extend(nil, 3, int32(len(ids)))
	if s.spans != nil {
		out.Spans = s.spans
	}
	return out, nil
}

// box is a sandbox in memory.
type box struct {
	out    map[string]envpool.Result
	err    error
	broken error // of every call after the first command
	answer string
	ran    []string
}

func (b *box) fails() error {
	if b.broken != nil && len(b.ran) > 0 {
		return b.broken
	}
	return b.err
}

func (b *box) Exec(_ context.Context, c envpool.Command) (envpool.Result, error) {
	err := b.fails()
	b.ran = append(b.ran, c.Argv[2])
	r := b.out[c.Argv[2]]
	r.StdoutTotal, r.StderrTotal = max(r.StdoutTotal, int64(len(r.Stdout))), max(r.StderrTotal, int64(len(r.Stderr)))
	return r, err
}

func (b *box) Write(_ context.Context, path string, data []byte) error {
	b.answer = path + "=" + string(data)
	return b.fails()
}

func play(t *testing.T, w *words, e *script, b *box, change func(*Config)) (*Result, error) {
	t.Helper()
	cfg := Config{
		MaxTurns: 4, MaxTokens: 40, MaxTurnTokens: 10, MaxContext: 100, Timeout: time.Minute,
		Sampling: engine.Sampling{Temperature: 1, TopP: 1}, AnswerPath: "/app/answer.txt",
	}
	if change != nil {
		change(&cfg)
	}
	res, err := Run(t.Context(), Deps{
		Engine: e, Replica: "e1", Renderer: w, Sandbox: b, Waits: func(string) {}, Now: time.Now,
	}, cfg, Episode{ID: "r/000000000001/000000/1", Instruction: "read F2", Seed: 9})
	if err == nil && res.Failure == nil {
		require.NoError(t, trajectory.CheckSteps(res.Steps), "what an agent records is valid")
	}
	return res, err
}

func TestEpisode(t *testing.T) {
	w := newWords()
	e := &script{w: w, say: []string{"ls", "cat F2", "answer 7"}}
	b := &box{out: map[string]envpool.Result{
		"ls": {Stdout: []byte("F1\nF2\n"), StdoutTotal: 6}, "cat F2": {Stdout: []byte("7\n"), StdoutTotal: 2},
	}}
	res, err := play(t, w, e, b, nil)
	require.NoError(t, err)
	require.Equal(t, outcome.Stop, res.End)
	require.Equal(t, "/app/answer.txt=7\n", b.answer)
	require.Equal(t, []string{"ls", "cat F2"}, b.ran)
	require.Equal(t, 3, res.Turns)

	// T1: what was sampled is in the next prompt and in the record id by id, never encoded again.
	var whole []int32
	for _, s := range res.Steps {
		whole = append(whole, s.TokenIDs...)
	}
	last := e.prompts[2]
	require.Equal(t, last, whole[:len(last)])
	require.NotEqual(t, w.encode("ls"), res.Steps[1].TokenIDs[1:2], "the sampled id, not the encoder's")
	// T2: an append-only conversation is one branch.
	for _, s := range res.Steps {
		require.Zero(t, s.Branch)
	}
	// T13, T18: the stop is kept with its log-probability; tool rows are never trained on.
	require.Equal(t, []bool{false, true, true}, res.Steps[1].LossMask)
	require.Len(t, res.Steps[1].Logprobs, 2)
	require.Equal(t, trajectory.Tool, res.Steps[2].Role)
	require.NotContains(t, res.Steps[2].LossMask, true)
	require.Equal(t, 5, e.calls[2].Drawn, "two and three tokens were drawn before")
}

func TestEnds(t *testing.T) {
	ok := map[string]envpool.Result{"ls": {Stdout: []byte("F1")}}
	for _, c := range []struct {
		name   string
		say    []string
		out    map[string]envpool.Result
		change func(*Config)
		want   outcome.EndReason
	}{
		{"turns", []string{"ls", "ls", "ls", "ls"}, ok, nil, outcome.MaxTurns},
		{"a message that does not end", []string{"ls ls ls…"}, ok, func(c *Config) { c.MaxTurnTokens = 3 }, outcome.MaxTokens},
		{"tokens of the episode", []string{"ls", "ls"}, ok, func(c *Config) { c.MaxTokens = 4 }, outcome.MaxTokens},
		{"context", []string{"ls", "ls"}, map[string]envpool.Result{"ls": {Stdout: []byte("a b c d e f g h i j")}}, func(c *Config) { c.MaxContext = 16 }, outcome.ContextOverflow},
		{"a command over the episode's time", []string{"ls"}, map[string]envpool.Result{"ls": {Hit: envpool.HitTime}}, nil, outcome.WallClock},
		{"a command that fills its own memory is a result", []string{"ls", "answer 1"}, map[string]envpool.Result{"ls": {Hit: envpool.HitMemory, ExitCode: -1, Signal: 9}}, nil, outcome.Stop},
		{"a command that is not there is a result", []string{"nope", "answer 1"}, map[string]envpool.Result{"nope": {ExitCode: 127, Stderr: []byte("not found")}}, nil, outcome.Stop},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWords()
			res, err := play(t, w, &script{w: w, say: c.say}, &box{out: c.out}, c.change)
			require.NoError(t, err)
			require.NoError(t, res.Failure)
			require.Equal(t, c.want, res.End)
		})
	}
}

// I5: who failed decides, and only the host's own evidence blames the environment.
func TestI5_Blame(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		eng  error
		want outcome.EndReason
	}{
		{"the sandbox died", envpool.ErrEnvironment, nil, outcome.EnvCrash},
		{"the host went away", errors.New("connection refused"), nil, outcome.HostLost},
		{"the host restarted", envpool.ErrUnknown, nil, outcome.HostLost},
		{"the task asks for what cannot be", envpool.ErrInvalid, nil, outcome.TaskSetupFailed},
		{"the engine", nil, errors.New("connection refused"), outcome.EngineError},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWords()
			res, err := play(t, w, &script{w: w, say: []string{"ls"}, err: c.eng}, &box{err: c.err}, nil)
			require.NoError(t, err)
			require.Equal(t, c.want, res.End)
			require.Error(t, res.Failure)
			require.False(t, outcome.Judged(res.End), "no verdict is reached for it")
		})
	}
	w := newWords()
	_, err := play(t, w, &script{w: w, say: []string{"ls"}}, &box{err: lease.ErrFenced}, nil)
	require.ErrorIs(t, err, lease.ErrFenced, "a lost lease ends the attempt without a word")
}

// I5: what an episode's own command did to its sandbox is never the platform's
// or the task's failure: it would be tried again for ever, or blamed on the task.
func TestI5_OwnHarm(t *testing.T) {
	for _, c := range []struct {
		name   string
		say    []string
		broken error
		want   outcome.EndReason
	}{
		{"its disk is full", []string{"fill", "answer 1"}, envpool.ErrTooLarge, outcome.SandboxLimit},
		{"a directory is where the answer belongs", []string{"mkdir", "answer 1"}, envpool.ErrInvalid, outcome.Stop},
		{"a link is where the answer belongs", []string{"ln", "answer 1"}, envpool.ErrUnsafe, outcome.Stop},
		{"it put something else in the shell's place", []string{"mv", "ls", "ls", "ls"}, envpool.ErrInvalid, outcome.MaxTurns},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWords()
			res, err := play(t, w, &script{w: w, say: c.say}, &box{broken: c.broken}, nil)
			require.NoError(t, err)
			require.NoError(t, res.Failure)
			require.Equal(t, c.want, res.End)
			require.True(t, outcome.Judged(res.End))
		})
	}
	w := newWords()
	res, err := play(t, w, &script{w: w, say: []string{"ls", "ls"}}, &box{broken: envpool.ErrEnvironment}, nil)
	require.NoError(t, err)
	require.Equal(t, outcome.EnvCrash, res.End, "a sandbox that died is not the model's doing")
	require.Len(t, res.Steps, 0)
}

// T31: the cut is recorded, in its unit.
func TestT31_TruncatedTools(t *testing.T) {
	w := newWords()
	w.max = 2
	res, err := play(t, w, &script{w: w, say: []string{"ls", "answer 1"}}, &box{out: map[string]envpool.Result{"ls": {Stdout: []byte("a b c d"), StdoutTotal: 7}}}, nil)
	require.NoError(t, err)
	r := res.Steps[2].ToolResult
	require.True(t, r.Truncated)
	require.Equal(t, trajectory.TruncTokens, r.Truncation)
	require.Equal(t, 1, res.Cut)
	require.Equal(t, "a b", *res.Steps[2].Content, "what the model saw")
}

// T5: a switch inside a message is recorded token by token.
func TestT5_VersionStraddle(t *testing.T) {
	w := newWords()
	e := &script{w: w, say: []string{"answer 1"}, spans: []policy.Span{{Start: 0, Length: 1, Version: 7}, {Start: 1, Length: 2, Version: 8}}}
	res, err := play(t, w, e, &box{}, nil)
	require.NoError(t, err)
	require.Equal(t, e.spans, res.Steps[1].VersionSpans())
	require.Equal(t, int32(1), res.Steps[1].NResumed)
}

// T2: a prompt that is not an extension starts a branch; nothing is repaired.
func TestT2_Branches(t *testing.T) {
	h := NewHistory("e")
	h.Append(trajectory.Step{Role: trajectory.User}, []int32{1, 2, 3}, nil)
	rest, branched := h.Continue([]int32{1, 2, 3, 4})
	require.False(t, branched)
	require.Equal(t, []int32{4}, rest)
	rest, branched = h.Continue([]int32{1, 9})
	require.True(t, branched)
	require.Equal(t, []int32{1, 9}, rest)
	h.Append(trajectory.Step{Role: trajectory.User}, rest, nil)
	steps := h.Steps()
	require.Equal(t, int32(1), steps[1].Branch)
	require.Nil(t, steps[1].ParentStep)
	require.Equal(t, []int32{1, 9}, h.Tokens())
}

func TestParse(t *testing.T) {
	require.Equal(t, Action{Final: true, Text: "7"}, Parse(" answer 7 "))
	require.Equal(t, Action{Final: true}, Parse("answer"))
	require.Equal(t, Action{Text: "answers 7"}, Parse("answers 7"))
	require.Equal(t, Action{Text: "cat F2"}, Parse("cat F2"))
}
