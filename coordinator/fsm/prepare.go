package fsm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"
)

// Prepare makes a node's log meet the snapshot that was loaded, and checks it as CheckLog does.
//
// A leader's snapshot takes the place of a follower's log: raft writes it and
// deletes the log after that, and a kill between the two leaves a log that ends
// before the snapshot and can neither go on nor be read from. That log is
// deleted here. A node alone is sent no snapshots: there a log that ends before
// its snapshot has lost its end, and stays damage.
//
// A restore by hand that was cut off after raft had taken it in stands: on a
// node alone it is the state; with others it may never have reached them, and
// the node cannot go on from it.
func (f Loaded) Prepare(l raft.LogStore) error {
	if f.cut() && f.Servers > 1 {
		return fmt.Errorf("fsm: open snapshot %s: %w", f.ID, ErrRestoreCut)
	}
	first, err := l.FirstIndex()
	if err != nil {
		return fmt.Errorf("fsm: check log: %w: %w", err, ErrDamaged)
	}
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("fsm: check log: %w: %w", err, ErrDamaged)
	}
	if f.replaces(last) {
		if err := l.DeleteRange(first, last); err != nil {
			return fmt.Errorf("fsm: delete the log that snapshot %s replaces: %w: %w", f.ID, err, ErrOpenFailed)
		}
		return nil
	}
	return CheckLog(l, f.Index)
}

// replaces reports whether the snapshot came from a leader and stands for a log that ends at last.
func (f Loaded) replaces(last uint64) bool {
	return last > 0 && last < f.Index && (f.Servers > 1 || f.cut())
}

// cut reports whether the snapshot is of a restore that was not seen to end.
func (f Loaded) cut() bool { return f.restoring != 0 && f.State.Clock().GetEpoch() == f.restoring }

// Spooled begins the name of a file in the data directory that holds a snapshot while it is being restored.
const Spooled = "restore-"

// sweep removes what a kill or a full disk left unfinished: snapshots, which raft leaves there for ever, and restores.
func (d *Dir) sweep() error {
	dir := filepath.Join(d.path, snapshotName)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("fsm: open %s: %w: %w", dir, err, ErrOpenFailed)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasSuffix(e.Name(), unfinished) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("fsm: remove unfinished snapshot %s: %w: %w", e.Name(), err, ErrOpenFailed)
		}
	}
	spooled, _ := filepath.Glob(filepath.Join(d.path, Spooled+"*")) // the pattern is good
	for _, path := range spooled {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("fsm: remove unfinished restore %s: %w: %w", path, err, ErrOpenFailed)
		}
	}
	return nil
}
