package coordinator

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
	"github.com/hashicorp/raft-wal/verifier"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// badDisk fails writes once full is set.
type badDisk struct {
	raft.LogStore
	full  atomic.Bool
	tries atomic.Int32
}

func (d *badDisk) StoreLogs(logs []*raft.Log) error {
	if d.full.Load() {
		d.tries.Add(1)
		return syscall.ENOSPC
	}
	return d.LogStore.StoreLogs(logs)
}

// A disk that refuses a write ends the node with a sentence: no panic, no second try, nothing acknowledged lost.
func TestFullDiskEndsTheNode(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	disk := &badDisk{}
	cfg.faults = func(s raft.LogStore) raft.LogStore { disk.LogStore = s; return disk }
	n := open(t, cfg)
	propose(t, n, "c", 1, registerOp("kept"))
	disk.full.Store(true)
	_, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 2, Op: registerOp("lost")})
	require.Error(t, err)
	require.Equal(t, Unknown, Classify(err))
	<-n.Done()
	require.ErrorIs(t, n.Err(), syscall.ENOSPC)
	require.ErrorContains(t, n.Err(), "free space")
	require.NotContains(t, n.Err().Error(), "\n")
	require.Equal(t, "stopped", n.Status().State)
	require.NoError(t, n.Close())
	require.Equal(t, int32(1), disk.tries.Load())

	cfg.faults = nil
	n = open(t, cfg)
	require.Len(t, read(t, n).Nodes(), 1)
	propose(t, n, "c", 2, registerOp("found"))
}

type stubStable struct {
	raft.StableStore
	err error
}

func (s stubStable) Set(_, _ []byte) error              { return s.err }
func (s stubStable) SetUint64(_ []byte, _ uint64) error { return s.err }

// A term that cannot be kept is never reported as kept while raft still runs, and never an error, which would be a panic there.
func TestGuardHoldsRaftBack(t *testing.T) {
	var reported error
	g := newGuard(nil, stubStable{err: errors.New("read-only file system")}, func(time.Duration) {}, func(err error) { reported = err })
	returned := make(chan error, 1)
	go func() { returned <- g.SetUint64([]byte("term"), 4) }()
	<-g.bad
	select {
	case <-returned:
		t.Fatal("returned before raft was ended")
	case <-time.After(10 * time.Millisecond):
	}
	close(g.ending)
	require.NoError(t, <-returned)
	require.ErrorContains(t, reported, "read-only")
	require.NoError(t, g.Set(nil, nil))
	require.ErrorIs(t, g.StoreLog(&raft.Log{}), ErrStopped)
	require.ErrorIs(t, g.DeleteRange(1, 2), ErrStopped)
}

// A log that could not begin its next segment is mended by a start: the sentence says so.
func TestFailedRotationEndsTheNode(t *testing.T) {
	var reported error
	disk := failingLog{err: fmt.Errorf("%w: %w", fsm.ErrNotRotated, syscall.ENOSPC)}
	g := newGuard(disk, nil, func(time.Duration) {}, func(err error) { reported = err })
	require.ErrorIs(t, g.StoreLog(&raft.Log{}), fsm.ErrNotRotated)
	require.ErrorIs(t, reported, syscall.ENOSPC)
	require.ErrorContains(t, reported, "next segment")
	require.ErrorContains(t, reported, "start again")
	require.NotContains(t, reported.Error(), "\n")
}

type failingLog struct {
	raft.LogStore
	err error
}

func (l failingLog) StoreLogs([]*raft.Log) error { return l.err }

// lockedMeta writes no list of segments, as a kill before the end of a rotation.
type lockedMeta struct{ metadb.BoltMetaDB }

func (m *lockedMeta) CommitState(types.PersistentState) error { return syscall.ENOSPC }

// A node that was killed between sealing a segment and noting it starts, has
// what it had, and takes writes, at this start and the next.
func TestStartAfterACutRotation(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	propose(t, n, "c", 1, registerOp("before"))
	last := n.raft.LastIndex()
	var entry raft.Log
	require.NoError(t, n.log.GetLog(last, &entry))
	require.NoError(t, n.Close())
	m := &lockedMeta{}
	w, err := wal.Open(filepath.Join(dir, "log"), wal.WithMetaStore(m), wal.WithLogger(hclog.NewNullLogger()))
	require.NoError(t, err)
	for err == nil {
		last++
		err = w.StoreLog(&raft.Log{Index: last, Term: entry.Term, Type: raft.LogNoop, Data: make([]byte, 1<<10)})
	}
	require.ErrorIs(t, err, types.ErrSealed)
	require.NoError(t, errors.Join(w.Close(), m.Close()))
	for i := range 2 {
		n = open(t, testConfig(dir))
		propose(t, n, "c", uint64(i+2), registerOp(fmt.Sprintf("after-%d", i)))
		require.Len(t, read(t, n).Nodes(), i+2)
		require.GreaterOrEqual(t, n.raft.LastIndex(), last)
		require.NoError(t, n.Close())
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if label == "" || has(m, label) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func has(m *dto.Metric, value string) bool {
	for _, l := range m.Label {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}

// The log's own verification runs on a single node, too: every verifyEvery entries it is read back.
func TestLogIsVerified(t *testing.T) {
	cfg := testConfig(t.TempDir())
	reg := prometheus.NewRegistry()
	cfg.Registerer = reg
	n := open(t, cfg)
	for i := range 2*verifyEvery + 10 {
		propose(t, n, "c", uint64(i+1), registerOp("h"))
	}
	require.Eventually(t, func() bool {
		return counter(t, reg, "rlfleet_coordinator_log_ranges_verified_total", "ok") >= 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, n.Err())
	for _, name := range []string{"proposals_total", "applied_total"} { // and three of the leader's own
		require.Equal(t, float64(2*verifyEvery+10+3), counter(t, reg, "rlfleet_coordinator_"+name, ""))
	}
	for _, name := range []string{"entries_total", "apply_seconds", "commit_seconds", "fsync_seconds", "leader_changes_total", "is_leader"} {
		require.Positive(t, counter(t, reg, "rlfleet_coordinator_"+name, ""), name)
	}

	n.verified(verifier.VerificationReport{Err: verifier.ErrRangeMismatch})
	require.NoError(t, n.Err(), "a range that was compacted away is no damage")
	n.verified(verifier.VerificationReport{Err: verifier.ErrChecksumMismatch("range differs")})
	<-n.Done()
	require.ErrorContains(t, n.Err(), "range differs")
}

// Snapshots are taken by themselves, two are kept, and the log behind them is cut.
func TestSnapshotsByThemselves(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.SnapshotAfter, cfg.SnapshotEvery, cfg.TrailingLogs = 20, 10*time.Millisecond, 10
	n := open(t, cfg)
	whole := func() (names []string) {
		all, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"))
		require.NoError(t, err)
		for _, name := range all {
			if filepath.Ext(name) != ".tmp" {
				names = append(names, name)
			}
		}
		return names
	}
	seq := uint64(0)
	require.Eventually(t, func() bool {
		seq++
		propose(t, n, "c", seq, registerOp("h"))
		first, err := n.log.FirstIndex()
		require.NoError(t, err)
		return first > 60 && len(whole()) >= 2
	}, time.Minute, 100*time.Microsecond)
	want := dump(t, read(t, n))
	require.NoError(t, n.Close())
	require.Len(t, whole(), 2)
	n = open(t, cfg)
	require.Equal(t, want, dump(t, read(t, n)))
}
