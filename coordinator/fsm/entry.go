package fsm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// EntryFormat is the newest format of entries: the level of the newest
// operation. An entry has the format of the newest operation in it, so that an
// older binary reads what it can and stops at what it cannot.
const EntryFormat = state.Level

// entryHeader is the format number and a CRC-32C of the encoded entry: the
// write-ahead log does not check what it reads back.
const entryHeader = 1 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodeEntry returns the bytes of a log entry. It fails only when the entry cannot be encoded.
func EncodeEntry(e *raftlog.Entry) ([]byte, error) {
	b := make([]byte, entryHeader, entryHeader+proto.Size(e))
	b, err := proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(b, e)
	if err != nil {
		return nil, fmt.Errorf("fsm: encode entry: %w", err)
	}
	b[0] = 1
	for _, p := range e.Proposals {
		b[0] = max(b[0], byte(state.LevelOf(p.Op)))
	}
	binary.LittleEndian.PutUint32(b[1:], crc32.Checksum(b[entryHeader:], castagnoli))
	return b, nil
}

// checkEntry verifies the format number and the checksum of a log entry: ErrNewer or ErrDamaged.
func checkEntry(b []byte) error {
	switch {
	case len(b) < entryHeader || b[0] == 0:
		return fmt.Errorf("fsm: log entry of %d bytes has no header: %w", len(b), ErrDamaged)
	case b[0] > EntryFormat:
		return fmt.Errorf("fsm: log entry has format %d, this binary knows %d: %w", b[0], EntryFormat, ErrNewer)
	case crc32.Checksum(b[entryHeader:], castagnoli) != binary.LittleEndian.Uint32(b[1:]):
		return fmt.Errorf("fsm: log entry does not match its checksum: %w", ErrDamaged)
	}
	return nil
}

// DecodeEntry is the reverse of EncodeEntry. An operation that this binary
// does not know is ErrNewer: skipping it would let replicas differ.
func DecodeEntry(b []byte) (*raftlog.Entry, error) {
	if err := checkEntry(b); err != nil {
		return nil, err
	}
	e := &raftlog.Entry{}
	if err := proto.Unmarshal(b[entryHeader:], e); err != nil {
		return nil, fmt.Errorf("fsm: log entry does not decode: %w", ErrDamaged)
	}
	for _, p := range e.Proposals {
		if !state.Known(p.Op) {
			return nil, fmt.Errorf("fsm: log entry holds an operation unknown to this binary: %w", ErrNewer)
		}
	}
	return e, nil
}
