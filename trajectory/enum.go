package trajectory

import (
	"reflect"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
)

// Enumerations that only the record has; those of endings and judgements are package outcome's.
type (
	Split           string
	LogprobsMode    string
	Role            string
	ToolStatus      string
	Truncation      string
	FinishReason    string
	StopKind        string
	ComponentSource string
	SidecarKind     string
	VerdictReason   string
	CheckStatus     string
	EvidenceKind    string
	Producer        string
	LedgerOutcome   string
)

// Splits of the tasks.
const (
	SplitTrain Split = "train"
	SplitEval  Split = "eval"
	SplitDebug Split = "debug"
)

// What log-probabilities are of: the distribution sampled from, or the one before temperature and filters.
const (
	RawLogprobs       LogprobsMode = "raw_logprobs"
	ProcessedLogprobs LogprobsMode = "processed_logprobs"
)

// Roles of messages.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// How a tool call went. InfraError is never the model's doing.
const (
	ToolOK           ToolStatus = "ok"
	ToolError        ToolStatus = "tool_error"
	ToolTimeout      ToolStatus = "timeout"
	ToolCancelled    ToolStatus = "cancelled"
	ToolInfraError   ToolStatus = "infra_error"
	ToolUnknown      ToolStatus = "unknown_tool"
	ToolBadArguments ToolStatus = "bad_arguments"
)

// Which part of a tool's output was kept, or in what unit it was cut.
const (
	TruncNone     Truncation = "none"
	TruncHead     Truncation = "head"
	TruncTail     Truncation = "tail"
	TruncHeadTail Truncation = "head_tail"
	TruncChars    Truncation = "chars"
	TruncLines    Truncation = "lines"
	TruncTokens   Truncation = "tokens"
)

// Why a sampled message ended.
const (
	FinishStop          FinishReason = "stop"
	FinishLength        FinishReason = "length"
	FinishToolCalls     FinishReason = "tool_calls"
	FinishAbort         FinishReason = "abort"
	FinishContentFilter FinishReason = "content_filter"
	FinishError         FinishReason = "error"
)

// What made a message stop.
const (
	StopEOS    StopKind = "eos"
	StopToken  StopKind = "stop_token"
	StopString StopKind = "stop_string"
)

// Where a reward component comes from.
const (
	FromVerifier ComponentSource = "verifier"
	FromJudge    ComponentSource = "judge"
	FromShaping  ComponentSource = "shaping"
	FromPenalty  ComponentSource = "penalty"
	FromHuman    ComponentSource = "human"
)

// What a sidecar object holds.
const (
	SidecarRoutedExperts SidecarKind = "routed_experts"
	SidecarSamplingMask  SidecarKind = "sampling_mask"
	SidecarToolOutput    SidecarKind = "tool_output"
	SidecarArtifact      SidecarKind = "artifact"
	SidecarVideo         SidecarKind = "video"
)

// Why a verdict is what it is.
const (
	ChecksPassed      VerdictReason = "checks_passed"
	ChecksFailed      VerdictReason = "checks_failed"
	NoArtifact        VerdictReason = "no_artifact"
	VerifierTimeout   VerdictReason = "verifier_timeout"
	VerifierCrash     VerdictReason = "verifier_crash"
	SandboxFailure    VerdictReason = "sandbox_failure"
	MalformedOutput   VerdictReason = "malformed_output"
	JudgeDisagreement VerdictReason = "judge_disagreement"
	Flaky             VerdictReason = "flaky"
	Tampering         VerdictReason = "tampering_detected"
	UnsolvableTask    VerdictReason = "unsolvable_task"
)

// How one check of a verifier went.
const (
	CheckPass  CheckStatus = "pass"
	CheckFail  CheckStatus = "fail"
	CheckError CheckStatus = "error"
	CheckSkip  CheckStatus = "skip"
)

// What a piece of evidence is.
const (
	EvidenceStdout EvidenceKind = "stdout"
	EvidenceStderr EvidenceKind = "stderr"
	EvidenceDiff   EvidenceKind = "diff"
	EvidenceJUnit  EvidenceKind = "junit"
	EvidenceCTRF   EvidenceKind = "ctrf"
	EvidenceJudge  EvidenceKind = "judge_transcript"
	EvidenceFile   EvidenceKind = "file"
	EvidenceMetric EvidenceKind = "metric"
)

// Who wrote an annotation.
const (
	ByCoordinator Producer = "coordinator"
	ByPacker      Producer = "packer"
	ByTrainer     Producer = "trainer"
	ByJudge       Producer = "judge"
	ByHuman       Producer = "human"
)

// What became of a sample that was offered to a step.
const (
	Trained         LedgerOutcome = "trained"
	DroppedStale    LedgerOutcome = "dropped_stale"
	DroppedOverlong LedgerOutcome = "dropped_overlong"
	DroppedZeroAdv  LedgerOutcome = "dropped_zero_adv"
	DroppedInfra    LedgerOutcome = "dropped_infra"
	Duplicate       LedgerOutcome = "duplicate"
)

// enums holds every enumeration, complete and in its fixed order, by Go type.
// New values are appended, so that an index keeps its meaning.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[outcome.Verdict]():     outcome.Verdicts,
	reflect.TypeFor[outcome.EndClass]():    outcome.EndClasses,
	reflect.TypeFor[outcome.EndReason]():   endReasons(),
	reflect.TypeFor[outcome.Disposition](): outcome.Dispositions,

	reflect.TypeFor[Split]():           {"train", "eval", "debug"},
	reflect.TypeFor[LogprobsMode]():    {"raw_logprobs", "processed_logprobs"},
	reflect.TypeFor[Role]():            {"system", "user", "assistant", "tool"},
	reflect.TypeFor[ToolStatus]():      {"ok", "tool_error", "timeout", "cancelled", "infra_error", "unknown_tool", "bad_arguments"},
	reflect.TypeFor[Truncation]():      {"none", "head", "tail", "head_tail", "chars", "lines", "tokens"},
	reflect.TypeFor[FinishReason]():    {"stop", "length", "tool_calls", "abort", "content_filter", "error"},
	reflect.TypeFor[StopKind]():        {"eos", "stop_token", "stop_string"},
	reflect.TypeFor[ComponentSource](): {"verifier", "judge", "shaping", "penalty", "human"},
	reflect.TypeFor[SidecarKind]():     {"routed_experts", "sampling_mask", "tool_output", "artifact", "video"},
	reflect.TypeFor[VerdictReason](): {
		"checks_passed", "checks_failed", "no_artifact", "verifier_timeout", "verifier_crash", "sandbox_failure",
		"malformed_output", "judge_disagreement", "flaky", "tampering_detected", "unsolvable_task",
	},
	reflect.TypeFor[CheckStatus]():   {"pass", "fail", "error", "skip"},
	reflect.TypeFor[EvidenceKind]():  {"stdout", "stderr", "diff", "junit", "ctrf", "judge_transcript", "file", "metric"},
	reflect.TypeFor[Producer]():      {"coordinator", "packer", "trainer", "judge", "human"},
	reflect.TypeFor[LedgerOutcome](): {"trained", "dropped_stale", "dropped_overlong", "dropped_zero_adv", "dropped_infra", "duplicate"},
}

// endReasons are those this build can produce, then those that other tiers and
// agents will: a shard that has them must not need a new schema.
func endReasons() []string {
	return append(slices.Clone(outcome.EndReasons),
		"loop_detected", "max_tool_calls", "cost_cap", "env_oom", "image_pull_failed", "preempted", "answer_leaked")
}
