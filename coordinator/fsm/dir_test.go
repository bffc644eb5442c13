package fsm

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
)

const smallSegment = 64 << 10

func create(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Create(path, "n1", "test")
	require.NoError(t, err)
	return d
}

// fill writes n entries as raft would, one batch each, and returns the state they make.
func fill(t *testing.T, d *Dir, n int) *state.State {
	t.Helper()
	l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
	require.NoError(t, err)
	s := state.New()
	for i := 1; i <= n; i++ {
		e := register(uint64(i), "host-"+strings.Repeat("x", i%50))
		s.Apply(e)
		require.NoError(t, l.StoreLogs([]*raft.Log{command(t, uint64(i), e)}))
	}
	require.NoError(t, l.Close())
	return s
}

// keep writes a snapshot as raft's file store lays it out.
func keep(t *testing.T, d *Dir, s *state.State, id string, index uint64) string {
	t.Helper()
	dir := filepath.Join(d.path, snapshotName, id)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	meta, err := json.Marshal(raft.SnapshotMeta{ID: id, Index: index, Term: 1})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "meta.json"), meta, 0o600))
	file := filepath.Join(dir, "state.bin")
	require.NoError(t, os.WriteFile(file, dump(t, s), 0o600))
	return file
}

// listing is every file with its content, to see that nothing changed.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == lockName {
			return err
		}
		b, err := os.ReadFile(p)
		out[p] = string(b)
		return err
	}))
	return out
}

func TestDirLockAndVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	d := create(t, path)
	_, err := Create(path, "n1", "test")
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, "process")
	require.NotContains(t, err.Error(), "\n")
	_, err = Open(path)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, d.Close())

	_, err = Create(path, "n2", "test")
	require.ErrorIs(t, err, ErrOtherNode)
	d = create(t, path)
	require.NoError(t, writeJSON(path, versionName, Info{Format: DirFormat + 1, Node: "n1", By: "9.9"}))
	require.NoError(t, d.Close())
	for name, open := range map[string]func() error{
		"node":    func() error { _, err := Create(path, "n1", "test"); return err },
		"offline": func() error { _, err := Open(path); return err },
	} {
		err = open()
		require.ErrorIs(t, err, ErrNewer, name)
		require.ErrorContains(t, err, "9.9")
	}
	require.NoError(t, os.WriteFile(filepath.Join(path, versionName), []byte("{"), 0o600))
	_, err = Create(path, "n1", "test")
	require.ErrorIs(t, err, ErrDamaged)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Create(file, "n1", "test")
	require.ErrorIs(t, err, ErrOpenFailed)
	_, err = Open(t.TempDir())
	require.ErrorIs(t, err, ErrNoData)
}

func TestOpenReadsAStoppedNode(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	want := fill(t, d, 900) // several segments
	require.NoError(t, d.Close())
	before := listing(t, path)
	require.Greater(t, len(before), 3)
	got, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, dump(t, want), dump(t, got))
	require.Equal(t, before, listing(t, path), "reading changes nothing")
}

func TestOpenUsesTheSnapshot(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	want := fill(t, d, 60)
	at40 := state.New()
	for i := 1; i <= 40; i++ {
		at40.Apply(register(uint64(i), "host-"+strings.Repeat("x", i%50)))
	}
	keep(t, d, at40, "1-40-7", 40)
	newest := keep(t, d, want, "1-60-8", 60)
	require.NoError(t, os.MkdirAll(filepath.Join(path, snapshotName, "1-61-9.tmp"), 0o700))
	from, err := d.Load()
	require.NoError(t, err)
	require.Equal(t, uint64(60), from.Index)
	require.Empty(t, from.Skipped)

	b, err := os.ReadFile(newest)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(newest, b[:len(b)-3], 0o600))
	from, err = d.Load()
	require.NoError(t, err)
	require.Equal(t, "1-40-7", from.ID, "an older one when the newest is damaged")
	require.Len(t, from.Skipped, 1)
	require.ErrorIs(t, from.Skipped[0], ErrCut)
	require.NoError(t, d.Close())
	got, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, dump(t, want), dump(t, got))

	b[len(snapshotMagic)]++
	require.NoError(t, os.WriteFile(newest, b, 0o600))
	_, err = Open(path)
	require.ErrorIs(t, err, ErrNewer, "a newer one is never passed over")

	require.NoError(t, os.WriteFile(newest, nil, 0o600))
	require.NoError(t, os.Remove(filepath.Join(path, snapshotName, "1-40-7", "meta.json")))
	_, err = Open(path)
	require.ErrorIs(t, err, ErrDamaged)
}

func segments(t *testing.T, path string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(path, logName, "*.wal"))
	require.NoError(t, err)
	return names
}

// Every way of damaging the log is noticed before anything is applied, by the
// node and by the offline reader, in one sentence; or it can't be told from a torn write.
func TestDamagedLog(t *testing.T) {
	corrupt := func(name string, at func(b []byte) int) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			files := segments(t, path)
			file := files[0]
			if name == "tail" {
				file = files[len(files)-1]
			}
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			b[at(b)] ^= 0x40
			require.NoError(t, os.WriteFile(file, b, 0o600))
		}
	}
	first := func(b []byte) int { return bytes.Index(b, []byte("host-")) }
	for name, c := range map[string]struct {
		entries int
		damage  func(t *testing.T, path string)
	}{
		"payload in a sealed segment": {900, corrupt("first", first)},
		"header of a sealed segment":  {900, corrupt("first", func([]byte) int { return 9 })},
		"payload in the tail":         {20, corrupt("tail", first)},
		"frame header in the tail":    {20, corrupt("tail", func([]byte) int { return segmentHeader })},
		"frame length in the tail":    {20, corrupt("tail", func([]byte) int { return segmentHeader + 6 })},
		"sealed segment missing": {900, func(t *testing.T, path string) {
			require.NoError(t, os.Remove(segments(t, path)[0]))
		}},
		"sealed segment cut": {900, func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(segments(t, path)[0], 4096))
		}},
		"metadata overwritten": {20, func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(filepath.Join(path, logName, "wal-meta.db"), bytes.Repeat([]byte("x"), 1<<15), 0o600))
		}},
		"metadata cut": {20, func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(filepath.Join(path, logName, "wal-meta.db"), 100))
		}},
		"tail missing after an orderly close": {20, func(t *testing.T, path string) {
			require.NoError(t, os.Remove(segments(t, path)[0]))
		}},
		"last entry lost after an orderly close": {20, corrupt("tail", func(b []byte) int { return bytes.LastIndex(b, []byte("host-")) })},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := create(t, path)
			fill(t, d, c.entries)
			if strings.Contains(name, "orderly") {
				require.NoError(t, d.MarkClosed(uint64(c.entries)))
			}
			require.NoError(t, d.Close())
			c.damage(t, path)
			before := listing(t, path)

			_, err := Open(path)
			require.ErrorIs(t, err, ErrDamaged)
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, before, listing(t, path))

			d = create(t, path)
			l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
			if err == nil {
				err = CheckLog(l, 0)
				require.NoError(t, l.Close())
			}
			require.ErrorIs(t, err, ErrDamaged)
			require.NoError(t, d.Close())
		})
	}
}

// A write that was torn by a crash was never acknowledged: the log goes on before it.
func TestTornLastWriteIsNotDamage(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	fill(t, d, 20)
	file := segments(t, path)[0]
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	last := bytes.LastIndex(b, []byte("host-"))
	clear(b[last : last+10]) // part of the last batch never reached the disk
	require.NoError(t, os.WriteFile(file, b, 0o600))
	l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
	require.NoError(t, err)
	require.NoError(t, CheckLog(l, 0))
	end, err := l.LastIndex()
	require.NoError(t, err)
	require.Equal(t, uint64(19), end)
	require.NoError(t, l.Close())
	require.NoError(t, d.Close())
}

func TestLogMustMeetTheSnapshot(t *testing.T) {
	d := create(t, t.TempDir())
	fill(t, d, 20)
	l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
	require.NoError(t, err)
	require.NoError(t, l.DeleteRange(1, 10))
	require.NoError(t, CheckLog(l, 10))
	require.ErrorIs(t, CheckLog(l, 9), ErrDamaged, "entry 10 is neither in the snapshot nor in the log")
	require.ErrorIs(t, CheckLog(l, 21), ErrDamaged, "the log ends before the snapshot")
	require.NoError(t, l.Close())
	require.NoError(t, d.Close())
}
