package coordinator

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/verifier"

	walmetrics "github.com/hashicorp/raft-wal/metrics"
)

// verifyEvery is the distance of the log entries that carry a checksum of the range before them.
const verifyEvery = 1024

// isCheckpoint marks by index, so that verifying the log writes nothing of its own.
func isCheckpoint(l *raft.Log) (bool, error) {
	return l.Type == raft.LogCommand && l.Index%verifyEvery == 0, nil
}

// verified reads the log back and compares it with what was written. The
// library's verifier adds up what it is given and does not hear of entries that
// a newer leader takes back, or that a snapshot replaces: it would find them
// missing and call the disk bad, here or, once this node leads, on every node.
// So each time the end of the log goes, a new verifier begins behind it.
type verified struct {
	logStore
	report func(verifier.VerificationReport)

	mu  sync.Mutex // held while now is written to or replaced
	now atomic.Pointer[verifier.LogStore]
}

// unclosed hides Close: the log outlives its verifiers.
type unclosed struct {
	raft.LogStore
	monotonic bool
}

// IsMonotonic implements raft.MonotonicLogStore.
func (u unclosed) IsMonotonic() bool { return u.monotonic }

func newVerified(log logStore, report func(verifier.VerificationReport)) *verified {
	v := &verified{logStore: log, report: report}
	v.beginLocked()
	return v
}

// beginLocked replaces the verifier. What the one before may still report is of a log that is no more.
func (v *verified) beginLocked() {
	var mine *verifier.LogStore
	mine = verifier.NewLogStore(unclosed{v.logStore, v.IsMonotonic()}, isCheckpoint, func(r verifier.VerificationReport) {
		if v.now.Load() == mine {
			v.report(r)
		}
	}, &walmetrics.NoOpCollector{})
	if old := v.now.Swap(mine); old != nil {
		_ = old.Close() // closes nothing but its own goroutine
	}
}

// IsMonotonic implements raft.MonotonicLogStore.
func (v *verified) IsMonotonic() bool {
	m, ok := v.logStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// StoreLog implements raft.LogStore.
func (v *verified) StoreLog(l *raft.Log) error { return v.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (v *verified) StoreLogs(logs []*raft.Log) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.Load().StoreLogs(logs)
}

// DeleteRange implements raft.LogStore.
func (v *verified) DeleteRange(first, last uint64) error {
	end, err := v.LastIndex()
	if err != nil {
		return err
	}
	if last >= end {
		v.mu.Lock() // compaction does not come here: it must not wait for a write
		defer v.mu.Unlock()
		v.beginLocked() // before anything goes, so that a reader that misses it is no longer heard
	}
	return v.logStore.DeleteRange(first, last)
}

// Close ends verifying and closes the log.
func (v *verified) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	_ = v.now.Load().Close() // closes nothing but its own goroutine
	return v.logStore.Close()
}

// verified reports a range of the log that was read back.
func (n *Node) verified(r verifier.VerificationReport) {
	_, mismatch := r.Err.(verifier.ErrChecksumMismatch) //nolint:errorlint // a value type that is never wrapped
	switch {
	case r.Err == nil:
		n.metrics.verified.WithLabelValues("ok").Inc()
	case mismatch:
		n.metrics.verified.WithLabelValues("mismatch").Inc()
		n.fail(fmt.Errorf("coordinator: verify log: %w: the disk does not return what was written; move the directory to another disk", r.Err))
	default: // the range was compacted away, or begins before this start
		n.metrics.verified.WithLabelValues("skipped").Inc()
	}
}
