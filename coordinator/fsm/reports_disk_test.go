package fsm

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Each test here is a failure that users of other systems reported, as
// repository and number (test/robustness/README.md).

// An operation of a later version in the middle of a batch stops the machine
// before it: the entry is not skipped, nothing behind it is applied, the index stays.
func TestArcadeDB4798_UnknownOperationIsNotSkipped(t *testing.T) {
	later := &raftlog.Op{}
	later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	both := register(2, "beside")
	both.Proposals = append(both.Proposals, &raftlog.Proposal{Client: "d", Seq: 1, Op: later})
	f := New(state.New(), 0, nil)
	out := f.ApplyBatch([]*raft.Log{command(t, 1, register(1, "before")), command(t, 2, both), command(t, 3, register(3, "behind"))})
	require.IsType(t, []*raftlog.Result{}, out[0])
	require.ErrorIs(t, out[1].(error), ErrNewer)
	require.ErrorIs(t, out[2].(error), ErrNewer)
	<-f.Failed()
	require.NotContains(t, f.Err().Error(), "\n")
	s, index, _ := f.View()
	require.Equal(t, uint64(1), index)
	require.Len(t, s.Nodes(), 1, "an entry applies whole or not at all")
	require.Empty(t, s.Nodes()[0].Labels)
	_, err := f.Snapshot()
	require.ErrorIs(t, err, ErrNewer)
}

// A thousand snapshots beside as many entries: each is whole and is the state of its moment.
func TestRqlite1627_ThousandSnapshots(t *testing.T) {
	f := New(state.New(), 0, nil)
	hashes := map[uint64][]byte{} // what a machine without snapshots holds after each entry
	shadow := state.New()
	var mu sync.Mutex // guards hashes
	var wg sync.WaitGroup
	taken := make(chan raft.FSMSnapshot, 16)
	wg.Go(func() {
		for snap := range taken {
			sink := &memorySink{}
			if err := snap.Persist(sink); err != nil {
				t.Errorf("persist: %v", err)
			}
			snap.Release()
			s, err := ReadSnapshot(bytes.NewReader(sink.Bytes()))
			if err != nil {
				t.Errorf("read back: %v", err)
				continue
			}
			mu.Lock()
			want := hashes[uint64(s.Clock().NowNs/1e6)]
			mu.Unlock()
			if !bytes.Equal(want, sink.Bytes()) {
				t.Errorf("the snapshot at entry %d is not the state there", s.Clock().NowNs/1e6)
			}
		}
	})
	for i := uint64(1); i <= 1000; i++ {
		e := register(i, string(rune('a'+i%20)))
		shadow.Apply(e)
		mu.Lock()
		hashes[i] = dump(t, shadow)
		mu.Unlock()
		f.Apply(command(t, i, e))
		snap, err := f.Snapshot()
		require.NoError(t, err)
		taken <- snap // persisted beside the entries that follow
	}
	close(taken)
	wg.Wait()
}

// A stream that ends anywhere, as a sender that dies leaves it, is one clear
// sentence and changes nothing; what went before it stays.
func TestRaft417_Rqlite2759_CutStreamRestoresNothing(t *testing.T) {
	s := state.New()
	for i := uint64(1); i < 10; i++ {
		s.Apply(register(i, string(rune('a'+i))))
	}
	whole := dump(t, s)
	f := New(state.New(), 0, nil)
	f.Apply(command(t, 1, register(1, "mine")))
	mine, _, _ := f.View()
	want := dump(t, mine)
	for n := range len(whole) {
		err := f.Restore(io.NopCloser(bytes.NewReader(whole[:n])))
		require.Error(t, err)
		if n >= snapshotHeader {
			require.ErrorIs(t, err, ErrCut, "%d of %d bytes", n, len(whole))
		}
		require.NotContains(t, err.Error(), "\n")
		now, _, _ := f.View()
		require.Equal(t, want, dump(t, now))
	}
	require.NoError(t, f.Restore(io.NopCloser(bytes.NewReader(whole))))
}

// clustered notes in a snapshot's metadata that it was taken in a cluster.
func clustered(t *testing.T, file string, servers int) {
	t.Helper()
	name := filepath.Join(filepath.Dir(file), "meta.json")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	var m raft.SnapshotMeta
	require.NoError(t, json.Unmarshal(b, &m))
	for range servers {
		m.Configuration.Servers = append(m.Configuration.Servers, raft.Server{})
	}
	b, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, b, 0o600))
}

// A log that ends before the snapshot was replaced by it when a leader sent the
// snapshot, and has lost its end when there was no other node to send it.
func TestEtcd10219_LogEndsBeforeTheSnapshot(t *testing.T) {
	for servers, damaged := range map[int]bool{1: true, 3: false} {
		path := t.TempDir()
		d := create(t, path)
		fill(t, d, 20)
		s := state.New()
		for i := uint64(1); i <= 60; i++ {
			s.Apply(register(i, "from the leader"))
		}
		clustered(t, keep(t, d, s, "1-60-8", 60), servers)
		require.NoError(t, d.Close())
		before := listing(t, path)
		read, err := Open(path)
		require.Equal(t, before, listing(t, path))
		if damaged {
			require.ErrorIs(t, err, ErrDamaged)
		} else {
			require.NoError(t, err)
			require.Equal(t, dump(t, s), dump(t, read))
		}

		d = create(t, path)
		from, err := d.Load()
		require.NoError(t, err)
		l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
		require.NoError(t, err)
		err = from.Prepare(l)
		if damaged {
			require.ErrorIs(t, err, ErrDamaged)
			require.NoError(t, l.Close())
			require.NoError(t, d.Close())
			require.Equal(t, before, listing(t, path))
			continue
		}
		require.NoError(t, err)
		e := register(61, "next")
		s.Apply(e)
		require.NoError(t, l.StoreLog(command(t, 61, e)))
		require.NoError(t, from.Prepare(l))
		require.NoError(t, l.Close())
		require.NoError(t, d.Close())
		read, err = Open(path)
		require.NoError(t, err)
		require.Equal(t, dump(t, s), dump(t, read))
	}
}

// Snapshots that a kill or a full disk left unfinished are removed by the next
// start: raft leaves each of them there, and they fill the disk.
func TestEtcd5518_UnfinishedSnapshotsAreSwept(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	kept := keep(t, d, fill(t, d, 5), "1-5-7", 5)
	half := filepath.Join(path, snapshotName, "1-9-9"+unfinished)
	require.NoError(t, os.MkdirAll(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "state.bin"), make([]byte, 1<<16), 0o600))
	_, err := d.Load()
	require.NoError(t, err)
	require.DirExists(t, half, "reading changes nothing")
	require.NoError(t, d.Opened())
	require.NoDirExists(t, half)
	require.FileExists(t, kept)
	require.NoError(t, d.Close())
}
