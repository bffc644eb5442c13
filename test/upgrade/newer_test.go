package upgrade

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// listing is every file with its content, but for the lock.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(p)
		out[p] = string(b)
		return err
	}))
	return out
}

// newest returns the file of the newest snapshot.
func newest(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	index := func(file string) (m raft.SnapshotMeta) {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(file), "meta.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &m))
		return m
	}
	return slices.MaxFunc(files, func(a, b string) int { return int(index(a).Index) - int(index(b).Index) })
}

// rewrite replaces the newest snapshot by records, in today's container.
func rewrite(t *testing.T, dir string, change func([]*raftlog.Record) [][]byte) {
	t.Helper()
	f, err := os.Open(newest(t, dir))
	require.NoError(t, err)
	s, err := fsm.ReadSnapshot(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	all := change(records(s))
	b := binary.LittleEndian.AppendUint32([]byte("rlfsnap\n"), 1)
	for _, r := range all {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(r))), r...)
	}
	b = binary.LittleEndian.AppendUint32(b, 1<<32-1)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(all)))
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = sum.Write(b)
	require.NoError(t, os.WriteFile(newest(t, dir), sum.Sum(b), 0o600))
}

func encoded(t *testing.T, all []*raftlog.Record) (out [][]byte) {
	t.Helper()
	for _, r := range all {
		b, err := proto.Marshal(r)
		require.NoError(t, err)
		out = append(out, b)
	}
	return out
}

// unknown is a message with a field that nobody knows yet, as an operation or a record of a later version decodes here.
func unknown() []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), []byte("later"))
}

// appendEntry adds an entry of a later version to the log.
func appendEntry(t *testing.T, dir string, data []byte) {
	t.Helper()
	meta := &metadb.BoltMetaDB{} // the library leaves it open
	w, err := wal.Open(filepath.Join(dir, "log"), wal.WithLogger(hclog.NewNullLogger()), wal.WithSegmentSize(64<<10), wal.WithMetaStore(meta))
	require.NoError(t, err)
	last, err := w.LastIndex()
	require.NoError(t, err)
	var l raft.Log
	require.NoError(t, w.GetLog(last, &l))
	require.NoError(t, w.StoreLog(&raft.Log{Index: last + 1, Term: l.Term, Type: raft.LogCommand, Data: data}))
	require.NoError(t, errors.Join(w.Close(), meta.Close()))
}

func entry(t *testing.T, ops ...*raftlog.Op) []byte {
	t.Helper()
	e := &raftlog.Entry{Term: 1, NowNs: 1}
	for _, op := range ops {
		e.Proposals = append(e.Proposals, &raftlog.Proposal{Op: op})
	}
	b, err := fsm.EncodeEntry(e)
	require.NoError(t, err)
	return b
}

// A directory that a later version has written is refused in one sentence that
// says which version to run, by the node and by the offline reader, and stays
// as it is: nomad#20072 is a downgrade that failed half way, arcadedb#4798 an
// unknown entry that was skipped, nomad#24412 a snapshot with an unknown record.
func TestNewerData(t *testing.T) {
	tick := &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}
	for name, write := range map[string]func(t *testing.T, dir string){
		"directory format": func(t *testing.T, dir string) {
			name := filepath.Join(dir, "version.json")
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(name, bytes.Replace(b, []byte(`"format":1`), []byte(`"format":99`), 1), 0o600))
		},
		"entry format": func(t *testing.T, dir string) {
			b := entry(t, tick)
			b[0] = fsm.EntryFormat + 1
			appendEntry(t, dir, b)
		},
		"unknown operation": func(t *testing.T, dir string) {
			op := &raftlog.Op{}
			op.ProtoReflect().SetUnknown(unknown())
			appendEntry(t, dir, entry(t, tick, op, tick))
		},
		"level of the log": func(t *testing.T, dir string) {
			appendEntry(t, dir, entry(t, &raftlog.Op{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Level: state.Level + 1}}}))
		},
		"snapshot container": func(t *testing.T, dir string) {
			b, err := os.ReadFile(newest(t, dir))
			require.NoError(t, err)
			b[len("rlfsnap\n")]++
			require.NoError(t, os.WriteFile(newest(t, dir), b, 0o600))
		},
		"snapshot format": func(t *testing.T, dir string) {
			rewrite(t, dir, func(all []*raftlog.Record) [][]byte {
				all[0].GetHeader().Format = state.Level + 1
				return encoded(t, all)
			})
		},
		"unknown record": func(t *testing.T, dir string) {
			rewrite(t, dir, func(all []*raftlog.Record) [][]byte {
				all[len(all)-1].GetFooter().Records++
				return slices.Insert(encoded(t, all), len(all)-1, unknown())
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, "testdata/d1776f2-all-closed.tar.gz")
			require.NoError(t, os.Remove(filepath.Join(dir, "closed.json"))) // a later version knows how its log ended
			write(t, dir)
			before := listing(t, dir)
			for reader, open := range map[string]func() error{
				"offline": func() error { _, err := fsm.Open(dir); return err },
				"node":    func() error { _, err := coordinator.Open(t.Context(), config(dir)); return err },
			} {
				err := open()
				require.ErrorIs(t, err, fsm.ErrNewer, reader)
				require.ErrorContains(t, err, "run that version or a later one", reader)
				require.NotContains(t, err.Error(), "\n", reader)
				require.Equal(t, before, listing(t, dir), reader)
			}
		})
	}
}

// Nothing is wrong with the way these tests rewrite data: unchanged, it opens.
func TestRewrittenDataOpens(t *testing.T) {
	dir := unpack(t, "testdata/d1776f2-all-closed.tar.gz")
	rewrite(t, dir, func(all []*raftlog.Record) [][]byte { return encoded(t, all) })
	appendEntry(t, dir, entry(t, &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}))
	_, err := fsm.Open(dir)
	require.NoError(t, err)
	register(t, open(t, config(dir)), 1)
}
