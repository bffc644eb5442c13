package trajectory

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
)

// The correctness traps that concern the record, by their numbers in the
// project's list. Those of formulas (T9–T11, T19, T20, T22–T25, T38, T45) are
// tested with the objectives, those of packing (T32, T34–T37, T40) with the
// trainer, those of engines and renderers (T3, T4, T7, T8, T12, T14–T16, T21, T43) there.

const trapID = "run-1/000000000001/000000/1"

// written returns the steps as a reader gets them.
func written(t *testing.T, steps ...Step) []Step {
	t.Helper()
	w := NewWriter[Step](testMeta)
	for _, s := range steps {
		require.NoError(t, w.Append(s))
	}
	sh, err := w.Close()
	require.NoError(t, err)
	r, err := Open[Step](sh.Data, sh.Digest)
	require.NoError(t, err)
	rows, err := r.All()
	require.NoError(t, err)
	return rows
}

// refused requires that the row is refused and that the reason names episode, step, column and what is wrong.
func refused[R Row](t *testing.T, row R, column, why string) {
	t.Helper()
	w := NewWriter[R](testMeta)
	if s, ok := any(row).(Step); ok && s.Step > 0 {
		for i := range s.Step {
			before := newStep(s.EpisodeID, i, User, 5)
			require.NoError(t, w.Append(any(before).(R)))
		}
	}
	rows := w.Rows()
	err := w.Append(row)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "column "+column)
	require.ErrorContains(t, err, why)
	require.Equal(t, rows, w.Rows(), "a refused row leaves nothing behind")
}

// T1: what the engine returned is stored id for id; the text is a view. Here a
// tokenizer would encode "hello" as one id, and the engine sampled two.
func TestT1_IdsAreNotEncodedAgain(t *testing.T) {
	s := newSampled(trapID, 0, 0, 3, []int32{104, 7735}, []float32{-0.25, -1.5})
	s.Content = ptr("hello")
	got := written(t, s)[0]
	require.Equal(t, []int32{1, 104, 7735}, got.TokenIDs)
	require.Equal(t, []float32{-0.25, -1.5}, got.Logprobs)
	require.Equal(t, 2, got.SampledTokens())
}

// T2: a conversation that only grows is one branch; one whose history is
// rewritten every turn is one for each turn. Nothing is patched.
func TestT2_RewrittenHistoryForks(t *testing.T) {
	const turns = 4
	var grows []Step
	for i := range int32(turns) {
		u := newStep(trapID, 2*i, User, 5, 6)
		u.Turn = i
		grows = append(grows, u, newSampled(trapID, 2*i+1, i, 1, []int32{9}, []float32{-1}))
	}
	require.NoError(t, CheckSteps(grows))
	require.Len(t, Branches(grows), 1)
	require.Len(t, Branches(grows)[0].Steps, 2*turns)

	// Every turn starts from a rewritten root.
	var rewritten []Step
	for i := range int32(turns) {
		u := newStep(trapID, 2*i, User, 5, 6)
		u.ParentStep, u.Branch = nil, i
		a := newSampled(trapID, 2*i+1, 0, 1, []int32{9}, []float32{-1})
		a.Branch = i
		rewritten = append(rewritten, u, a)
	}
	require.NoError(t, CheckSteps(rewritten))
	branches := Branches(rewritten)
	require.Len(t, branches, turns)
	require.Equal(t, []int{2, 3}, branches[1].Steps)

	// A row that claims to go on with a branch which another has taken is refused.
	patched := append([]Step(nil), rewritten...)
	patched[2].Branch = 0
	require.ErrorIs(t, CheckSteps(patched), ErrInvalid)
}

// T5: tokens [0,57) of version 7 and [57,128) of version 8. The label of the
// admission (7) and that of the query (8) are both wrong.
func TestT5_VersionStraddle(t *testing.T) {
	ids, lps := make([]int32, 128), make([]float32, 128)
	s := newSampled(trapID, 0, 0, 7, ids, lps)
	var spans []policy.Span
	for i := range 128 {
		v := policy.Version(7)
		if i >= 57 {
			v = 8
		}
		spans = policy.Extend(spans, v, 1)
	}
	s.PolicySpans = NewSpans(spans, "")
	got := written(t, s)[0]
	require.Equal(t, []policy.Span{{Start: 0, Length: 57, Version: 7}, {Start: 57, Length: 71, Version: 8}}, got.VersionSpans())
	e := newEpisode(1, 0, []Step{got})
	require.Equal(t, policy.Version(7), *e.PolicyVersionMin)
	require.Equal(t, policy.Version(8), *e.PolicyVersionMax)

	for name, spans := range map[string][]policy.Span{
		"none": nil, "one for all": {{Length: 127, Version: 7}}, "gap": {{Length: 57, Version: 7}, {Start: 58, Length: 70, Version: 8}},
		"overlap": {{Length: 58, Version: 7}, {Start: 57, Length: 71, Version: 8}}, "out of order": {{Start: 57, Length: 71, Version: 8}, {Length: 57, Version: 7}},
		"too long": {{Length: 129, Version: 7}}, "negative version": {{Length: 128, Version: -1}},
	} {
		bad := s
		bad.PolicySpans = NewSpans(spans, "")
		t.Run(name, func(t *testing.T) { refused(t, bad, "policy_spans", "spans") })
	}
}

// T6: step n trains from version n; a token of version k has staleness n − k.
// With a bound of 0 only k = n passes. Verify checks it where the batch was
// shipped, not where the episode was dispatched.
func TestT6_LagDefinition(t *testing.T) {
	require.Equal(t, policy.Lag(0), policy.Version(4).Behind(4))
	require.Equal(t, policy.Lag(3), policy.Version(4).Behind(7))
	row := newLedgerRow(trapID)
	row.PolicyVersionTrained = policy.Version(row.TrainerStep) + 1 // counting the version that the step makes
	refused(t, row, "policy_version_trained", "step 4 trains from version 4, not 5")
	row = newLedgerRow(trapID)
	row.StalenessMax = -1
	refused(t, row, "staleness_max", "-1")
}

// T13: a message that ended with the end-of-sequence token has it as its last
// sampled id, with a log-probability.
func TestT13_EndOfSequenceIsKept(t *testing.T) {
	s := newSampled(trapID, 0, 0, 1, []int32{9, 9, 2}, []float32{-1, -1, -0.5})
	s.StopMatch = &StopMatch{Kind: StopEOS, TokenID: ptr(int32(2))}
	got := written(t, s)[0]
	require.Equal(t, int32(2), got.TokenIDs[len(got.TokenIDs)-1])
	require.True(t, got.LossMask[len(got.LossMask)-1])
	require.Equal(t, float32(-0.5), got.Logprobs[2])

	cut := newSampled(trapID, 0, 0, 1, []int32{9, 9}, []float32{-1, -1})
	cut.StopMatch = s.StopMatch
	refused(t, cut, "stop_match", "the last sampled token is 9")
	unmasked := s
	unmasked.LossMask = []bool{false, true, true, false}
	unmasked.Logprobs, unmasked.PolicySpans = s.Logprobs[:2], NewSpans([]policy.Span{{Length: 2, Version: 1}}, "")
	refused(t, unmasked, "stop_match", "the last sampled token is 9")
}

// T17, T18: nothing but what the policy sampled is trained on.
func TestT18_OnlySampledTokensAreTrainedOn(t *testing.T) {
	mask := func(s Step) Step {
		for i := range s.LossMask {
			s.LossMask[i] = true
		}
		s.NScaffold, s.Logprobs, s.PolicyID = 0, make([]float32, len(s.LossMask)), ptr("actor")
		s.PolicySpans = NewSpans([]policy.Span{{Length: int32(len(s.LossMask)), Version: 1}}, "")
		return s
	}
	refused(t, mask(newStep(trapID, 1, Tool, 5, 6)), "loss_mask", "is true on a tool row")
	refused(t, mask(newStep(trapID, 1, User, 5, 6)), "loss_mask", "is true on a user row")
	refused(t, mask(newStep(trapID, 1, Assistant, 5, 6)), "loss_mask", "was not sampled")
	copied := newSampled(trapID, 0, 0, 1, []int32{9}, []float32{-1})
	copied.CopiedContext = true
	refused(t, copied, "loss_mask", "is true on copied context")
	scaffold := newSampled(trapID, 0, 0, 1, []int32{9}, []float32{-1})
	scaffold.NScaffold = 2
	refused(t, scaffold, "loss_mask", "is true on scaffold")
	uneven := newStep(trapID, 1, Tool, 5, 6)
	uneven.LossMask = uneven.LossMask[:1]
	refused(t, uneven, "loss_mask", "1 entries for 2 token_ids")
	without := newStep(trapID, 1, Tool, 5, 6)
	without.LossMask = nil
	refused(t, without, "loss_mask", "null exactly when token_ids is")
	// A policy that is not trained samples too; its tokens carry no mask, no log-probabilities and no spans.
	other := newSampled(trapID, 0, 0, 1, []int32{9}, []float32{})
	other.LossMask, other.PolicySpans, other.PolicyID = []bool{false, false}, nil, ptr("judge")
	require.Zero(t, written(t, other)[0].SampledTokens())
}

// T26: a message that two branches share is trained on in the first only.
func TestT26_SharedMessages(t *testing.T) {
	steps := []Step{newStep(trapID, 0, User, 5), newSampled(trapID, 1, 0, 1, []int32{9}, []float32{-1})}
	one, two := newStep(trapID, 2, User, 6), newStep(trapID, 4, User, 7)
	one.Turn, two.Turn = 1, 1
	a, b := newSampled(trapID, 3, 1, 1, []int32{9}, []float32{-1}), newSampled(trapID, 5, 1, 1, []int32{9}, []float32{-1})
	two.ParentStep, two.Branch, b.Branch = ptr(int32(1)), 1, 1
	steps = append(steps, one, a, two, b)
	require.NoError(t, CheckSteps(steps))
	require.Equal(t, []Branch{{ID: 0, Steps: []int{0, 1, 2, 3}}, {ID: 1, Steps: []int{0, 1, 4, 5}, Fresh: 2}}, Branches(steps))
	require.Equal(t, steps, denormal(steps, written(t, steps...)))
}

// denormal gives back the empty lists that a writer made of nil ones.
func denormal(want, got []Step) []Step {
	for i := range got {
		if want[i].PolicySpans != nil && got[i].PolicySpans == nil {
			got[i].PolicySpans = []PolicySpan{}
		}
	}
	return got
}

// T27: no advantage is null and not 0; null is never trained on.
func TestT27_UnassignedAdvantage(t *testing.T) {
	row := newLedgerRow(trapID)
	row.AdvantageScalar = ptr(0.0) // a group without variance
	w := NewWriter[LedgerRow](testMeta)
	require.NoError(t, w.Append(row))
	row.AdvantageScalar = nil
	refused(t, row, "advantage_scalar", "null on a trained sample")
	row = newLedgerRow(trapID)
	row.GroupMembersUsed, row.GroupMean = 0, nil
	refused(t, row, "group_members_used", "0 on a trained sample")
}

// T28: a verifier that timed out gives no reward, which is not 0.
func TestT28_MissingRewardIsNull(t *testing.T) {
	v := newVerdict(trapID, 0)
	v.Verdict, v.Reason, v.Score, v.Disposition = outcome.Indeterminate, VerifierTimeout, nil, outcome.Drop
	refused(t, v, "reward", "no judgement is not a 0")
	v.Reward = nil
	v.RewardComponents[0].Value = nil
	w := NewWriter[Verdict](testMeta)
	require.NoError(t, w.Append(v))
	roundTrip(t, w, []Verdict{v})

	for _, d := range []outcome.Disposition{outcome.Train, outcome.BaselineOnly} {
		v.Disposition = d
		refused(t, v, "disposition", "needs a judgement")
	}
	v.Disposition, v.Score = outcome.Drop, ptr(0.0)
	refused(t, v, "score", "must be null")
}

// T31: how much of a tool's output the model saw is recorded in bytes, with what was kept.
func TestT31_TruncationIsRecorded(t *testing.T) {
	s := newStep(trapID, 1, Tool, 5)
	s.ToolResult = &ToolResult{CallID: "c", Name: "bash", Status: ToolOK, StartedAt: testTime, BytesTotal: 70_000, BytesKept: 65_536, Truncated: true, Truncation: TruncHead}
	got := written(t, newStep(trapID, 0, User, 5), s)[1]
	require.Equal(t, s.ToolResult, got.ToolResult)

	for name, edit := range map[string]func(*ToolResult){
		"not told":       func(r *ToolResult) { r.Truncated, r.Truncation = false, TruncNone },
		"told wrongly":   func(r *ToolResult) { r.BytesKept = r.BytesTotal },
		"more than all":  func(r *ToolResult) { r.BytesKept = r.BytesTotal + 1 },
		"unit not given": func(r *ToolResult) { r.Truncation = TruncNone },
	} {
		t.Run(name, func(t *testing.T) {
			bad, r := s, *s.ToolResult
			edit(&r)
			bad.ToolResult = &r
			refused(t, bad, "tool_result.", "")
		})
	}
}

// T33: training reads the record, so that log-probabilities are exact float32.
func TestT33_LogprobsAreExact(t *testing.T) {
	want := []float32{-0.12345678, -math.SmallestNonzeroFloat32, -1e-7, 0, -float32(math.Ln2), -87.33654}
	ids := make([]int32, len(want))
	got := written(t, newSampled(trapID, 0, 0, 1, ids, want))[0].Logprobs
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "value %d", i)
	}
	for _, bad := range []float32{1e-9, float32(math.Inf(-1)), float32(math.Inf(1)), float32(math.NaN())} {
		s := newSampled(trapID, 0, 0, 1, []int32{9}, []float32{bad})
		refused(t, s, "logprobs", fmt.Sprint(bad)[:1])
	}
}

// T39: one row without log-probabilities is refused by itself; it costs the others nothing.
func TestT39_MissingLogprobsAreOneRowsFault(t *testing.T) {
	s := newSampled(trapID, 0, 0, 1, []int32{9, 9}, nil)
	refused(t, s, "logprobs", "are null, but 2 tokens are to be trained on")
	s.Logprobs = []float32{-1}
	refused(t, s, "logprobs", "1 values for 2 sampled tokens")

	rec := NewRecording(testMeta)
	good := newSteps(EpisodeID("run-1", 1, 0, 1), 2, 1, fixedRand())
	require.NoError(t, rec.Add(newEpisode(1, 0, good), good))
	bad := newSteps(EpisodeID("run-1", 1, 1, 1), 2, 1, fixedRand())
	bad[4].Logprobs = nil
	require.ErrorIs(t, rec.Add(newEpisode(1, 1, bad), bad), ErrInvalid)
	sealed, err := rec.Close()
	require.NoError(t, err)
	require.Equal(t, 5, sealed.Steps.Rows, "no row of the refused episode is left")
	require.Len(t, sealed.Refs, 1)
}

// T41: the same episode and branch is trained on once: the ledger shows it (see TestVerify_BrokenInvariants too), and a recording takes an episode once.
func TestT41_DuplicateDelivery(t *testing.T) {
	rec := NewRecording(testMeta)
	steps := newSteps(EpisodeID("run-1", 1, 0, 1), 2, 1, fixedRand())
	e := newEpisode(1, 0, steps)
	require.NoError(t, rec.Add(e, steps))
	err := rec.Add(e, steps)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "recorded before")

	p := newPlan()
	p.ledgers[0] = append(p.ledgers[0], p.ledgers[0][0])
	p.ledgers[0][len(p.ledgers[0])-1].Outcome = Duplicate // offered again, not trained again
	rep, err := Verify(t.Context(), p.write(t), "run-1", VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, rep.Findings)
}

// T42: the effective sampling values of the call are recorded, whatever becomes of the struct afterwards.
func TestT42_SamplingIsCopied(t *testing.T) {
	s := newSampled(trapID, 0, 0, 1, []int32{9}, []float32{-1})
	w := NewWriter[Step](testMeta)
	require.NoError(t, w.Append(s))
	s.Sampling.Temperature, s.TokenIDs[1] = 0.3, 77
	sh, err := w.Close()
	require.NoError(t, err)
	r, err := Open[Step](sh.Data, sh.Digest)
	require.NoError(t, err)
	rows, err := r.All()
	require.NoError(t, err)
	require.Equal(t, float32(1), rows[0].Sampling.Temperature)
	require.Equal(t, []int32{1, 9}, rows[0].TokenIDs)
}

// T44: values 1.0·1 and a required null·0.3 give null, not 0.7 or 1.0; an optional null is left out.
func TestT44_NullComponent(t *testing.T) {
	v := newVerdict(trapID, 1)
	v.RewardComponents = append(v.RewardComponents, RewardComponent{Name: "judge", Weight: 0.3, Source: FromJudge, Required: true})
	require.Nil(t, SumReward(v.RewardComponents))
	refused(t, v, "reward", "a required component is null")
	v.Reward = nil
	refused(t, v, "disposition", "the reward is null")
	v.Disposition = outcome.Drop
	require.NoError(t, NewWriter[Verdict](testMeta).Append(v))

	v.RewardComponents[1].Required = false
	require.InDelta(t, 1.0, *SumReward(v.RewardComponents), 0)
	refused(t, v, "reward", "is null, but its components sum to 1")
	v.Reward = ptr(0.7)
	refused(t, v, "reward", "is 0.7, but its components sum to 1")
	v.Reward, v.Disposition = ptr(1.0), outcome.Train
	require.NoError(t, NewWriter[Verdict](testMeta).Append(v))

	require.Nil(t, SumReward(nil), "no component is no reward")
	v.RewardComponents = nil
	refused(t, v, "reward", "or there is none")
}

// What else the writer refuses; each reason names the column.
func TestWriter_Refuses(t *testing.T) {
	step := func(edit func(*Step)) Step {
		s := newSampled(trapID, 1, 0, 1, []int32{9}, []float32{-1})
		edit(&s)
		return s
	}
	refused(t, step(func(s *Step) { s.EpisodeID, s.Step, s.ParentStep = "", 0, nil }), "episode_id", "is empty")
	refused(t, step(func(s *Step) { s.ParentStep = ptr(int32(1)) }), "parent_step", "not an earlier step")
	refused(t, step(func(s *Step) { s.Turn = 1 }), "turn", "0 messages were sampled before it")
	robot := newStep(trapID, 1, "robot", 5)
	refused(t, robot, "role", `"robot" is not one of`)
	refused(t, step(func(s *Step) { s.CreatedAt = time.Time{} }), "created_at", "is not set")
	refused(t, step(func(s *Step) { s.PromptPrefixSHA256 = "sha256:1" }), "prompt_prefix_sha256", "is not a digest")
	refused(t, step(func(s *Step) { s.Sampling = nil }), "sampling", "must be null exactly")
	refused(t, step(func(s *Step) { s.FinishReason = "" }), "finish_reason", "must be null exactly")
	refused(t, step(func(s *Step) { s.MessageJSON += " " }), "message_hash", "not that of message_json")
	refused(t, step(func(s *Step) { s.Sampling.Temperature = float32(math.NaN()) }), "sampling.temperature", "not finite")
	refused(t, step(func(s *Step) { s.NScaffold = -1 }), "n_scaffold", "-1")
	refused(t, step(func(s *Step) { s.Role = User }), "loss_mask", "is true on a user row")
	tool := newStep(trapID, 1, User, 5)
	tool.ToolCalls = []ToolCall{{ID: "c"}}
	refused(t, tool, "tool_calls", "on a user row")

	w := NewWriter[Step](testMeta)
	require.NoError(t, w.Append(newStep("run-1/a", 0, User, 5)))
	require.NoError(t, w.Append(newStep("run-1/b", 0, User, 5)))
	require.ErrorContains(t, w.Append(newStep("run-1/a", 1, User, 5)), "rows are not contiguous")
	require.ErrorContains(t, w.Append(newStep("run-1/b", 2, User, 5)), "want 1: steps count from 0")
	require.NoError(t, w.Append(newStep("run-1/b", 1, User, 5)), "a refused row changes nothing")
	_, err := w.Close()
	require.NoError(t, err)
	require.Error(t, w.Append(newStep("run-1/c", 0, User, 5)))

	steps := newSteps(trapID, 2, 1, fixedRand())
	episode := func(edit func(*Episode)) Episode {
		e := newEpisode(1, 0, steps)
		e.StepsRef.Object = digest("x")
		edit(&e)
		return e
	}
	refused(t, episode(func(e *Episode) { e.Attempt = 0 }), "attempt", "below 1")
	refused(t, episode(func(e *Episode) { e.GroupIndex = 16 }), "group_index", "outside the group of 16")
	refused(t, episode(func(e *Episode) { e.EndClass = outcome.ClassLimit }), "end_class", "stop is of class model")
	refused(t, episode(func(e *Episode) { e.EndReason, e.EndClass = outcome.EnvCrash, outcome.ClassEnvironment }), "infra_error", "is null")
	refused(t, episode(func(e *Episode) { e.PolicyVersionMin = nil }), "policy_version_min", "null together")
	refused(t, episode(func(e *Episode) { e.TaskDigest = "" }), "task_digest", "not a digest")
	refused(t, episode(func(e *Episode) { e.Sidecars = []Sidecar{{Kind: "film", SHA256: digest("x")}} }), "sidecars[0].kind", "not one of")

	note := Annotation{EpisodeID: trapID, Producer: ByTrainer, At: testTime, Entropy: []float32{1}, Advantages: []float32{1, 2}}
	refused(t, note, "advantages", "2 values, the streams before it 1")
}

// Text that is no UTF-8 is stored as a view of it; nothing is lost of what is exact.
func TestWriter_BinaryText(t *testing.T) {
	s := newStep(trapID, 0, User, 5)
	s.Content = ptr("ok \xff\xfe \x00 end")
	got := written(t, s)[0]
	require.Equal(t, "ok \uFFFD \x00 end", *got.Content)
	require.Equal(t, s.TokenIDs, got.TokenIDs)
	require.True(t, strings.HasPrefix(s.MessageJSON, got.MessageJSON))
}
