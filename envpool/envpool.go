// Package envpool gives out sandboxes: leased, limited, reset with proof, forked from snapshots.
//
// Host is what a worker or verifier talks to; Runtime is what an isolation
// tier implements. Every call on a sandbox carries the fence of the lease under
// which it was claimed, and a lower fence is refused by the host itself.
package envpool

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/policy"
)

// The kinds of failure. ErrEnvironment is the only one that may end an episode
// with class environment: it carries evidence from the host's side.
var (
	ErrEnvironment = errors.New("sandbox failed")                   // died after it had been claimed
	ErrNoSlot      = errors.New("no sandbox is free")               // nor can one be made; retry within the deadline
	ErrUnknown     = errors.New("no such sandbox")                  // released, or the host restarted
	ErrInvalid     = errors.New("request cannot be carried out")    // caller's fault: a bad path, a command that is not there
	ErrUnsupported = errors.New("this tier cannot do that")         // named feature
	ErrTooLarge    = errors.New("content is larger than its limit") // file or artifact over its cap
	ErrNotFound    = errors.New("no such file in the sandbox")      //
	ErrUnsafe      = errors.New("path or file kind is not allowed") // "..", device, symbolic link out of the tree
)

// Quota separates sandboxes of agents from those of verifiers, so that neither starves the other.
type Quota string

// The quotas.
const (
	QuotaAgent    Quota = "agent"
	QuotaVerifier Quota = "verifier"
)

// Limits bound what the processes of one sandbox may use; zero means the host's default.
type Limits struct {
	CPU       float64       // cores
	Memory    int64         // bytes
	Pids      int           // processes and threads
	Disk      int64         // bytes written
	Inodes    int64         // files
	OpenFiles int           // per process
	Output    int64         // bytes kept of each of stdout and stderr of one command
	Wall      time.Duration // most time of one command when the command has none of its own
}

// Layer is a directory on the host to be copied into a template at Dest.
type Layer struct {
	Source string // absolute path on the host
	Dest   string // absolute path in the sandbox
}

// Template says how a sandbox looks when it is new. Equal digests make equal sandboxes.
type Template struct {
	Digest  policy.Digest // of all content below
	Image   string        // "host" for bubblewrap
	Layers  []Layer
	Workdir string            // where commands start, for example /app
	Env     map[string]string // of every command
}

// SnapshotID names a sealed file-system state on its host.
type SnapshotID string

// Claim asks for a sandbox forked from a snapshot.
type Claim struct {
	Lease    lease.Token // its Resource becomes the sandbox's identity
	Snapshot SnapshotID
	Quota    Quota
	Limits   Limits
	Entropy  uint64 // seeds what the fork sees as its own identity (host name); equal only where the spec asks
}

// Handle names a claimed sandbox; the fence travels with each call.
type Handle struct {
	Sandbox string
	Fence   lease.Fence
}

// Command is run by the sandbox's own process tree.
type Command struct {
	Argv    []string // Argv[0] is looked up on the sandbox's PATH
	Stdin   []byte
	Env     map[string]string
	Dir     string        // empty: the template's Workdir
	Timeout time.Duration // zero: Limits.Wall; afterwards the whole process tree is killed
	Output  int64         // bytes kept of each stream; zero: Limits.Output
}

// LimitHit says which limit a command ran into; empty when none did.
type LimitHit string

// The limits a command can hit.
const (
	HitTime   LimitHit = "time"
	HitMemory LimitHit = "memory"
	HitPids   LimitHit = "pids"
	HitDisk   LimitHit = "disk"
	HitInodes LimitHit = "inodes"
	HitOutput LimitHit = "output" // a stream was longer than what was kept of it
)

// Result is what a command did. A limit hit by the command is a result, not an error.
type Result struct {
	ExitCode                 int // −1 when killed by a signal
	Signal                   int
	Stdout, Stderr           []byte // the head of each stream
	StdoutTotal, StderrTotal int64  // bytes the command wrote
	Hit                      LimitHit
	Duration                 time.Duration
	CPU                      time.Duration
}

// File is one regular file taken out of a sandbox.
type File struct {
	Path string // absolute, in the sandbox
	Mode fs.FileMode
	Data []byte
}

// Host gives out sandboxes of one machine and tier. All methods are safe for
// concurrent use and return within the context's deadline. Errors wrap one of
// the kinds above or lease.ErrFenced.
type Host interface {
	// Prepare builds a template once and returns its snapshot; concurrent calls for one digest share the work.
	Prepare(ctx context.Context, t Template) (SnapshotID, error)
	// Claim forks a sandbox; it waits its turn for a slot of its quota until
	// the context ends (ErrNoSlot). Claiming again with the same resource and
	// fence returns the same sandbox; a higher fence destroys the older one first.
	Claim(ctx context.Context, c Claim) (Handle, error)
	// Exec runs a command to its end. What it leaves running lives on until the
	// sandbox is released or a command runs out of time. When the context ends
	// first, all processes of the sandbox are killed.
	Exec(ctx context.Context, h Handle, c Command) (Result, error)
	// Write creates or replaces a regular file, making parent directories.
	Write(ctx context.Context, h Handle, path string, mode fs.FileMode, data []byte) error
	// Read returns a regular file of at most limit bytes.
	Read(ctx context.Context, h Handle, path string, limit int64) ([]byte, error)
	// Collect freezes the sandbox (its processes are ended) and copies the named
	// files and directories out, following no links; what is absent or no
	// regular file is left out. At most limit bytes in all.
	Collect(ctx context.Context, h Handle, paths []string, limit int64) ([]File, error)
	// Snapshot seals the sandbox's present files; its processes are ended first.
	Snapshot(ctx context.Context, h Handle) (SnapshotID, error)
	// Release ends the sandbox; releasing twice is no error.
	Release(ctx context.Context, h Handle) error
	// Revoke ends the sandbox of a lost lease whatever fence it has, up to and
	// including f; claims and calls with such a fence are refused from then on.
	Revoke(ctx context.Context, resource string, f lease.Fence) error
	// Stats describes the host now.
	Stats(ctx context.Context) (Stats, error)
}

// Stats counts a host's sandboxes by state.
type Stats struct {
	Tier                      string
	Warm, Leased, Quarantined int
	Agents, Verifiers         int // leased, by quota
	MaxAgents, MaxVerifiers   int
	Claims, Resets, Destroyed int64
	Advisory                  []string // limits that cannot be enforced here, one sentence each
}
