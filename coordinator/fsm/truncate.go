package fsm

import (
	"fmt"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// openSealed opens a sealed segment. One that was sealed because its end was
// given up has no index: raft-wal v0.4.0 notes it as sealed and writes none, and
// after a restart it could not be read. Such a segment is read through once, as
// the unsealed one is, and its index is kept in memory. Entries behind the cut
// are still in the file; the log asks for none beyond the segment's MaxIndex.
func openSealed(f types.SegmentFiler, i types.SegmentInfo) (types.SegmentReader, error) {
	if i.IndexStart != 0 {
		return f.Open(i)
	}
	return f.RecoverTail(i)
}

// DeleteRange implements raft.LogStore. A rotation that an append began ends
// first: raft-wal v0.4.0 would go on with it after the truncation, seal the
// empty segment that this has made, and begin the next at entry 1.
func (l *Log) DeleteRange(first, last uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	end, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("fsm: truncate log: %w", err)
	}
	if end > 0 { // else nothing was appended that could have begun one
		// Only appends wait for a rotation. This one is refused when it has waited: no log that holds entries goes on at 0.
		_ = l.WAL.StoreLog(&raft.Log{})
	}
	return l.WAL.DeleteRange(first, last)
}
