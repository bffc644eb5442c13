package fsm

import (
	"bytes"
	"errors"
	"os"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
)

var errCut = errors.New("cut off before the metadata was written")

// cutMeta never writes a list of more than two segments, as a kill or a full disk at the second rotation does.
type cutMeta struct{ metadb.BoltMetaDB }

func (m *cutMeta) CommitState(s types.PersistentState) error {
	if len(s.Segments) > 2 {
		return errCut
	}
	return m.BoltMetaDB.CommitState(s)
}

// sealed writes entries until the tail segment is sealed and leaves it the tail
// in the metadata. It returns the state they make and the last index.
func sealed(t *testing.T, d *Dir) (*state.State, uint64) {
	t.Helper()
	m := &cutMeta{}
	w, err := wal.Open(d.LogPath(), wal.WithMetaStore(m), wal.WithSegmentSize(smallSegment), wal.WithLogger(hclog.NewNullLogger()))
	require.NoError(t, err)
	s := state.New()
	for i := uint64(1); ; i++ {
		e := register(i, "host-")
		err := w.StoreLogs([]*raft.Log{command(t, i, e)})
		if err != nil {
			require.ErrorIs(t, err, types.ErrSealed)
			require.NoError(t, errors.Join(w.Close(), m.Close()))
			require.Len(t, segments(t, d.path), 2)
			return s, i - 1
		}
		s.Apply(e)
	}
}

// goesOn opens the log three times, each time with one more entry, and reads
// back every entry from the first to the last.
func goesOn(t *testing.T, path string, s *state.State, last uint64) {
	t.Helper()
	for range 3 {
		d := create(t, path)
		l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
		require.NoError(t, err)
		got, err := l.LastIndex()
		require.NoError(t, err)
		require.Equal(t, last, got)
		last++
		e := register(last, "after")
		s.Apply(e)
		require.NoError(t, l.StoreLogs([]*raft.Log{command(t, last, e)}))
		require.NoError(t, CheckLog(l, 0))
		require.NoError(t, l.Close())
		require.NoError(t, d.Close())
		read, err := Open(path)
		require.NoError(t, err)
		require.Equal(t, dump(t, s), dump(t, read))
	}
}

// A kill between sealing a segment and noting it leaves a sealed tail: the log
// goes on in a new segment, with every entry there was.
func TestSealedTailIsRotated(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	s, last := sealed(t, d)
	require.NoError(t, d.Close())
	read, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, dump(t, s), dump(t, read), "the offline reader needs no rotation")
	goesOn(t, path, s, last)
	require.Len(t, segments(t, path), 3)
}

// A log without a sealed tail is opened as it is, whatever its tail holds.
func TestOpenLogChangesNothing(t *testing.T) {
	for name, entries := range map[string]int{"empty": 0, "one segment": 20, "several segments": 900} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := create(t, path)
			fill(t, d, entries)
			before := listing(t, path)
			l, err := d.OpenLog(hclog.NewNullLogger(), smallSegment)
			require.NoError(t, err)
			require.NoError(t, l.Close())
			require.Equal(t, before, listing(t, path))
			require.NoError(t, d.Close())
		})
	}
}

// The last batch of a segment may be torn with its seal: the entries before it
// stay and the segment is no longer full.
func TestTornSealIsNotDamage(t *testing.T) {
	for name, tear := range map[string]func(b []byte, end int) []byte{
		"commit missing":      func(b []byte, end int) []byte { clear(b[end-frameHeader : end]); return b },
		"index torn":          func(b []byte, end int) []byte { b[end-frameHeader-9] ^= 1; return b },
		"file ends in index":  func(b []byte, end int) []byte { return b[:end-100] },
		"file ends in commit": func(b []byte, end int) []byte { return b[:end-4] },
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := create(t, path)
			_, last := sealed(t, d)
			file := segments(t, path)[1]
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, tear(b, endOfFrames(b)), 0o600))

			require.NoError(t, d.MarkClosed(last)) // what an orderly close saw is damage when it is gone
			before := listing(t, path)
			_, err = d.OpenLog(hclog.NewNullLogger(), smallSegment)
			require.ErrorIs(t, err, ErrDamaged)
			require.Equal(t, before, listing(t, path))
			require.NoError(t, d.Opened())
			require.NoError(t, d.Close())

			s, err := Open(path)
			require.NoError(t, err)
			goesOn(t, path, s, last-1)
		})
	}
}

// A rotation that fails while the node runs is told to the next append with its
// cause, and ended by the next start; a start that cannot end it says so.
func TestFailedRotation(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	l, err := d.openLogOn(hclog.NewNullLogger(), smallSegment, &cutMeta{})
	require.NoError(t, err)
	s, last := state.New(), uint64(0)
	for err == nil {
		e := register(last+1, "host-")
		if err = l.StoreLog(command(t, last+1, e)); err == nil {
			s.Apply(e)
			last++
		}
	}
	require.ErrorIs(t, err, ErrNotRotated)
	require.ErrorIs(t, err, errCut)
	require.NoError(t, l.Close())

	_, err = d.openLogOn(hclog.NewNullLogger(), smallSegment, &cutMeta{})
	require.ErrorIs(t, err, errCut)
	require.ErrorIs(t, err, ErrOpenFailed)
	require.NotErrorIs(t, err, ErrDamaged)
	require.NoError(t, d.Close())
	goesOn(t, path, s, last)
}

// A sealed tail with a bad batch before its last one is damage, and stays as it is.
func TestSealedTailWithABadBatch(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	sealed(t, d)
	file := segments(t, path)[1]
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[bytes.Index(b, []byte("host-"))] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
	before := listing(t, path)
	_, err = d.OpenLog(hclog.NewNullLogger(), smallSegment)
	require.ErrorIs(t, err, ErrDamaged)
	require.NotContains(t, err.Error(), "\n")
	require.Equal(t, before, listing(t, path))
	require.NoError(t, d.Close())
}
