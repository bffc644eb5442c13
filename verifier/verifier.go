// Package verifier judges what an episode left behind, in a sandbox of its own.
//
// Judge runs a task's tests against copies of the declared artifacts and
// answers pass, fail or indeterminate. Trouble of the judge or the platform is
// never a fail: a timeout, a crash, a dead sandbox or a missing or malformed
// reward is indeterminate, without a reward (invariant I5).
package verifier

import (
	"errors"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/task"
)

// ErrInfrastructure reports that no judgement could be attempted or finished:
// no sandbox, a host that restarted, a lost lease, the caller's deadline.
// Nothing is known about the episode; the job may be tried again.
var ErrInfrastructure = errors.New("no judgement: infrastructure")

// Script names this kind of verifier: the task's own tests/test.sh.
const Script = "script"

// PassAt is the lowest reward that is a pass.
const PassAt = 1.0

// Bounds on what a verifier may leave, and on what is kept of what it says, in bytes.
const (
	MaxReward   = 1 << 20 // of one reward file
	MaxExcerpt  = 4 << 10 // of each of stdout and stderr
	defaultWall = 60 * time.Second
)

// Reason says why a judgement is what it is.
type Reason string

// The reasons; the names are those of the verdict record.
const (
	ChecksPassed    Reason = "checks_passed"
	ChecksFailed    Reason = "checks_failed"
	NoArtifact      Reason = "no_artifact" // a fail with nothing handed in
	VerifierTimeout Reason = "verifier_timeout"
	VerifierCrash   Reason = "verifier_crash"
	SandboxFailure  Reason = "sandbox_failure"
	MalformedOutput Reason = "malformed_output" // missing too; Detail tells which
	Tampering       Reason = "tampering_detected"
)

// Job is one episode to be judged.
type Job struct {
	Run       string
	Group     uint64
	Index     int32
	Attempt   int32 // of the episode, 1-based
	Task      *task.Task
	Artifacts []envpool.File // what the agent's sandbox had at the declared paths
	EndReason outcome.EndReason
	Timeout   time.Duration  // of one run of the tests; the lower of this and the task's; zero: the task's
	Retries   int            // further tries, in new sandboxes, after an indeterminate one
	Limits    envpool.Limits // of the sandbox; the task's own limits come first
	Lease     lease.Token    // of the verify job; its resource must differ from the agent's sandbox
}

// episode names the job in messages.
func (j Job) episode() string {
	return fmt.Sprintf("%s/%d/%d.%d", j.Run, j.Group, j.Index, j.Attempt)
}

// Judgement is the result of a job. Reward is nil unless the verdict is pass or fail.
type Judgement struct {
	Verdict    outcome.Verdict
	Reason     Reason
	End        outcome.EndReason // of class verifier, when indeterminate; empty when the judgement stands
	Detail     string            // one sentence; empty for a plain pass or fail
	Reward     *float64
	Components map[string]float64 // of reward.json; nil when the reward is one number
	Checks     []Check
	ExitCode   *int // of the tests; nil when they did not end by themselves
	Evidence   []Evidence
	Tries      int           // runs of the tests, ≥ 1
	Started    time.Time     // of the first try
	Duration   time.Duration // of all tries, sandbox included
	CPU        time.Duration // of the last run of the tests
	Verifier   string        // Script
	Digest     policy.Digest // of the sandbox that judged: tests, workdir and environment
}

// Check is one component of the reward, held against PassAt.
type Check struct {
	Name   string
	Passed bool
	Value  float64
}

// Evidence is what a judgement rests on.
type Evidence struct {
	Kind    string        // stdout, stderr or file
	Name    string        // of a file; empty for a stream
	Bytes   int64         // in all
	Digest  policy.Digest // of the bytes kept by the sandbox, of which Excerpt is the head
	Excerpt string        // valid UTF-8, at most MaxExcerpt bytes
}
