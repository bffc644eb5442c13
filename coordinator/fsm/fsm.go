// Package fsm drives the state machine from raft: it decodes log entries,
// writes and restores snapshots, and opens the data directory of a stopped
// node for inspection.
//
// An entry that cannot be decoded or holds an unknown operation is never
// skipped: the machine stops there, refuses everything after it, takes no
// snapshot, and says why through Failed and Err.
package fsm

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

var _ raft.BatchingFSM = (*FSM)(nil)

// Observe is told of every batch applied: entries, proposals, and how long it took.
type Observe func(entries, proposals int, took time.Duration)

// FSM is a raft.BatchingFSM over a state.State. The response of an entry is a
// []*raftlogv1.Result, one per proposal, or an error once the machine stopped.
type FSM struct {
	observe Observe
	failed  chan struct{}
	feed    *feed
	notice  func(*state.State, state.Change)

	mu      sync.Mutex // guards everything below
	state   *state.State
	index   uint64        // of the last entry applied or restored
	fork    *state.State  // copy at index for readers; nil until one asks
	changed chan struct{} // closed when index rises
	err     error
}

// New returns a machine that continues from a state at a log index. observe may be nil.
func New(s *state.State, index uint64, observe Observe) *FSM {
	if observe == nil {
		observe = func(int, int, time.Duration) {}
	}
	f := &FSM{
		observe: observe, failed: make(chan struct{}), feed: newFeed(feedCount, feedBytes),
		state: s, index: index, changed: make(chan struct{}),
	}
	s.Journal(true)
	f.feed.reset(index, s.Clock().GetEpoch())
	return f
}

// Notice is told of each change of a watched record as it is applied, with the
// state, which it must not keep. It has to be quick, and is set before raft starts.
func (f *FSM) Notice(do func(*state.State, state.Change)) { f.notice = do }

// Since returns the watched records that changed after a revision (a log index)
// of an epoch, as they are now, and the revision that they bring a watcher to;
// ErrGap when that is no longer known.
func (f *FSM) Since(revision, epoch uint64) ([]state.Change, uint64, error) {
	return f.feed.since(revision, epoch)
}

// View returns the state at the last applied entry, its log index, and a
// channel that is closed when a newer one exists. The state never changes and
// must not be changed.
func (f *FSM) View() (*state.State, uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fork == nil {
		f.fork = f.state.Fork()
	}
	return f.fork, f.index, f.changed
}

// Progress is View without the state, and costs nothing to those that apply.
func (f *FSM) Progress() (*raftlog.Clock, uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Clock(), f.index, f.changed
}

// Failed is closed when the machine has stopped; Err says why.
func (f *FSM) Failed() <-chan struct{} { return f.failed }

// Err returns why the machine stopped, or nil.
func (f *FSM) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Apply implements raft.FSM.
func (f *FSM) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any {
	failpoint.At(failpoint.ApplyBefore)
	start := time.Now()
	out := make([]any, len(logs))
	entries := make([]*raftlog.Entry, len(logs))
	errs := make([]error, len(logs))
	for i, l := range logs { // decoding needs no lock
		if l.Type == raft.LogCommand {
			entries[i], errs[i] = DecodeEntry(l.Data)
		}
	}
	proposals := 0
	for i, l := range logs {
		out[i] = f.apply(l, entries[i], errs[i])
		if results, applied := out[i].([]*raftlog.Result); applied {
			proposals += len(results)
		}
	}
	f.mu.Lock()
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	f.observe(len(logs), proposals, time.Since(start))
	failpoint.At(failpoint.ApplyAfter)
	return out
}

// apply carries out one entry. A reader that wants the state waits for one at most, however many came together.
func (f *FSM) apply(l *raft.Log, e *raftlog.Entry, bad error) (out any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && bad != nil {
		f.stopLocked(fmt.Errorf("fsm: apply entry %d: %w", l.Index, bad))
	}
	if f.err != nil {
		return f.err
	}
	if e != nil { // a configuration has no entry
		out = f.state.Apply(e)
		changes := f.state.Changed()
		f.feed.add(l.Index, changes)
		if f.notice != nil {
			for _, c := range changes {
				f.notice(f.state, c)
			}
		}
	}
	f.index, f.fork = l.Index, nil
	return out
}

func (f *FSM) moveLocked() {
	f.fork = nil
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *FSM) stopLocked(err error) {
	f.err = err
	close(f.failed)
}

// Snapshot implements raft.FSM: a copy-on-write pointer, the I/O is in Persist.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	return snapshot{f.state.Fork()}, nil
}

// Indexed is the content of a snapshot that knows its log index: raft gives Restore the content alone.
type Indexed interface{ SnapshotIndex() uint64 }

// Restore implements raft.FSM: the state is built aside and swapped in when it is complete.
func (f *FSM) Restore(r io.ReadCloser) error {
	s, err := ReadSnapshot(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.index = s, max(f.index, snapshotIndex(r))
	f.state.Journal(true)
	f.feed.reset(f.index, s.Clock().GetEpoch())
	f.moveLocked()
	return nil
}

func snapshotIndex(r io.ReadCloser) uint64 {
	for {
		if i, knows := r.(Indexed); knows {
			return i.SnapshotIndex()
		}
		w, wraps := r.(raft.ReadCloserWrapper)
		if !wraps {
			return 0
		}
		r = w.WrappedReadCloser()
	}
}

type snapshot struct{ state *state.State }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := failpoint.Around(failpoint.SnapshotBefore, failpoint.SnapshotWritten, func() error { return WriteSnapshot(sink, s.state) }); err != nil {
		_ = sink.Cancel() // the write's error is the one to report
		return err
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("fsm: write snapshot: %w", err)
	}
	failpoint.At(failpoint.SnapshotAfter)
	return nil
}

func (s snapshot) Release() {}
