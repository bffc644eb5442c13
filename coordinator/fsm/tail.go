package fsm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// The frame layout of a segment file, as raft-wal documents it: a file header,
// then frames of 8 header bytes (type, 3 reserved, length or CRC) and a payload
// padded to 8 bytes. A commit frame holds the CRC-32C of everything since the one before.
const (
	segmentHeader = 32
	frameHeader   = 8
)

// checkTail looks behind the place where recovery of the unsealed segment would
// stop. Recovery takes the first bad frame for the torn end of the last write;
// when complete batches follow it, it is damage, and what follows was acknowledged.
func checkTail(dir string) error {
	p, err := readSegments(dir)
	if err != nil {
		return err
	}
	for _, s := range p.Segments {
		if !s.SealTime.IsZero() {
			continue
		}
		name := segment.FileName(s)
		at, behind, err := scanSegment(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // a crash between the metadata and the file; OpenLog compares lengths
		case err != nil:
			return fmt.Errorf("fsm: open log %s: %w: %w", name, err, ErrOpenFailed)
		case behind:
			return fmt.Errorf("fsm: open log: segment %s has a bad place at byte %d with complete entries behind it: %w", name, at, ErrDamaged)
		}
	}
	return nil
}

// scanSegment returns where the readable frames end and whether a complete batch follows.
func scanSegment(name string) (end int, behind bool, err error) {
	err = mapSegment(name, func(b []byte) error {
		end = endOfFrames(b)
		behind = batchBehind(b[end:])
		return nil
	})
	return end, behind, err
}

// mapSegment calls read with the bytes of a file that is not empty; they are gone when it returns.
func mapSegment(name string, read func(b []byte) error) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE) // mostly zeros: not worth the heap
	if err != nil {
		return err
	}
	return errors.Join(read(b), unix.Munmap(b))
}

// endOfFrames returns the offset after the last readable frame.
func endOfFrames(b []byte) int { return walkFrames(b, func(int, int) {}) }

// walkFrames calls frame with the start and end of every readable frame and
// returns the offset after the last.
func walkFrames(b []byte, frame func(at, end int)) int {
	at := segmentHeader
	for at+frameHeader <= len(b) {
		end := at + frameHeader
		switch b[at] {
		case segment.FrameEntry, segment.FrameIndex:
			end += (int(binary.LittleEndian.Uint32(b[at+4:])) + 7) / 8 * 8
		case segment.FrameCommit:
		default:
			return at
		}
		if end > len(b) {
			return at
		}
		frame(at, end)
		at = end
	}
	return min(at, len(b))
}

// batchBehind reports whether b, of which the start is damaged, holds a
// complete batch: two commit frames, the second with the CRC of what is between.
func batchBehind(b []byte) bool {
	start := -1
	for at := 0; at+frameHeader <= len(b); at += frameHeader {
		if b[at] != segment.FrameCommit || b[at+1] != 0 || b[at+2] != 0 || b[at+3] != 0 {
			continue
		}
		if start >= 0 && crc32.Checksum(b[start:at], castagnoli) == binary.LittleEndian.Uint32(b[at+4:]) {
			return true
		}
		start = at + frameHeader
	}
	return false
}

// readSegments returns the log's metadata without opening it for writing.
func readSegments(dir string) (types.PersistentState, error) {
	m := &frozenMeta{}
	p, err := m.Load(dir)
	if err != nil {
		return p, errors.Join(err, m.Close())
	}
	return p, m.Close()
}

// frozenMeta is the log's metadata, read-only: changes stay in memory.
type frozenMeta struct{ db *bbolt.DB }

func (m *frozenMeta) Load(dir string) (types.PersistentState, error) {
	var p types.PersistentState
	name := filepath.Join(dir, metadb.FileName)
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return p, fmt.Errorf("fsm: open log %s: %w: %w", name, err, ErrDamaged)
	}
	m.db = db
	err = db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte(metadb.MetaBucket))
		if bucket == nil {
			return ErrDamaged
		}
		raw := bucket.Get([]byte(metadb.MetaKey))
		if raw == nil {
			return nil
		}
		return json.Unmarshal(raw, &p)
	})
	if err != nil {
		return p, fmt.Errorf("fsm: open log %s: %w: %w", name, err, ErrDamaged)
	}
	return p, nil
}

func (m *frozenMeta) CommitState(types.PersistentState) error { return nil }

func (m *frozenMeta) GetStable(key []byte) (value []byte, err error) {
	if m.db == nil {
		return nil, nil
	}
	err = m.db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(metadb.StableBucket)); b != nil {
			value = append([]byte(nil), b.Get(key)...)
		}
		return nil
	})
	return value, err
}

func (m *frozenMeta) SetStable(_, _ []byte) error { return errReadOnly }

func (m *frozenMeta) Close() error {
	if m.db == nil {
		return nil
	}
	return m.db.Close()
}

var errReadOnly = errors.New("the log is open for reading only")

// frozenFiler reads segment files and creates or deletes none.
type frozenFiler struct{ *segment.Filer }

func (f frozenFiler) Create(types.SegmentInfo) (types.SegmentWriter, error) {
	return emptySegment{}, nil
}

func (f frozenFiler) Open(i types.SegmentInfo) (types.SegmentReader, error) {
	return openSealed(f.Filer, i)
}

func (f frozenFiler) Delete(uint64, uint64) error { return nil }

// emptySegment stands for a segment that was planned and never written.
type emptySegment struct{}

func (emptySegment) Append([]types.LogEntry) error              { return errReadOnly }
func (emptySegment) Sealed() (bool, uint64, error)              { return false, 0, nil }
func (emptySegment) LastIndex() uint64                          { return 0 }
func (emptySegment) GetLog(uint64) (*types.PooledBuffer, error) { return nil, types.ErrNotFound }
func (emptySegment) Close() error                               { return nil }

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
