package trajectory

import (
	"time"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
)

// Episode is one attempt of one member of a group. How it was judged is in its Verdict row.
type Episode struct {
	RunID            string        `col:"run_id" doc:"run"`
	ExperimentDigest policy.Digest `col:"experiment_digest" doc:"of the canonical experiment file"`
	EpisodeID        string        `col:"episode_id" doc:"unique for each attempt: run/group/index/attempt"`
	ParentEpisodeID  *string       `col:"parent_episode_id,null" doc:"episode that started this one (sub-agent or fork)"`
	RetryOfEpisodeID *string       `col:"retry_of_episode_id,null" doc:"earlier attempt of the same member"`
	Attempt          int32         `col:"attempt" doc:"1-based"`
	LeaseID          string        `col:"lease_id" doc:"resource of the lease under which it ran"`
	LeaseEpoch       int64         `col:"lease_epoch" doc:"fence of that lease"`
	WorkerID         string        `col:"worker_id" doc:"node that ran it"`
	WorkerBuild      string        `col:"worker_build" doc:"build of that node's program"`
	EnvID            string        `col:"env_id" doc:"env of the experiment"`
	EnvVersion       string        `col:"env_version" doc:"version or tier of the environment"`
	TaskID           string        `col:"task_id" doc:"task within the env"`
	TaskDigest       policy.Digest `col:"task_digest" doc:"of the task's content"`
	Split            Split         `col:"split" doc:"part of the tasks it belongs to"`
	GroupID          *string       `col:"group_id,null" doc:"run/group; null outside group algorithms"`
	GroupSize        int32         `col:"group_size" doc:"planned members of the group"`
	GroupIndex       int32         `col:"group_index" doc:"which member this is, from 0"`
	Seed             int64         `col:"seed" doc:"of the environment"`
	SamplingSeed     *int64        `col:"sampling_seed,null" doc:"of the engine; null when it draws without one"`
	PolicyID         string        `col:"policy_id" doc:"which policy of the run acted, for example actor"`

	PolicyVersionDispatch policy.Version  `col:"policy_version_dispatch" doc:"live when the episode was leased"`
	PolicyVersionMin      *policy.Version `col:"policy_version_min,null" doc:"lowest over the sampled tokens; null when none was sampled"`
	PolicyVersionMax      *policy.Version `col:"policy_version_max,null" doc:"highest over the sampled tokens; null when none was sampled"`

	BaseModelDigest    policy.Digest `col:"base_model_digest" doc:"of version 0"`
	TokenizerDigest    policy.Digest `col:"tokenizer_digest" doc:"of the tokenizer's files"`
	ChatTemplateDigest policy.Digest `col:"chat_template_digest" doc:"of the chat template"`
	RendererDigest     policy.Digest `col:"renderer_digest" doc:"of what turns messages into tokens"`
	ToolsDigest        policy.Digest `col:"tools_digest" doc:"of the tool schemas shown to the model"`
	EnvImageDigest     policy.Digest `col:"env_image_digest" doc:"of the sandbox template or image"`
	HarnessDigest      policy.Digest `col:"harness_digest" doc:"of the agent driver and its settings"`
	Engine             Engine        `col:"engine" doc:"what sampled, for triage of mismatches"`
	LogprobsMode       LogprobsMode  `col:"logprobs_mode" doc:"processed: of the distribution sampled from (trap T3)"`

	NSteps                int32 `col:"n_steps" doc:"rows in steps"`
	NTurns                int32 `col:"n_turns" doc:"sampled messages"`
	NBranches             int32 `col:"n_branches" doc:"leaves of the message tree"`
	NToolCalls            int32 `col:"n_tool_calls" doc:"tool calls asked for"`
	NToolErrors           int32 `col:"n_tool_errors" doc:"tool rows whose status is not ok"`
	NPromptTokens         int64 `col:"n_prompt_tokens" doc:"stored tokens that the policy did not sample"`
	NSampledTokens        int64 `col:"n_sampled_tokens" doc:"tokens the policy sampled: true in loss_mask"`
	NContextTokensMax     int64 `col:"n_context_tokens_max" doc:"longest prompt plus continuation"`
	NTruncatedToolOutputs int32 `col:"n_truncated_tool_outputs" doc:"tool rows that were cut"`

	EndClass   outcome.EndClass  `col:"end_class" doc:"whose doing the end was"`
	EndReason  outcome.EndReason `col:"end_reason" doc:"how it ended"`
	InfraError *InfraError       `col:"infra_error,null" doc:"null when there was no infrastructure fault"`

	StartedAt    *time.Time    `col:"started_at,null" doc:"sandbox claimed, by the worker's clock"`
	FirstTokenAt *time.Time    `col:"first_token_at,null" doc:"first sampled message returned"`
	FinishedAt   *time.Time    `col:"finished_at,null" doc:"last step done"`
	CommittedAt  time.Time     `col:"committed_at" doc:"handed over for commit, by the worker's clock; the log's time is in the seal event"`
	Time         EpisodeTime   `col:"time" doc:"where the time went"`
	Resources    *Resources    `col:"resources,null" doc:"what the sandbox used; null when not measured"`
	Usage        Usage         `col:"usage" doc:"as the engine reports it; reconciles with the token lists"`
	StepsRef     Ref           `col:"steps_ref" doc:"its rows in steps"`
	Artifacts    policy.Digest `col:"artifacts,null" doc:"what was copied out of the sandbox for the verifier; null when nothing was"`
	Sidecars     []Sidecar     `col:"sidecars" doc:"large objects that belong to it"`
	Tags         []string      `col:"tags" doc:"free labels"`
	ExtraJSON    *string       `col:"extra_json,null" doc:"anything else, as JSON"`
}

// Engine says what sampled.
type Engine struct {
	Name          string        `col:"name" doc:"kind of engine"`
	Version       string        `col:"version" doc:"of the engine"`
	Dtype         string        `col:"dtype" doc:"of weights and activations"`
	TP            int32         `col:"tp" doc:"tensor parallel size"`
	KVDtype       string        `col:"kv_dtype" doc:"of the key-value cache"`
	PrefixCache   bool          `col:"prefix_cache" doc:"whether prompts may be served from a prefix cache"`
	PolicyID      string        `col:"policy_id" doc:"policy it serves"`
	AdapterDigest policy.Digest `col:"adapter_digest,null" doc:"adapter loaded at dispatch; null when none"`
	Speculative   *string       `col:"speculative,null" doc:"speculative decoding in use; null when none"`
	Quantization  *string       `col:"quantization,null" doc:"of the weights; null when none"`
}

// InfraError describes a fault that was not the model's doing.
type InfraError struct {
	Component string  `col:"component" doc:"engine, sandbox, store, worker …"`
	Code      string  `col:"code" doc:"kind of the error"`
	Message   string  `col:"message" doc:"one line"`
	Retryable bool    `col:"retryable" doc:"whether another attempt may succeed"`
	StackRef  *string `col:"stack_ref,null" doc:"object with more"`
}

// EpisodeTime says where the time of an episode went.
type EpisodeTime struct {
	LeaseWait time.Duration `col:"lease_wait_ns" doc:"leased until started"`
	EnvBoot   time.Duration `col:"env_boot_ns" doc:"claiming the sandbox"`
	EnvSetup  time.Duration `col:"env_setup_ns" doc:"preparing it"`
	Model     time.Duration `col:"model_ns" doc:"waiting for tokens"`
	Tool      time.Duration `col:"tool_ns" doc:"running tools"`
	Verify    time.Duration `col:"verify_ns" doc:"collecting what the verifier needs"`
	Upload    time.Duration `col:"upload_ns" doc:"storing artifacts"`
}

// Resources are what a sandbox used.
type Resources struct {
	CPU         time.Duration `col:"cpu_ns" doc:"CPU time"`
	MemPeak     int64         `col:"mem_peak_bytes" doc:"highest resident memory"`
	DiskWrite   int64         `col:"disk_write_bytes" doc:"written"`
	NetRx       int64         `col:"net_rx_bytes" doc:"received"`
	NetTx       int64         `col:"net_tx_bytes" doc:"sent"`
	SandboxWall time.Duration `col:"sandbox_wall_ns" doc:"claimed until released"`
}

// Usage counts tokens as the engine reports them.
type Usage struct {
	Input       int64 `col:"input_tokens" doc:"prompt tokens over all calls"`
	CachedInput int64 `col:"cached_input_tokens" doc:"of them served from a prefix cache"`
	Output      int64 `col:"output_tokens" doc:"sampled tokens over all calls"`
	Reasoning   int64 `col:"reasoning_tokens" doc:"of them reasoning"`
}

// Sidecar is a large object that belongs to an episode.
type Sidecar struct {
	Kind   SidecarKind   `col:"kind" doc:"what it holds"`
	Object string        `col:"object" doc:"key in the store"`
	SHA256 policy.Digest `col:"sha256" doc:"its digest"`
	Bytes  int64         `col:"bytes" doc:"its size"`
}

func (r *Episode) check(f *fault) {
	f.episode = r.EpisodeID
	f.require(r.EpisodeID != "", "episode_id", "is empty")
	f.require(r.Attempt >= 1, "attempt", "%d is below 1", r.Attempt)
	f.require(r.GroupSize >= 1 && r.GroupIndex >= 0 && r.GroupIndex < r.GroupSize, "group_index", "%d is outside the group of %d", r.GroupIndex, r.GroupSize)
	f.require((r.PolicyVersionMin == nil) == (r.PolicyVersionMax == nil), "policy_version_min", "and _max must be null together")
	if r.PolicyVersionMin != nil && r.PolicyVersionMax != nil {
		f.require(*r.PolicyVersionMin >= 0 && *r.PolicyVersionMin <= *r.PolicyVersionMax, "policy_version_min", "%d is above _max %d or negative", *r.PolicyVersionMin, *r.PolicyVersionMax)
	}
	f.require((r.NSampledTokens > 0) == (r.PolicyVersionMin != nil), "policy_version_min", "must be null exactly when no token was sampled (%d were)", r.NSampledTokens)
	f.require(r.NSteps >= 0 && r.NTurns >= 0 && r.NTurns <= r.NSteps, "n_turns", "%d of %d steps", r.NTurns, r.NSteps)
	f.require(r.StepsRef.Rows == r.NSteps, "steps_ref", "names %d rows of %d steps", r.StepsRef.Rows, r.NSteps)
	if class, err := outcome.Class(r.EndReason); err == nil {
		f.require(class == r.EndClass, "end_class", "is %s, but %s is of class %s", r.EndClass, r.EndReason, class)
	}
	// Blame (invariant I5): an end of class environment or platform carries its evidence.
	if r.EndClass == outcome.ClassEnvironment || r.EndClass == outcome.ClassPlatform {
		f.require(r.InfraError != nil, "infra_error", "is null, but the end is of class %s", r.EndClass)
	}
}
