// Package guest defines the protocol between a host and the rlguest inside a sandbox.
//
// The two speak frames over one stream. The host asks, the guest answers, one
// request at a time; the only frame that may overtake is OpKill. The guest is
// trusted no further than its frames parse: it reports facts (Proof), and the
// host judges them.
package guest

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Version is the protocol's; a host refuses a guest with another one.
const Version = 1

// Op is the kind of a frame.
type Op byte

// The frames. A request is answered by OpDone or OpFail; Collect and Export
// send entries (OpEntry, each followed by the chunks of its content) before it.
const (
	OpHello   Op = iota + 1 // guest, once: Hello
	OpMount                 // Mount → empty
	OpExec                  // Exec → Exit
	OpKill                  // ends the processes of the Exec in flight; no answer of its own
	OpWrite                 // Write → empty
	OpRead                  // Read → content
	OpCollect               // Collect → entries, empty
	OpExport                // empty → entries, empty
	OpScrub                 // empty → Proof
	OpDone
	OpFail  // Failure
	OpEntry // Entry
	OpChunk // bytes of the last entry
)

// ChunkSize is the most content one OpChunk carries.
const ChunkSize = 256 << 10

// Kind classifies a Failure.
type Kind byte

// The kinds of failure.
const (
	KindBroken   Kind = iota + 1 // the sandbox cannot go on
	KindInvalid                  // the request cannot be carried out
	KindNotFound                 // no such file
	KindUnsafe                   // path or file kind not allowed
	KindTooLarge                 // content over its limit
	KindFull                     // no space or no inodes left in the sandbox
)

// Failure is an answer that is not a result. It implements error.
type Failure struct {
	Kind Kind
	Text string
}

// Error returns the text.
func (f *Failure) Error() string { return f.Text }

// Failf makes a Failure.
func Failf(k Kind, format string, args ...any) *Failure {
	return &Failure{Kind: k, Text: fmt.Sprintf(format, args...)}
}

// Root is a directory that commands may write to.
type Root struct {
	Path string // in the sandbox
	Name string // its directory in a template
	Mode uint32
}

// Roots lists the writable directories of a sandbox; all else is read-only.
var Roots = []Root{
	{"/app", "app", 0o755},
	{"/tmp", "tmp", 0o1777},
	{"/logs", "logs", 0o755},
	{"/tests", "tests", 0o755},
	{"/solution", "solution", 0o755},
	{"/home/agent", "home", 0o755},
	{"/dev/shm", "shm", 0o1777},
}

// ErrOutside reports a path that is in no writable directory.
var ErrOutside = errors.New("path is not in a writable directory of the sandbox")

// Locate splits an absolute, clean path into its root and the rest ("." for
// the root itself). "..", empty elements and NUL are refused.
func Locate(path string) (Root, string, error) {
	for _, r := range Roots {
		if path == r.Path {
			return r, ".", nil
		}
		rest, ok := strings.CutPrefix(path, r.Path+"/")
		if !ok {
			continue
		}
		for e := range strings.SplitSeq(rest, "/") {
			if e == "" || e == "." || e == ".." || strings.ContainsRune(e, 0) {
				return Root{}, "", fmt.Errorf("%q: %w", path, ErrOutside)
			}
		}
		return r, rest, nil
	}
	return Root{}, "", fmt.Errorf("%q: %w", path, ErrOutside)
}

// Hello is what a guest says of itself when its namespaces stand.
type Hello struct {
	Version int
	Proof   Proof // of the untouched slot; every later proof must equal it
}

// Proof is what a guest finds after a reset. Two proofs of one slot are equal
// when nothing of a use is left.
type Proof struct {
	Processes int    // in the process namespace, the guest included
	Mounts    uint64 // hash of the mount table
	Files     int    // open descriptors of the guest
	IPC       int    // System V segments, semaphores and queues
}

// Mount makes the files of one use.
type Mount struct {
	Lower  string // name of the template
	Host   string // host name of this use
	Disk   int64  // bytes
	Inodes int64
}

// Exec starts a command and waits for its end.
type Exec struct {
	Argv, Env []string
	Dir       string
	Stdin     []byte
	Timeout   time.Duration
	Output    int64 // bytes kept of each stream
	Flood     int64 // bytes of either stream after which the command is killed
	FileSize  int64 // RLIMIT_FSIZE
	OpenFiles int64 // RLIMIT_NOFILE
	Memory    int64 // RLIMIT_DATA and the bound that Watch keeps; 0: none
	Pids      int64 // RLIMIT_NPROC beside the guest's own threads; 0: none
	Watch     bool  // look at the processes now and then, where no cgroup does
}

// Exit is how a command ended.
type Exit struct {
	Code, Signal             int
	Stdout, Stderr           []byte
	StdoutTotal, StderrTotal int64
	Hit                      string
	Duration, CPU            time.Duration
}

// Write creates or replaces a regular file.
type Write struct {
	Path string
	Mode uint32
	Data []byte
}

// Read asks for a regular file of at most Limit bytes.
type Read struct {
	Path  string
	Limit int64
}

// Collect asks for regular files, at most Limit bytes in all.
type Collect struct {
	Paths []string
	Limit int64
}

// EntryKind is what an Entry is.
type EntryKind byte

// The kinds of entry. Gone and Opaque appear in exports only.
const (
	EntryFile   EntryKind = iota + 1 // content follows in chunks
	EntryDir                         //
	EntryLink                        // Target is the link's text
	EntryGone                        // a template's entry that was removed
	EntryOpaque                      // a directory that hides the template's one
)

// Entry is one file of a Collect (Path absolute) or an Export (Path relative to the template).
type Entry struct {
	Kind   EntryKind
	Path   string
	Mode   uint32 // permission bits
	Size   int64
	Target string
}
