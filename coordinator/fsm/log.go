package fsm

import (
	"errors"
	"fmt"
	"sync"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// Log is the write-ahead log of a node: raft's log store and stable store.
type Log struct {
	*wal.WAL
	meta   types.MetaStore
	failed *lastFailure

	writing sync.Mutex // held by appends and truncations, which raft may call at the same time
}

// OpenLog opens the log of a locked directory after checking what the log
// itself does not: that nothing acknowledged lies behind a damaged place in the
// unsealed segment, and that the log is as long as an orderly close left it. A
// rotation that was cut off is ended first.
// segmentBytes is the size of new segments; 0 is the log's own default.
func (d *Dir) OpenLog(logger hclog.Logger, segmentBytes int) (*Log, error) {
	return d.openLogOn(logger, segmentBytes, &metadb.BoltMetaDB{})
}

func (d *Dir) openLogOn(logger hclog.Logger, segmentBytes int, meta types.MetaStore) (*Log, error) {
	prepare := func() error { return d.endRotation(meta, segmentBytes) }
	l, err := openLog(d.LogPath(), logger, segmentBytes, meta, segment.NewFiler(d.LogPath(), osFiles()), prepare)
	if err != nil {
		return nil, err
	}
	last, err := l.LastIndex()
	if err == nil {
		err = d.checkClosed(last)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// openLogReadOnly opens the log without changing a byte of it.
func (d *Dir) openLogReadOnly() (*Log, error) {
	dir := d.LogPath()
	return openLog(dir, hclog.NewNullLogger(), 0, &frozenMeta{}, frozenFiler{segment.NewFiler(dir, osFiles())}, nil)
}

// openLog opens a log after prepare, which may be nil, has run on a checked tail.
func openLog(dir string, logger hclog.Logger, segmentBytes int, meta types.MetaStore, filer types.SegmentFiler, prepare func() error) (l *Log, err error) {
	defer func() {
		// The library's metadata file is mapped into memory; some damage shows as a panic of its decoder.
		if p := recover(); p != nil {
			l, err = nil, fmt.Errorf("fsm: open log %s: %v: %w", dir, p, ErrDamaged)
		}
	}()
	if err := checkTail(dir); err != nil {
		return nil, err
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			return nil, errors.Join(logError(dir, err), meta.Close())
		}
	}
	failed := &lastFailure{}
	w, err := wal.Open(dir, wal.WithLogger(logger), wal.WithSegmentSize(segmentBytes),
		wal.WithMetaStore(watchedMeta{meta, failed}), wal.WithSegmentFiler(watchedFiler{filer, failed}))
	if err != nil {
		return nil, errors.Join(logError(dir, err), meta.Close())
	}
	return &Log{WAL: w, meta: meta, failed: failed}, nil
}

// logError gives an error that has none a kind and a place.
func logError(dir string, err error) error {
	if errors.Is(err, ErrDamaged) || errors.Is(err, ErrOpenFailed) {
		return err
	}
	kind := ErrDamaged
	if isFull(err) {
		kind = ErrOpenFailed
	}
	return fmt.Errorf("fsm: open log %s: %w: %w", dir, err, kind)
}

// Close closes the log and its metadata, which the library leaves open.
func (l *Log) Close() error { return errors.Join(l.WAL.Close(), l.meta.Close()) }

// CheckLog reads every entry after a snapshot and verifies index, term,
// checksum and that its operations are known, so that damage and a newer
// version's log are a sentence at start-up, before anything is written.
func CheckLog(l raft.LogStore, snapshot uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return fmt.Errorf("fsm: check log: %w: %w", err, ErrDamaged)
	}
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("fsm: check log: %w: %w", err, ErrDamaged)
	}
	if last == 0 {
		return nil
	}
	if first > snapshot+1 || last < snapshot {
		return fmt.Errorf("fsm: check log: holds entries %d to %d, the newest readable snapshot ends at %d: %w", first, last, snapshot, ErrDamaged)
	}
	var term uint64
	var entry raft.Log
	for i := max(first, snapshot+1); i <= last; i++ {
		if err := l.GetLog(i, &entry); err != nil {
			return fmt.Errorf("fsm: check log: entry %d: %w: %w", i, err, ErrDamaged)
		}
		if entry.Index != i || entry.Term < term {
			return fmt.Errorf("fsm: check log: entry %d reads as %d of term %d after term %d: %w", i, entry.Index, entry.Term, term, ErrDamaged)
		}
		term = entry.Term
		if entry.Type != raft.LogCommand {
			continue
		}
		if _, err := DecodeEntry(entry.Data); err != nil {
			return fmt.Errorf("fsm: check log: entry %d: %w", i, err)
		}
	}
	return nil
}
