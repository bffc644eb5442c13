package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A snapshot is: magic, format number (uint32), then records, each a length
// (uint32) and a raftlog.v1.Record, then the end mark, the number of records
// (uint64) and a CRC-32C of all bytes before it. Integers are little-endian.
const (
	snapshotMagic  = "rlfsnap\n"
	snapshotFormat = 1
	snapshotHeader = len(snapshotMagic) + 4
	endMark        = 1<<32 - 1
	maxRecord      = 1 << 30 // bytes; a longer length is damage
)

// WriteSnapshot streams every record of s. The state must not be applied to
// while it runs: pass a fork.
func WriteSnapshot(w io.Writer, s *state.State) error {
	out := &sumWriter{w: bufio.NewWriterSize(w, 1<<16), sum: crc32.New(castagnoli)}
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotFormat)
	out.write(head)
	var n uint64
	var buf []byte
	s.Records(func(r *raftlog.Record) bool {
		b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(buf[:0], 0, 0, 0, 0), r)
		if err != nil {
			out.fail(err)
			return false
		}
		buf = b
		binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
		out.write(b)
		n++
		return out.err == nil
	})
	tail := binary.LittleEndian.AppendUint32(nil, endMark)
	tail = binary.LittleEndian.AppendUint64(tail, n)
	out.write(tail)
	out.write(out.sum.Sum(nil))
	if out.err == nil {
		out.fail(out.w.Flush())
	}
	if out.err != nil {
		return fmt.Errorf("fsm: write snapshot: %w", out.err)
	}
	return nil
}

// ReadSnapshot builds a state from a snapshot: ErrNotOurs, ErrNewer, ErrCut
// or ErrDamaged when it cannot.
func ReadSnapshot(r io.Reader) (*state.State, error) {
	in := &sumReader{r: bufio.NewReaderSize(r, 1<<16), sum: crc32.New(castagnoli)}
	head := make([]byte, snapshotHeader)
	if err := in.read(head); err != nil && !errors.Is(err, ErrCut) {
		return nil, fmt.Errorf("fsm: read snapshot: %w", err)
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("fsm: read snapshot: %w", ErrNotOurs)
	}
	if f := binary.LittleEndian.Uint32(head[len(snapshotMagic):]); f > snapshotFormat {
		return nil, fmt.Errorf("fsm: read snapshot: format %d, this binary knows %d: %w", f, snapshotFormat, ErrNewer)
	}
	s, err := state.Restore(in.record)
	if err == nil && !in.ended { // the state's own end came first
		if _, err = in.record(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = ErrDamaged
		}
	}
	switch {
	case in.err != nil:
		err = in.err
	case errors.Is(err, state.ErrNewer):
		err = ErrNewer
	case errors.Is(err, state.ErrCut):
		err = ErrCut
	}
	if err != nil {
		return nil, fmt.Errorf("fsm: read snapshot: %w", err)
	}
	return s, nil
}

type sumWriter struct {
	w   *bufio.Writer
	sum hash.Hash32
	err error
}

func (o *sumWriter) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *sumWriter) write(b []byte) {
	if o.err != nil {
		return
	}
	_, _ = o.sum.Write(b) // a hash never fails
	_, o.err = o.w.Write(b)
}

type sumReader struct {
	r     *bufio.Reader
	sum   hash.Hash32
	n     uint64
	ended bool
	err   error // first failure of the container, as opposed to the state's
	buf   []byte
}

func (i *sumReader) read(b []byte) error {
	if _, err := io.ReadFull(i.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = ErrCut
		}
		return err
	}
	_, _ = i.sum.Write(b)
	return nil
}

// record returns the next record, or io.EOF after a checksum that matches.
func (i *sumReader) record() (*raftlog.Record, error) {
	if i.err != nil {
		return nil, i.err
	}
	r, err := i.next()
	if err != nil && !errors.Is(err, io.EOF) {
		i.err = err
	}
	return r, err
}

func (i *sumReader) next() (*raftlog.Record, error) {
	if i.ended {
		return nil, io.EOF
	}
	var word [8]byte
	if err := i.read(word[:4]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(word[:4])
	if size == endMark {
		return nil, i.end(word[:])
	}
	if size > maxRecord {
		return nil, ErrDamaged
	}
	if cap(i.buf) < int(size) {
		i.buf = make([]byte, size)
	}
	b := i.buf[:size]
	if err := i.read(b); err != nil {
		return nil, err
	}
	r := &raftlog.Record{}
	if err := proto.Unmarshal(b, r); err != nil {
		return nil, ErrDamaged
	}
	i.n++
	return r, nil
}

// end checks the count and the checksum that close the container.
func (i *sumReader) end(word []byte) error {
	if err := i.read(word); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(word) != i.n {
		return ErrDamaged
	}
	want := i.sum.Sum(nil)
	got := make([]byte, len(want))
	if err := i.read(got); err != nil {
		return err
	}
	if string(got) != string(want) {
		return ErrDamaged
	}
	i.ended = true
	return io.EOF
}
