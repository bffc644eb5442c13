package trajectory

import (
	"time"

	"github.com/rlfleet/rlfleet/policy"
)

// Step is one message of an episode's tree: what it adds to the context, never the whole prompt.
type Step struct {
	EpisodeID     string  `col:"episode_id" doc:"rows of an episode are contiguous and ordered by step"`
	Step          int32   `col:"step" doc:"0-based index of the message"`
	ParentStep    *int32  `col:"parent_step,null" doc:"message before it; null at a root; several children make branches"`
	Turn          int32   `col:"turn" doc:"sampled messages before it on its path"`
	Branch        int32   `col:"branch" doc:"first branch that reaches it, from 0"`
	Role          Role    `col:"role" doc:"who speaks"`
	Sampled       bool    `col:"sampled" doc:"made by our policy; an injected assistant message has false"`
	CopiedContext bool    `col:"copied_context" doc:"repeated from elsewhere; never trained on"`
	Content       *string `col:"content,null" doc:"decoded view of the message; never encoded again"`
	Reasoning     *string `col:"reasoning,null" doc:"decoded view of the reasoning"`

	MessageJSON string      `col:"message_json" doc:"canonical chat message as sent or received"`
	MessageHash [16]byte    `col:"message_hash" doc:"first half of the sha256 of message_json, see HashMessage"`
	ToolCalls   []ToolCall  `col:"tool_calls" doc:"calls asked for by this message"`
	ToolResult  *ToolResult `col:"tool_result,null" doc:"only on tool rows"`

	TokenIDs    []int32      `col:"token_ids,null" doc:"ids this message adds, template scaffold included; null: the engine gave none (never trained on)"`
	NScaffold   int32        `col:"n_scaffold" doc:"leading ids that are not content"`
	LossMask    []bool       `col:"loss_mask,null" doc:"as long as token_ids; true only for tokens our trained policy sampled"`
	Logprobs    []float32    `col:"logprobs,null" doc:"compact: one for each true in loss_mask, natural logarithm, as sampled, exact float32"`
	PolicySpans []PolicySpan `col:"policy_spans" doc:"which version made which of the sampled tokens; sorted, gapless, total is the number of true in loss_mask"`

	PolicyID      *string       `col:"policy_id,null" doc:"policy that sampled it; null when not sampled"`
	AdapterDigest policy.Digest `col:"adapter_digest,null" doc:"adapter in use; null when none"`
	Speculative   *string       `col:"speculative,null" doc:"speculative decoding in use; null when none"`
	Quantization  *string       `col:"quantization,null" doc:"of the weights in use; null when none"`

	Sampling     *Sampling    `col:"sampling,null" doc:"effective values of the call; sampled rows only"`
	FinishReason FinishReason `col:"finish_reason,null" doc:"why the sampled message ended; sampled rows only"`
	StopMatch    *StopMatch   `col:"stop_match,null" doc:"what stopped it; null when it was not stopped"`
	NPreempted   int32        `col:"n_preempted" doc:"times it was preempted"`
	NResumed     int32        `col:"n_resumed" doc:"times it was continued on a new version"`

	PromptLen          *int32        `col:"prompt_len,null" doc:"tokens of the full prompt the engine saw; sampled rows only"`
	PromptPrefixSHA256 policy.Digest `col:"prompt_prefix_sha256,null" doc:"of the full prompt ids, little-endian int32, see HashTokens"`
	Time               StepTime      `col:"time" doc:"where the time went"`
	CreatedAt          time.Time     `col:"created_at" doc:"message complete, by the worker's clock"`
	InfraRetry         int32         `col:"infra_retry" doc:"transparent retries before it succeeded"`
	ExtraJSON          *string       `col:"extra_json,null" doc:"anything else, as JSON"`
}

// ToolCall is one call as the model wrote it.
type ToolCall struct {
	ID         string  `col:"id" doc:"answered by tool_result.call_id"`
	Name       string  `col:"name" doc:"tool"`
	Arguments  string  `col:"arguments" doc:"raw, also when it does not parse"`
	ValidJSON  bool    `col:"valid_json" doc:"whether arguments parse"`
	ParseError *string `col:"parse_error,null" doc:"why not"`
}

// ToolResult is what a tool answered, and how much of it the model was shown.
type ToolResult struct {
	CallID       string        `col:"call_id" doc:"of the call it answers"`
	Name         string        `col:"name" doc:"tool"`
	Status       ToolStatus    `col:"status" doc:"how it went"`
	ExitCode     *int32        `col:"exit_code,null" doc:"of a command"`
	StartedAt    time.Time     `col:"started_at" doc:"by the worker's clock"`
	Duration     time.Duration `col:"duration_ns" doc:"wall time"`
	BytesTotal   int64         `col:"bytes_total" doc:"bytes the tool wrote"`
	BytesKept    int64         `col:"bytes_kept" doc:"of them shown to the model"`
	Truncated    bool          `col:"truncated" doc:"bytes_kept is below bytes_total"`
	Truncation   Truncation    `col:"truncation" doc:"which part was kept, or the unit of the cap"`
	OutputRef    *string       `col:"output_ref,null" doc:"object with the whole output"`
	OutputSHA256 policy.Digest `col:"output_sha256,null" doc:"of the whole output"`
}

// PolicySpan is a policy.Span with what else is known of those tokens.
type PolicySpan struct {
	Start         int32           `col:"start" doc:"offset within the sampled tokens of this message"`
	Length        int32           `col:"length" doc:"number of tokens"`
	PolicyVersion policy.Version  `col:"policy_version" doc:"version that made them"`
	KVVersionMin  *policy.Version `col:"kv_version_min,null" doc:"oldest version whose keys and values they attended to; null when not known"`
	EngineReplica *string         `col:"engine_replica,null" doc:"engine that made them"`
}

// Sampling holds the effective values of one call.
type Sampling struct {
	Temperature       float32  `col:"temperature" doc:"0 is greedy"`
	TopP              float32  `col:"top_p" doc:"1 keeps all"`
	TopK              int32    `col:"top_k" doc:"0 keeps all"`
	MinP              float32  `col:"min_p" doc:"0 keeps all"`
	RepetitionPenalty float32  `col:"repetition_penalty" doc:"1 is none"`
	PresencePenalty   float32  `col:"presence_penalty" doc:"0 is none"`
	FrequencyPenalty  float32  `col:"frequency_penalty" doc:"0 is none"`
	MaxTokens         int32    `col:"max_tokens" doc:"most tokens of the call"`
	Stop              []string `col:"stop" doc:"stop strings"`
	StopTokenIDs      []int32  `col:"stop_token_ids" doc:"stop tokens"`
	Seed              *int64   `col:"seed,null" doc:"of the call"`
}

// StopMatch says what stopped a message.
type StopMatch struct {
	Kind    StopKind `col:"kind" doc:"end of sequence, stop token or stop string"`
	TokenID *int32   `col:"token_id,null" doc:"the last sampled token, where a token stopped it"`
	Text    *string  `col:"text,null" doc:"the stop string; content may omit it, token_ids never do"`
}

// StepTime says where the time of one message went.
type StepTime struct {
	Queue   time.Duration `col:"queue_ns" doc:"waiting for the engine"`
	Prefill time.Duration `col:"prefill_ns" doc:"reading the prompt"`
	Decode  time.Duration `col:"decode_ns" doc:"sampling"`
	Tool    time.Duration `col:"tool_ns" doc:"running the tool"`
	Render  time.Duration `col:"render_ns" doc:"turning messages into tokens"`
}

// NewSpans turns an engine's spans into those of the record; replica may be empty.
func NewSpans(spans []policy.Span, replica string) []PolicySpan {
	out := make([]PolicySpan, len(spans))
	for i, s := range spans {
		out[i] = PolicySpan{Start: s.Start, Length: s.Length, PolicyVersion: s.Version}
		if replica != "" {
			out[i].EngineReplica = &replica
		}
	}
	return out
}

// VersionSpans returns who made which of the sampled tokens.
func (r *Step) VersionSpans() []policy.Span {
	out := make([]policy.Span, len(r.PolicySpans))
	for i, s := range r.PolicySpans {
		out[i] = policy.Span{Start: s.Start, Length: s.Length, Version: s.PolicyVersion}
	}
	return out
}

// SampledTokens counts the true entries of the loss mask.
func (r *Step) SampledTokens() int {
	n := 0
	for _, m := range r.LossMask {
		if m {
			n++
		}
	}
	return n
}
