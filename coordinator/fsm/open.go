package fsm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
	wfs "github.com/hashicorp/raft-wal/fs"
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/coordinator/state"
)

func osFiles() *wfs.FS { return wfs.New() }

// Loaded is what the newest readable snapshot of a directory holds.
type Loaded struct {
	State   *state.State
	ID      string  // of the snapshot; empty when there is none
	Index   uint64  // log index it ends at
	Servers int     // of the cluster when it was taken
	Skipped []error // newer snapshots that could not be read

	restoring uint64 // epoch of a restore that was not seen to end
}

// unfinished ends the name of a snapshot that is being written.
const unfinished = ".tmp"

// Load reads the newest snapshot that can be read. One of a newer format is
// never passed over: ErrNewer.
func (d *Dir) Load() (Loaded, error) {
	metas, bad, err := d.snapshots()
	if err != nil {
		return Loaded{}, err
	}
	out := Loaded{State: state.New(), Skipped: bad}
	var mark restoreMark
	if _, err := readJSON(d.path, restoreName, &mark); err != nil {
		return Loaded{}, err
	}
	out.restoring = mark.Epoch
	for _, m := range metas {
		s, err := d.readSnapshot(m.ID)
		if err == nil {
			out.State, out.ID, out.Index, out.Servers = s, m.ID, m.Index, len(m.Configuration.Servers)
			return out, nil
		}
		if errors.Is(err, ErrNewer) {
			return Loaded{}, err
		}
		out.Skipped = append(out.Skipped, err)
	}
	if len(out.Skipped) > 0 {
		return Loaded{}, fmt.Errorf("fsm: open %s: none of %d snapshots can be read; the first: %w", d.path, len(out.Skipped), out.Skipped[0])
	}
	return out, nil
}

func (d *Dir) readSnapshot(id string) (*state.State, error) {
	f, err := os.Open(filepath.Join(d.path, snapshotName, id, "state.bin"))
	if err != nil {
		return nil, fmt.Errorf("fsm: snapshot %s: %w: %w", id, err, ErrDamaged)
	}
	s, err := ReadSnapshot(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return s, nil
}

// snapshots lists complete snapshots, newest first, and what could not be read of them.
func (d *Dir) snapshots() (metas []raft.SnapshotMeta, bad []error, err error) {
	dir := filepath.Join(d.path, snapshotName)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("fsm: open %s: %w: %w", dir, err, ErrOpenFailed)
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), unfinished) {
			continue
		}
		m := raft.SnapshotMeta{}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "meta.json"))
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("fsm: snapshot %s: %w: %w", e.Name(), err, ErrDamaged))
			continue
		}
		m.ID = e.Name()
		metas = append(metas, m)
	}
	slices.SortFunc(metas, func(a, b raft.SnapshotMeta) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Index, a.Index), cmp.Compare(b.ID, a.ID))
	})
	return metas, bad, nil
}

// Open reads the state of a stopped node: the newest snapshot and the log after
// it. It changes nothing but the lock file, and fails with ErrLocked while the
// node runs and ErrNoData where there is none. Of a node in a larger cluster it
// may show entries that were not yet committed.
func Open(path string) (*state.State, error) {
	if _, err := os.Stat(filepath.Join(path, versionName)); err != nil {
		return nil, fmt.Errorf("fsm: open %s: %w", path, ErrNoData)
	}
	d, err := lock(path, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	s, err := d.replay()
	return s, errors.Join(err, d.Close())
}

func (d *Dir) replay() (*state.State, error) {
	if _, err := d.readInfo(); err != nil {
		return nil, err
	}
	from, err := d.Load()
	if err != nil {
		return nil, err
	}
	l, err := d.openLogReadOnly()
	if err != nil {
		return nil, err
	}
	err = d.replayLog(l, from)
	return from.State, errors.Join(err, l.Close())
}

func (d *Dir) replayLog(l *Log, from Loaded) error {
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("fsm: open %s: %w: %w", d.path, err, ErrDamaged)
	}
	if from.replaces(last) {
		return nil
	}
	if err := CheckLog(l, from.Index); err != nil {
		return err
	}
	if err := d.checkClosed(last); err != nil {
		return err
	}
	for i := from.Index + 1; i <= last; i++ {
		var entry raft.Log
		if err := l.GetLog(i, &entry); err != nil {
			return fmt.Errorf("fsm: open %s: entry %d: %w: %w", d.path, i, err, ErrDamaged)
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		e, err := DecodeEntry(entry.Data)
		if err != nil {
			return fmt.Errorf("fsm: open %s: entry %d: %w", d.path, i, err)
		}
		from.State.Apply(e)
	}
	return nil
}
