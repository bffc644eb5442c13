package coordinator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// compact keeps the log's files below limit bytes until ctx ends. Raft looks at
// numbers of entries alone, both for when to take a snapshot and for how many
// entries to keep behind it; a few thousand large ones fill a disk.
func (n *Node) compact(ctx context.Context, limit int64, every time.Duration) {
	look := time.NewTicker(every)
	defer look.Stop()
	var tried uint64 // last index of the log when a snapshot was tried: without new entries another gains nothing
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		size, err := n.logBytes()
		if err == nil && size <= limit {
			continue
		}
		last := n.raft.LastIndex()
		if err == nil {
			if last == tried {
				continue
			}
			tried = last
			err = n.shrink(size, limit)
		}
		if err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("the log could not be made smaller", "bytes", size, "limit", limit, "error", err)
		}
	}
}

// shrink takes a snapshot and keeps so few entries behind it that, at the size
// of an entry until now, they take half of limit.
func (n *Node) shrink(size, limit int64) error {
	first, err := n.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("coordinator: compact: %w", err)
	}
	usual := n.raft.ReloadableConfig()
	short := usual
	entries := n.raft.LastIndex() - first + 1
	short.TrailingLogs = min(usual.TrailingLogs, uint64(float64(entries)*float64(limit)/2/float64(size)))
	if err := n.raft.ReloadConfig(short); err != nil {
		return fmt.Errorf("coordinator: compact: %w", err)
	}
	err = n.answer(n.raft.Snapshot())
	if rerr := n.raft.ReloadConfig(usual); err == nil {
		err = rerr
	}
	if err != nil {
		return fmt.Errorf("coordinator: compact: %w", err)
	}
	return nil
}

// logBytes is the size of the log's segment files.
func (n *Node) logBytes() (sum int64, err error) {
	files, err := filepath.Glob(filepath.Join(n.dir.LogPath(), "*.wal"))
	for _, f := range files {
		info, statErr := os.Stat(f)
		if statErr == nil { // else it was deleted meanwhile
			sum += info.Size()
		}
	}
	if err != nil {
		err = fmt.Errorf("coordinator: compact: %w", err)
	}
	return sum, err
}
