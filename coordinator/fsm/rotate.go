package fsm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// endRotation does what the log's recovery leaves out. A segment is sealed by
// its last append and noted as sealed later; after a kill or a full disk
// between the two the log would open and refuse every append, at each start. A
// seal that was itself torn off, and so never acknowledged, has the same effect.
func (d *Dir) endRotation(meta types.MetaStore, segmentBytes int) error {
	p, err := readSegments(d.LogPath())
	if err != nil || len(p.Segments) == 0 {
		return err
	}
	tail := &p.Segments[len(p.Segments)-1]
	if !tail.SealTime.IsZero() {
		return nil
	}
	name := filepath.Join(d.LogPath(), segment.FileName(*tail))
	var found seal
	err = mapSegment(name, func(b []byte) (err error) {
		if hasIndex(b) {
			found, err = findSeal(b)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) { // noted and not yet made: the log makes it
		return nil
	}
	if err != nil {
		return fmt.Errorf("fsm: open log %s: %w", name, err)
	}
	if found == (seal{}) {
		return nil
	}
	// An orderly close is compared first: nothing is changed in a damaged directory.
	last := uint64(0)
	if found.entries > 0 || len(p.Segments) > 1 {
		last = tail.BaseIndex + found.entries - 1
	}
	if err := d.checkClosed(last); err != nil {
		return err
	}
	if found.index == 0 {
		if err := wipe(name, found.from, found.to); err != nil {
			return fmt.Errorf("fsm: open log %s: %w: %w", name, err, ErrOpenFailed)
		}
		return nil
	}
	tail.SealTime, tail.MaxIndex, tail.IndexStart = time.Now(), last, found.index
	p.Segments = append(p.Segments, types.SegmentInfo{
		ID: p.NextSegmentID, BaseIndex: last + 1, MinIndex: last + 1, Codec: wal.CodecBinaryV1,
		CreateTime: time.Now(), SizeLimit: uint32(cmp.Or(segmentBytes, wal.DefaultSegmentSize)),
	})
	p.NextSegmentID++
	if _, err := meta.Load(d.LogPath()); err != nil { // opens it
		return err
	}
	if err := meta.CommitState(p); err != nil {
		return fmt.Errorf("fsm: open log %s: %w: %w", name, err, ErrOpenFailed)
	}
	return nil
}

// seal is what an unsealed segment with an index frame holds.
type seal struct {
	entries  uint64 // in complete batches
	index    uint64 // byte offset of the array of offsets; 0 when its batch is torn
	from, to int    // byte range behind the last complete batch that is not zero
}

// hasIndex sees an index frame where recovery does: also one that runs past the
// end of the file, as a full disk leaves it where the preallocated space ends.
func hasIndex(b []byte) (found bool) {
	end := walkFrames(b, func(at, _ int) { found = found || b[at] == segment.FrameIndex })
	return found || end+frameHeader <= len(b) && b[end] == segment.FrameIndex
}

// findSeal reads the batches of a segment. All but the last must be whole.
func findSeal(b []byte) (seal, error) {
	var whole, next seal
	start, torn, damaged := 0, false, false
	walkFrames(b, func(at, end int) {
		switch b[at] {
		case segment.FrameEntry:
			next.entries++
		case segment.FrameIndex:
			next.index = uint64(at + frameHeader)
			damaged = damaged || uint64(binary.LittleEndian.Uint32(b[at+4:])) != 4*next.entries
		case segment.FrameCommit:
			damaged = damaged || torn
			torn = crc32.Checksum(b[start:at], castagnoli) != binary.LittleEndian.Uint32(b[at+4:])
			start = end
			if !torn {
				next.from = end
				whole = next
			}
		}
	})
	if damaged {
		return seal{}, fmt.Errorf("a batch before the last does not have its checksum: %w", ErrDamaged)
	}
	whole.from = max(whole.from, segmentHeader)
	whole.to = max(whole.from, len(bytes.TrimRight(b, "\x00")))
	return whole, nil
}

// wipe writes zeros over what a torn write left.
func wipe(name string, from, to int) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, to-from), int64(from))
	return errors.Join(err, f.Sync(), f.Close())
}

// lastFailure is the newest error of the files a rotation writes. The log
// itself only prints it, and tells the next append that the segment is sealed.
type lastFailure struct {
	mu  sync.Mutex
	err error
}

func (f *lastFailure) note(err error) error {
	if err != nil {
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}
	return err
}

// watchedMeta and watchedFiler note why a rotation failed.
type watchedMeta struct {
	types.MetaStore
	failed *lastFailure
}

func (m watchedMeta) CommitState(s types.PersistentState) error {
	return m.failed.note(m.MetaStore.CommitState(s))
}

type watchedFiler struct {
	types.SegmentFiler
	failed *lastFailure
}

func (f watchedFiler) Create(i types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.Create(i)
	return w, f.failed.note(err)
}

func (f watchedFiler) Open(i types.SegmentInfo) (types.SegmentReader, error) {
	return openSealed(f.SegmentFiler, i)
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. After a failed rotation it returns
// ErrNotRotated with the cause; the next OpenLog ends that rotation.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	err := l.WAL.StoreLogs(entries)
	if !errors.Is(err, types.ErrSealed) {
		return err
	}
	l.failed.mu.Lock()
	defer l.failed.mu.Unlock()
	if l.failed.err == nil {
		return ErrNotRotated
	}
	return fmt.Errorf("%w: %w", ErrNotRotated, l.failed.err)
}
