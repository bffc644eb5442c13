package guest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// headerSize is a little-endian uint32 length of the payload and one byte of Op.
const headerSize = 5

// WriteFrame sends one frame in one write.
func WriteFrame(w io.Writer, op Op, payload []byte) error {
	b := make([]byte, headerSize, headerSize+len(payload))
	binary.LittleEndian.PutUint32(b, uint32(len(payload)))
	b[4] = byte(op)
	if _, err := w.Write(append(b, payload...)); err != nil {
		return fmt.Errorf("guest: write frame: %w", err)
	}
	return nil
}

// ReadFrame receives one frame whose payload is at most limit bytes. The error
// is io.EOF, unwrapped, when the stream ends between frames.
func ReadFrame(r io.Reader, limit int64) (Op, []byte, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		if err == io.EOF {
			return 0, nil, err
		}
		return 0, nil, fmt.Errorf("guest: read frame: %w", err)
	}
	n := binary.LittleEndian.Uint32(h[:])
	if int64(n) > limit {
		return 0, nil, fmt.Errorf("guest: read frame: %d bytes where at most %d were due", n, limit)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, fmt.Errorf("guest: read frame: %w", err)
	}
	return Op(h[4]), b, nil
}
