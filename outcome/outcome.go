// Package outcome relates how an episode ended and how it was judged to what training may do with it.
//
// It is a leaf: the vocabulary of verdicts, end reasons and dispositions, and the one table that relates them.
package outcome

import "fmt"

// Verdict is a judgement of an episode; infrastructure trouble is never Fail.
type Verdict string

// The verdicts. NotRun is the verdict of an episode that never reached a verifier.
const (
	Pass          Verdict = "pass"
	Fail          Verdict = "fail"
	Indeterminate Verdict = "indeterminate"
	NotRun        Verdict = "not_run"
)

// Verdicts is the complete enumeration in its fixed order.
var Verdicts = []string{"pass", "fail", "indeterminate", "not_run"}

// EndClass says whose doing an end was.
type EndClass string

// The end classes.
const (
	ClassModel       EndClass = "model"
	ClassLimit       EndClass = "limit"
	ClassEnvironment EndClass = "environment"
	ClassVerifier    EndClass = "verifier"
	ClassPlatform    EndClass = "platform"
	ClassTask        EndClass = "task"
	ClassOperator    EndClass = "operator"
)

// EndClasses is the complete enumeration in its fixed order.
var EndClasses = []string{"model", "limit", "environment", "verifier", "platform", "task", "operator"}

// EndReason says how an episode ended.
type EndReason string

// The end reasons, grouped by class.
const (
	Stop        EndReason = "stop"
	ToolStop    EndReason = "tool_stop"
	Forfeit     EndReason = "forfeit"
	FormatError EndReason = "format_error"

	MaxTokens       EndReason = "max_tokens"
	ContextOverflow EndReason = "context_overflow"
	MaxTurns        EndReason = "max_turns"
	WallClock       EndReason = "wall_clock_agent"
	SandboxLimit    EndReason = "sandbox_limit" // memory, pids, disk or output spent by the episode's own processes

	EnvCrash    EndReason = "env_crash"
	EnvTimeout  EndReason = "env_timeout"
	EnvRefused  EndReason = "env_refused"
	ToolBackend EndReason = "tool_backend_down"

	VerifierTimeout EndReason = "verifier_timeout"
	VerifierCrash   EndReason = "verifier_crash"
	RewardMissing   EndReason = "reward_missing"
	MalformedReward EndReason = "malformed_reward"

	WorkerLost   EndReason = "worker_lost"
	HostLost     EndReason = "host_lost" // the environment host went away, and the sandbox with it
	VerifierLost EndReason = "verifier_lost"
	LeaseExpired EndReason = "lease_expired"
	EngineError  EndReason = "engine_error"
	UploadFailed EndReason = "upload_failed"
	StaleCancel  EndReason = "stale_cancelled"
	PlatformWait EndReason = "platform_timeout"

	Unsolvable      EndReason = "unsolvable"
	TaskSetupFailed EndReason = "task_setup_failed"

	Cancelled EndReason = "cancelled"
	Drained   EndReason = "drained"
)

// Disposition says what training may do with an episode.
type Disposition string

// The dispositions.
const (
	Train        Disposition = "train"         // in group statistics, loss and denominator
	BaselineOnly Disposition = "baseline_only" // in group statistics only
	Mask         Disposition = "mask"          // in none; not replaced
	Drop         Disposition = "drop"          // in none; replaced by the short-group rule
)

// Dispositions is the complete enumeration in its fixed order.
var Dispositions = []string{"train", "baseline_only", "mask", "drop"}

// InStatistics reports whether the member counts in its group's mean and deviation.
func (d Disposition) InStatistics() bool { return d == Train || d == BaselineOnly }

// InLoss reports whether the member's tokens enter the loss and its denominator.
func (d Disposition) InLoss() bool { return d == Train }

// row is one line of the table.
type row struct {
	class  EndClass
	judged bool        // a verifier runs
	dflt   Disposition // when judged and not indeterminate
}

var table = map[EndReason]row{
	Stop: {ClassModel, true, Train}, ToolStop: {ClassModel, true, Train}, Forfeit: {ClassModel, true, Train}, FormatError: {ClassModel, true, Train},
	MaxTokens: {ClassLimit, true, Mask}, ContextOverflow: {ClassLimit, true, Mask}, MaxTurns: {ClassLimit, true, Train},
	WallClock: {ClassLimit, true, Mask}, SandboxLimit: {ClassLimit, true, Train},
	EnvCrash: {ClassEnvironment, false, Drop}, EnvTimeout: {ClassEnvironment, false, Drop}, EnvRefused: {ClassEnvironment, false, Drop}, ToolBackend: {ClassEnvironment, false, Drop},
	VerifierTimeout: {ClassVerifier, true, Drop}, VerifierCrash: {ClassVerifier, true, Drop}, RewardMissing: {ClassVerifier, true, Drop}, MalformedReward: {ClassVerifier, true, Drop},
	WorkerLost: {ClassPlatform, false, Drop}, HostLost: {ClassPlatform, false, Drop}, VerifierLost: {ClassPlatform, false, Drop}, LeaseExpired: {ClassPlatform, false, Drop}, EngineError: {ClassPlatform, false, Drop},
	UploadFailed: {ClassPlatform, false, Drop}, StaleCancel: {ClassPlatform, false, Drop}, PlatformWait: {ClassPlatform, false, Drop},
	Unsolvable: {ClassTask, false, Drop}, TaskSetupFailed: {ClassTask, false, Drop},
	Cancelled: {ClassOperator, false, Drop}, Drained: {ClassOperator, false, Drop},
}

// EndReasons is the complete enumeration in its fixed order.
var EndReasons = []string{
	"stop", "tool_stop", "forfeit", "format_error",
	"max_tokens", "context_overflow", "max_turns", "wall_clock_agent", "sandbox_limit",
	"env_crash", "env_timeout", "env_refused", "tool_backend_down",
	"verifier_timeout", "verifier_crash", "reward_missing", "malformed_reward",
	"worker_lost", "host_lost", "verifier_lost", "lease_expired", "engine_error", "upload_failed", "stale_cancelled", "platform_timeout",
	"unsolvable", "task_setup_failed", "cancelled", "drained",
}

// Class returns the end class of a reason; an unknown reason is an error.
func Class(r EndReason) (EndClass, error) {
	e, ok := table[r]
	if !ok {
		return "", fmt.Errorf("outcome: unknown end reason %q", r)
	}
	return e.class, nil
}

// Judged reports whether an episode that ended so goes to a verifier.
func Judged(r EndReason) bool { return table[r].judged }

// Decide returns the disposition of an episode that ended with r and was
// judged v. on overrides the default of a limit reason; it applies to pass and
// fail alike. An indeterminate or missing verdict is always Drop: it has no
// reward to train on (invariant I5).
func Decide(r EndReason, v Verdict, on map[EndReason]Disposition) Disposition {
	e, ok := table[r]
	if !ok || !e.judged || v == Indeterminate || v == NotRun || v == "" {
		return Drop
	}
	if d, set := on[r]; set && e.class == ClassLimit {
		return d
	}
	return e.dflt
}
