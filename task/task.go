// Package task loads what is to be solved: Harbor task directories, their content digests and the sandboxes they ask for.
//
// A task directory holds task.toml, instruction.md, environment/ (with a
// Dockerfile), tests/ (with test.sh) and optionally solution/ (with solve.sh).
// Nothing in it is ignored: what this build cannot honour is refused by name.
package task

import (
	"errors"
	"time"

	"github.com/rlfleet/rlfleet/policy"
)

// The kinds of failure.
var (
	ErrInvalid     = errors.New("task is not valid")
	ErrUnsupported = errors.New("task needs what this build does not have")
	ErrNotFound    = errors.New("no such task directory")
)

// Paths of the layout inside a sandbox.
const (
	TestsDir     = "/tests"            // the verifier's sandbox only
	TestScript   = "/tests/test.sh"    // run as bash /tests/test.sh
	SolutionDir  = "/solution"         // the oracle's sandbox only
	VerifierLogs = "/logs/verifier"    // where tests leave the reward
	DefaultDir   = "/app"              // workdir of a task that names none
	solveScript  = "solution/solve.sh" // on the host, in the task directory
)

// BasePath is the PATH that $PATH means in a Dockerfile's ENV.
const BasePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Limits are what a task asks for; zero leaves the experiment's limit.
type Limits struct {
	CPU    float64 // cores
	Memory int64   // bytes
	Disk   int64   // bytes written
}

// Layer is a directory on the host whose content appears at Dest.
type Layer struct {
	Source string // absolute path on the host
	Dest   string // absolute path in the sandbox
}

// Template says how a sandbox of the task looks when it is new; it has the
// fields of a sandbox template of the environment pool, without its image.
type Template struct {
	Digest  policy.Digest // of the content, destinations, workdir and environment
	Layers  []Layer
	Workdir string
	Env     map[string]string
}

// Task is one loaded task directory. It is not changed after Load.
type Task struct {
	ID          string        // name of the directory
	Name        string        // task.name of task.toml; often empty
	Dir         string        // absolute path on the host
	Digest      policy.Digest // of every path, executable bit and byte in the directory
	Image       string        // of the Dockerfile's FROM; a tier that runs the host's files does not use it
	Instruction string        // instruction.md as it is

	AgentTimeout    time.Duration // zero: the experiment's
	VerifierTimeout time.Duration // zero: the experiment's

	Artifacts   []string          // absolute paths that the verifier gets to see, at the same place
	Workdir     string            // where the agent's commands start
	Env         map[string]string // of the agent's commands
	VerifierEnv map[string]string // of tests/test.sh
	SolutionEnv map[string]string // of solution/solve.sh
	Limits      Limits
	HasSolution bool // solution/solve.sh is there

	agent, verifier Template
}

// AgentTemplate is the sandbox the agent works in: the environment's COPY
// layers, without tests and solution.
func (t *Task) AgentTemplate() Template { return t.agent }

// VerifierTemplate is the sandbox that judges: tests at /tests, and nothing of
// the agent's until its artifacts are written there.
func (t *Task) VerifierTemplate() Template { return t.verifier }

// refusal is one sentence about a task, of a kind.
type refusal struct {
	kind error
	text string
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }
