package coordinator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Each test here is a failure of a disk, a log or a snapshot that users of
// other systems reported, as repository and number (test/robustness/README.md).

// watchedDisk calls before and after every truncation of the log.
type watchedDisk struct {
	raft.LogStore
	before, after func()
	err           error
}

func (d *watchedDisk) DeleteRange(first, last uint64) error {
	if d.before != nil {
		d.before()
	}
	if d.err != nil {
		return d.err
	}
	err := d.LogStore.DeleteRange(first, last)
	if d.after != nil {
		d.after()
	}
	return err
}

func largeOp(name string, bytes int) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
		Node: &raftlog.NodeRef{Role: state.RoleHost, Name: name, Incarnation: 1}, Agents: 1,
		Labels: map[string]string{"x": strings.Repeat("x", bytes)},
	}}}
}

// A node that is killed after its snapshot and before, or in the middle of, the
// compaction that follows starts with all it had.
func TestRqlite2540_KillBetweenSnapshotAndCompaction(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.TrailingLogs, cfg.SegmentBytes = 2, 64<<10
	var left []string
	disk := &watchedDisk{}
	disk.before = func() { left = append(left, killed(t, cfg.Dir)) }
	disk.after = disk.before
	cfg.faults = func(s raft.LogStore) raft.LogStore { disk.LogStore = s; return disk }
	n := open(t, cfg)
	for i := range 40 {
		propose(t, n, "c", uint64(i+1), largeOp(fmt.Sprint("h", i), 4<<10)) // several segments
	}
	want := dump(t, read(t, n))
	require.NoError(t, n.Snapshot())
	require.Len(t, left, 2)
	cfg.faults = nil
	for _, dir := range left {
		offline, err := fsm.Open(dir)
		require.NoError(t, err)
		require.Equal(t, want, dump(t, offline))
		cfg.Dir = dir
		again := open(t, cfg)
		require.Len(t, read(t, again).Nodes(), 40)
		propose(t, again, "c", 41, registerOp("after"))
		require.NoError(t, again.Snapshot())
	}
}

// smallDisk mounts a file system in memory on the snapshots of a node, or skips the test.
func smallDisk(t *testing.T, dir, size string) (resize func(string)) {
	t.Helper()
	at := filepath.Join(dir, "snapshots")
	require.NoError(t, os.MkdirAll(at, 0o700))
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED, no snapshot met a full disk: a file system in memory cannot be mounted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return func(size string) { require.NoError(t, unix.Mount("tmpfs", at, "tmpfs", unix.MS_REMOUNT, "size="+size)) }
}

// A snapshot that does not fit on the disk compacts nothing and leaves nothing
// behind, the node goes on and starts again on the full disk, and the next
// snapshot with room succeeds.
func TestBraft462_Etcd5518_FullDiskDuringSnapshot(t *testing.T) {
	dir := t.TempDir()
	resize := smallDisk(t, dir, "64k")
	cfg := testConfig(dir)
	cfg.TrailingLogs = 1
	truncated := atomic.Int32{}
	cfg.faults = func(s raft.LogStore) raft.LogStore {
		return &watchedDisk{LogStore: s, before: func() { truncated.Add(1) }}
	}
	n := open(t, cfg)
	for i := range 40 {
		propose(t, n, "c", uint64(i+1), largeOp(fmt.Sprint("h", i), 4<<10))
	}
	for range 3 {
		err := n.Snapshot()
		require.ErrorContains(t, err, syscall.ENOSPC.Error())
	}
	require.NoError(t, n.Err())
	require.Zero(t, truncated.Load(), "the log was compacted without a snapshot")
	propose(t, n, "c", 41, registerOp("beside the full disk"))
	want := dump(t, read(t, n))
	require.NoError(t, n.Close())

	n = open(t, cfg)
	require.Equal(t, want, dump(t, read(t, n)))
	require.Error(t, n.Snapshot())
	resize("16m")
	require.NoError(t, n.Snapshot())
	require.Positive(t, truncated.Load())
	require.NoError(t, n.Close())
	n = open(t, cfg)
	require.Equal(t, want, dump(t, read(t, n)))
	unfinished, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	require.NoError(t, err)
	require.Empty(t, unfinished)
}

// A truncation that fails ends the node: what is on disk may differ from what the log believes.
func TestFailedTruncationEndsTheNode(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.TrailingLogs = 1
	cfg.faults = func(s raft.LogStore) raft.LogStore { return &watchedDisk{LogStore: s, err: syscall.ENOSPC} }
	n := open(t, cfg)
	for i := range 5 {
		propose(t, n, "c", uint64(i+1), registerOp(fmt.Sprint("h", i)))
	}
	require.Error(t, n.Snapshot())
	<-n.Done()
	require.ErrorIs(t, n.Err(), syscall.ENOSPC)
	require.ErrorContains(t, n.Err(), "truncate log")
	require.NotContains(t, n.Err().Error(), "\n")
	require.NoError(t, n.Close())
	cfg.faults = nil
	require.Len(t, read(t, open(t, cfg)).Nodes(), 5)
}

// A log of few and large entries is bounded by its size, although the number of
// entries asks for no snapshot and the number to keep is larger than the log.
func TestArcadeDB5345_LogIsBoundedBySize(t *testing.T) {
	const limit = 1 << 20
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes, cfg.SnapshotAfter = 64<<10, 1<<40
	n := open(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() { n.compact(ctx, limit, time.Millisecond) })
	largest := int64(0)
	for i := range 300 { // ten times the limit
		propose(t, n, "c", uint64(i+1), largeOp(fmt.Sprint("h", i%10), 32<<10))
		size, err := n.logBytes()
		require.NoError(t, err)
		largest = max(largest, size)
	}
	require.Eventually(t, func() bool {
		size, err := n.logBytes()
		return err == nil && size <= limit
	}, time.Minute, time.Millisecond)
	stop()
	loop.Wait()
	t.Logf("at most %d KiB while 10 MiB were written", largest>>10)
	require.Less(t, largest, int64(8<<20))
	require.Equal(t, cfg.TrailingLogs, n.raft.ReloadableConfig().TrailingLogs)
	want := dump(t, read(t, n))
	require.NoError(t, n.Close())
	n = open(t, cfg)
	require.Equal(t, want, dump(t, read(t, n)))
}

// After a burst and a snapshot the log's files are as small as before the
// burst: its cost per write cannot depend on what it once held.
func TestConsul5181_BurstLeavesNothingBehind(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes, cfg.SnapshotAfter, cfg.TrailingLogs = 64<<10, 1<<40, 8
	n := open(t, cfg)
	seq := uint64(0)
	meta := filepath.Join(cfg.Dir, "log", "wal-meta.db")
	write := func(count int) (log, metadata int64) {
		for range count {
			seq++
			propose(t, n, "c", seq, largeOp("h", 4<<10))
		}
		require.NoError(t, n.Snapshot())
		log, err := n.logBytes()
		require.NoError(t, err)
		info, err := os.Stat(meta)
		require.NoError(t, err)
		return log, info.Size()
	}
	log, metadata := write(50)
	for range 3 {
		write(500)
	}
	after, metadataAfter := write(50)
	require.LessOrEqual(t, after, log+2*64<<10)
	require.LessOrEqual(t, metadataAfter, 2*metadata)
}

// Snapshots beside writes hold the state of one moment each: every one of them
// is read back, and is what replaying the log up to its index gives.
func TestRqlite1627_SnapshotsDuringWrites(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n := open(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for seq := uint64(1); ctx.Err() == nil; seq++ {
			_, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "w", Seq: seq, Op: registerOp(fmt.Sprint("h", seq%50))})
			if err != nil {
				t.Errorf("write %d beside a snapshot: %v", seq, err)
				return
			}
		}
	})
	for range 50 {
		f := n.raft.Snapshot()
		require.NoError(t, f.Error())
		meta, r, err := f.Open()
		require.NoError(t, err)
		s, err := fsm.ReadSnapshot(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		replayed := state.New()
		for i := uint64(1); i <= meta.Index; i++ {
			var l raft.Log
			require.NoError(t, n.log.GetLog(i, &l))
			if l.Type != raft.LogCommand {
				continue
			}
			e, err := fsm.DecodeEntry(l.Data)
			require.NoError(t, err)
			replayed.Apply(e)
		}
		require.Equal(t, dump(t, replayed), dump(t, s))
	}
	stop()
	writer.Wait()
}
