package coordinator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/internal/failpoint"
)

// logStore is raft's log with its term and vote. A test in a bubble keeps it in
// memory: the write-ahead log waits for a real disk.
type logStore interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

func (n *Node) openLog(logger hclog.Logger) error {
	if n.cfg.memory != nil {
		n.log = n.cfg.memory()
		return nil
	}
	l, err := n.dir.OpenLog(logger, n.cfg.SegmentBytes)
	if err == nil {
		n.log = l
	}
	return err
}

// guard stands between raft and the disk. The first failed write ends the
// node: raft would retry over a log in an unknown state, and it panics when it
// cannot keep its term. After it no write is tried and no term is promised.
type guard struct {
	raft.LogStore
	stable raft.StableStore
	fsync  func(time.Duration)
	failed func(error) // called once

	began  atomic.Pointer[time.Time] // when the write that is on its way began
	once   sync.Once
	bad    chan struct{} // closed at the first failure
	ending chan struct{} // closed when the node shuts raft down
}

func newGuard(log raft.LogStore, stable raft.StableStore, fsync func(time.Duration), failed func(error)) *guard {
	return &guard{LogStore: log, stable: stable, fsync: fsync, failed: failed, bad: make(chan struct{}), ending: make(chan struct{})}
}

func (g *guard) fail(op string, err error) error {
	advice := "free space or mend the disk and start again"
	if errors.Is(err, fsm.ErrNotRotated) { // the next start makes the segment
		advice = "start again, with free space if the disk is full"
	}
	err = fmt.Errorf("coordinator: %s: %w: %s; nothing acknowledged is lost", op, err, advice)
	g.once.Do(func() {
		close(g.bad)
		g.failed(err)
	})
	return err
}

func (g *guard) isBad() bool {
	select {
	case <-g.bad:
		return true
	default:
		return false
	}
}

// IsMonotonic implements raft.MonotonicLogStore.
func (g *guard) IsMonotonic() bool {
	m, ok := g.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// StoreLog implements raft.LogStore.
func (g *guard) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (g *guard) StoreLogs(logs []*raft.Log) error {
	if g.isBad() {
		return ErrStopped
	}
	start := time.Now()
	g.began.Store(&start)
	err := failpoint.Around(failpoint.LogAppendBefore, failpoint.LogAppendAfter, func() error { return g.LogStore.StoreLogs(logs) })
	g.began.Store(nil)
	if err != nil {
		return g.fail("write log", err)
	}
	g.fsync(time.Since(start))
	return nil
}

// writing is how long the write that is on its way takes already.
func (g *guard) writing() time.Duration {
	if at := g.began.Load(); at != nil {
		return time.Since(*at)
	}
	return 0
}

// DeleteRange implements raft.LogStore. A truncation that failed may be noted
// on disk and not in memory: what is appended after it would be gone at the next start.
func (g *guard) DeleteRange(first, last uint64) error {
	if g.isBad() {
		return ErrStopped
	}
	err := failpoint.Around(failpoint.LogDeleteBefore, failpoint.LogDeleteAfter, func() error { return g.LogStore.DeleteRange(first, last) })
	if err != nil {
		return g.fail("truncate log", err)
	}
	return nil
}

// Set implements raft.StableStore.
func (g *guard) Set(key, val []byte) error {
	return g.keep(func() error { return g.stable.Set(key, val) })
}

// SetUint64 implements raft.StableStore.
func (g *guard) SetUint64(key []byte, val uint64) error {
	return g.keep(func() error { return g.stable.SetUint64(key, val) })
}

// keep holds raft back after a failure until the node ends it: an error here
// would be a panic there, and a term or vote that was not kept must not leave
// this node. Once raft is shutting down nothing leaves any more.
func (g *guard) keep(write func() error) error {
	if !g.isBad() {
		err := failpoint.Around(failpoint.TermKeepBefore, failpoint.TermKeepAfter, write)
		if err == nil {
			return nil
		}
		_ = g.fail("write term or vote", err) // reported by the node, not to raft
	}
	<-g.ending
	return nil
}

// Get implements raft.StableStore.
func (g *guard) Get(key []byte) ([]byte, error) { return g.stable.Get(key) }

// GetUint64 implements raft.StableStore.
func (g *guard) GetUint64(key []byte) (uint64, error) { return g.stable.GetUint64(key) }

// snapshots hides snapshots that Open found unreadable, so that raft starts from the one that was restored.
type snapshots struct {
	raft.SnapshotStore
	dir   string // where they lie
	first string // id of the snapshot restored at start; empty when none was
	from  map[string]bool
}

// hideUnreadable wraps a store as it was found at start.
func hideUnreadable(s raft.SnapshotStore, dir, restored string) (raft.SnapshotStore, error) {
	metas, err := s.List()
	if err != nil {
		return nil, fmt.Errorf("coordinator: list snapshots: %w", err)
	}
	out := &snapshots{SnapshotStore: s, dir: dir, first: restored, from: map[string]bool{}}
	for _, m := range metas {
		if m.ID == restored {
			break
		}
		out.from[m.ID] = true
	}
	return out, nil
}

// List implements raft.SnapshotStore.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.SnapshotStore.List()
	if err != nil {
		return nil, err
	}
	out := all[:0]
	for _, m := range all {
		if !s.from[m.ID] {
			out = append(out, m)
		}
	}
	return out, nil
}

// Open implements raft.SnapshotStore.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err == nil {
		r = indexed{r, meta.Index}
	}
	return meta, r, err
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, err
	}
	return whole{sink, filepath.Join(s.dir, sink.ID()+".tmp")}, nil
}

// whole is a snapshot that is there as a whole or not at all: raft's own sink
// leaves what it has when a full disk keeps it from flushing the rest.
type whole struct {
	raft.SnapshotSink
	path string
}

// Cancel implements raft.SnapshotSink.
func (w whole) Cancel() error {
	if err := w.SnapshotSink.Cancel(); err != nil {
		return errors.Join(err, os.RemoveAll(w.path))
	}
	return nil
}

// indexed tells the state machine which entry a snapshot ends with.
type indexed struct {
	io.ReadCloser
	index uint64
}

// SnapshotIndex implements fsm.Indexed.
func (i indexed) SnapshotIndex() uint64 { return i.index }
