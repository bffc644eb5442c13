package trajectory

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
)

var (
	testTime = time.Date(2026, 11, 3, 10, 0, 0, 123000, time.UTC)
	testMeta = Meta{Run: "run-1", Writer: "test", Created: testTime}
)

func ptr[T any](v T) *T { return &v }

func digest(s string) policy.Digest { return policy.DigestOf([]byte(s)) }

// newStep returns a valid message without tokens of our own.
func newStep(id string, step int32, role Role, ids ...int32) Step {
	s := Step{
		EpisodeID: id, Step: step, Role: role, Content: ptr(fmt.Sprintf("%s says %d", role, step)),
		MessageJSON: fmt.Sprintf(`{"role":%q,"content":"%s says %d"}`, role, role, step),
		TokenIDs:    ids, LossMask: make([]bool, len(ids)), NScaffold: 1, CreatedAt: testTime,
		Time: StepTime{Queue: time.Millisecond, Decode: 3 * time.Millisecond},
	}
	if ids == nil {
		s.LossMask, s.NScaffold = nil, 0
	}
	if step > 0 {
		s.ParentStep = ptr(step - 1)
	}
	s.MessageHash = HashMessage(s.MessageJSON)
	return s
}

// newSampled returns a message that the policy sampled: a scaffold id, then one token for each log-probability.
func newSampled(id string, step, turn int32, version policy.Version, ids []int32, logprobs []float32) Step {
	s := newStep(id, step, Assistant, append([]int32{1}, ids...)...)
	s.Turn, s.Sampled, s.Logprobs = turn, true, logprobs
	for i := range ids {
		s.LossMask[i+1] = true
	}
	s.PolicySpans = NewSpans([]policy.Span{{Length: int32(len(ids)), Version: version}}, "engine-0")
	s.PolicyID = ptr("actor")
	s.Sampling = &Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, MaxTokens: 64, StopTokenIDs: []int32{2}, Seed: ptr(int64(7))}
	s.FinishReason = FinishStop
	s.PromptLen = ptr(int32(20))
	s.PromptPrefixSHA256 = HashTokens(ids)
	return s
}

// newSteps returns a conversation of the given number of turns, each a sampled tool call and its result, ended by an answer.
func newSteps(id string, turns int, version policy.Version, r *rand.Rand) []Step {
	lps := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = -float32(math.Abs(r.NormFloat64()))
		}
		return out
	}
	toks := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = 3 + int32(r.ExpFloat64()*40)
		}
		return out
	}
	steps := []Step{newStep(id, 0, System, toks(8)...), newStep(id, 1, User, toks(12)...)}
	for t := range turns {
		n := int32(len(steps))
		s := newSampled(id, n, int32(t), version, toks(10), lps(10))
		if t == turns-1 {
			steps = append(steps, s)
			break
		}
		s.FinishReason = FinishToolCalls
		s.ToolCalls = []ToolCall{{ID: fmt.Sprintf("c%d", t), Name: "bash", Arguments: `{"cmd":"ls"}`, ValidJSON: true}}
		o := newStep(id, n+1, Tool, toks(9)...)
		o.Turn = int32(t + 1)
		o.ToolResult = &ToolResult{CallID: fmt.Sprintf("c%d", t), Name: "bash", Status: ToolOK, ExitCode: ptr(int32(0)), StartedAt: testTime, Duration: time.Millisecond, BytesTotal: 20, BytesKept: 20, Truncation: TruncNone}
		steps = append(steps, s, o)
	}
	return steps
}

// newEpisode returns the row of an episode whose steps are given.
func newEpisode(group uint64, index int32, steps []Step) Episode {
	e := Episode{
		RunID: testMeta.Run, ExperimentDigest: digest("exp"), EpisodeID: steps[0].EpisodeID, Attempt: 1,
		LeaseID: "episode/x", LeaseEpoch: 3, WorkerID: "rollout-0", WorkerBuild: "dev", EnvID: "files", EnvVersion: "1",
		TaskID: "task-1", TaskDigest: digest("task"), Split: SplitTrain, GroupID: ptr(GroupID(testMeta.Run, group)), GroupSize: 16, GroupIndex: index,
		Seed: 11, SamplingSeed: ptr(int64(12)), PolicyID: "actor", PolicyVersionDispatch: 1,
		BaseModelDigest: digest("m"), TokenizerDigest: digest("t"), ChatTemplateDigest: digest("c"), RendererDigest: digest("r"),
		ToolsDigest: digest("tools"), EnvImageDigest: digest("image"), HarnessDigest: digest("h"),
		Engine:       Engine{Name: "tiny", Version: "1", Dtype: "float32", TP: 1, KVDtype: "float32", PrefixCache: true, PolicyID: "actor"},
		LogprobsMode: ProcessedLogprobs, EndClass: outcome.ClassModel, EndReason: outcome.Stop,
		StartedAt: ptr(testTime), FinishedAt: ptr(testTime.Add(time.Second)), CommittedAt: testTime.Add(2 * time.Second),
		Time: EpisodeTime{Model: time.Second, Tool: 20 * time.Millisecond}, Artifacts: digest("artifacts"), Tags: []string{"a"},
	}
	Count(&e, steps)
	return e
}

// newVerdict returns a judgement with the given reward.
func newVerdict(episode string, reward float64) Verdict {
	v := Verdict{
		VerdictID: "v/" + episode, EpisodeID: episode, VerifierID: "tests", VerifierDigest: digest("tests"), SandboxImageDigest: digest("image"),
		Attempt: 1, Verdict: outcome.Fail, Reason: ChecksFailed, Score: ptr(reward), Reward: ptr(reward),
		RewardComponents: []RewardComponent{{Name: "tests", Value: ptr(reward), Weight: 1, Source: FromVerifier, Required: true}},
		Disposition:      outcome.Train, Checks: []Check{{Name: "answer", Status: CheckPass, Duration: time.Millisecond}},
		Evidence: []Evidence{{Kind: EvidenceStdout, SHA256: digest("out"), Bytes: 3, Excerpt: ptr("out")}},
		ExitCode: ptr(int32(0)), StartedAt: testTime, Duration: 5 * time.Millisecond,
	}
	if reward > 0 {
		v.Verdict, v.Reason = outcome.Pass, ChecksPassed
	}
	return v
}

func dictionaryOf(t *testing.T, a arrow.Array) []string {
	values := a.(*array.Dictionary).Dictionary().(*array.String)
	out := make([]string, values.Len())
	for i := range out {
		out[i] = values.Value(i)
	}
	return out
}
