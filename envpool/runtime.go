package envpool

import (
	"context"
	"io/fs"
)

// Runtime is an isolation tier: it makes slots and keeps file-system states.
// Its methods are safe for concurrent use. Errors wrap the package's kinds.
type Runtime interface {
	// Tier names the tier.
	Tier() string
	// Start makes a slot: a warm sandbox without files, ready to be mounted.
	Start(ctx context.Context) (Slot, error)
	// Build makes the template's file-system state and returns its size in bytes.
	Build(ctx context.Context, id SnapshotID, t Template) (int64, error)
	// Drop removes a state that no slot has mounted.
	Drop(id SnapshotID) error
	// Advisory lists the limits that are not enforced on this machine, one sentence each.
	Advisory() []string
	// Close removes all states; the slots have been closed before.
	Close() error
}

// Use is one sandbox made of a slot.
type Use struct {
	Snapshot SnapshotID
	HostName string
	Limits   Limits // complete: no field is zero
}

// Slot is one sandbox, used again and again: Mount, any number of calls,
// Scrub. The host makes one call at a time, Close apart. A slot that cannot go
// on closes Dead, and its calls return ErrEnvironment with what is known.
type Slot interface {
	Mount(ctx context.Context, u Use) error
	// Exec runs a complete command (no field left to a default). When ctx ends
	// it kills the sandbox's processes and returns the context's error; the
	// slot goes on.
	Exec(ctx context.Context, c Command) (Result, error)
	Write(ctx context.Context, path string, mode fs.FileMode, data []byte) error
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	Collect(ctx context.Context, paths []string, limit int64) ([]File, error)
	// Seal ends the processes and makes the present files a state of their own; it returns its size in bytes.
	Seal(ctx context.Context, id SnapshotID) (int64, error)
	// Scrub ends the processes, drops the files and proves both; after an
	// error the slot must be closed.
	Scrub(ctx context.Context) error
	// Dead is closed when the slot has died.
	Dead() <-chan struct{}
	// Close ends the slot and returns once nothing of it is left. An error
	// means that something may be.
	Close(ctx context.Context) error
}
