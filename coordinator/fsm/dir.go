package fsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DirFormat is the format of the data directory as a whole; an older binary refuses a newer one.
const DirFormat = 1

// The files of a data directory.
const (
	lockName     = "lock"
	versionName  = "version.json"
	closedName   = "closed.json"
	restoreName  = "restoring.json"
	logName      = "log"
	snapshotName = "snapshots"
)

// Dir is a locked data directory of one node.
type Dir struct {
	path string
	lock *os.File
	info Info
}

// Info is what version.json says.
type Info struct {
	Format int    `json:"format"`
	Node   string `json:"node"`
	By     string `json:"by"` // version of the binary that made it

	// Cluster is the id of the cluster the node belongs to; empty while it waits for one.
	Cluster string `json:"cluster,omitempty"`

	// Holds is set once the log holds entries: from then on an empty log is a lost one.
	Holds bool `json:"holds,omitempty"`
}

// Create locks the data directory of a node, making it when it is not there.
// It fails with ErrLocked, ErrNewer, ErrOtherNode, ErrDamaged or ErrOpenFailed.
func Create(path, node, by string) (*Dir, error) {
	if err := os.MkdirAll(filepath.Join(path, logName), 0o700); err != nil {
		return nil, fmt.Errorf("fsm: open %s: %w: %w", path, err, ErrOpenFailed)
	}
	d, err := lock(path, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if err := d.adopt(node, by); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// lock takes the directory's lock without waiting.
func lock(path string, how int) (*Dir, error) {
	name := filepath.Join(path, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fsm: lock %s: %w: %w", path, err, ErrOpenFailed)
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		owner := ""
		if b, readErr := os.ReadFile(name); readErr == nil && len(b) > 0 {
			owner = " (process " + strings.TrimSpace(string(b)) + ")"
		}
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("fsm: lock %s%s: %w", path, owner, ErrLocked)
		}
		return nil, fmt.Errorf("fsm: lock %s: %w: %w", path, err, ErrOpenFailed)
	}
	return &Dir{path: path, lock: f}, nil
}

// adopt checks version.json, or writes it in a new directory.
func (d *Dir) adopt(node, by string) error {
	found, err := d.readInfo()
	if err != nil {
		return err
	}
	if found && d.info.Node != node {
		return fmt.Errorf("fsm: open %s: made for node %q, not %q: %w", d.path, d.info.Node, node, ErrOtherNode)
	}
	if !found {
		d.info = Info{Format: DirFormat, Node: node, By: by}
		if err := writeJSON(d.path, versionName, d.info); err != nil {
			return err
		}
	}
	pid := strconv.Itoa(os.Getpid()) + "\n" // for the sentence the next process prints
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("fsm: lock %s: %w: %w", d.path, err, ErrOpenFailed)
	}
	if _, err := d.lock.WriteAt([]byte(pid), 0); err != nil {
		return fmt.Errorf("fsm: lock %s: %w: %w", d.path, err, ErrOpenFailed)
	}
	return nil
}

func (d *Dir) readInfo() (bool, error) {
	found, err := readJSON(d.path, versionName, &d.info)
	if err != nil {
		return false, err
	}
	if found && d.info.Format > DirFormat {
		return false, fmt.Errorf("fsm: open %s: directory format %d (by %s), this binary knows %d: %w", d.path, d.info.Format, d.info.By, DirFormat, ErrNewer)
	}
	return found, nil
}

// Cluster returns the id of the cluster that the node belongs to, empty while it waits for one.
func (d *Dir) Cluster() string { return d.info.Cluster }

// SetCluster notes durably which cluster the node belongs to. It never changes: ErrOtherCluster.
func (d *Dir) SetCluster(id string) error {
	if d.info.Cluster == id {
		return nil
	}
	if d.info.Cluster != "" {
		return fmt.Errorf("fsm: open %s: made for cluster %s, not %s: %w", d.path, d.info.Cluster, id, ErrOtherCluster)
	}
	info := d.info
	info.Cluster = id
	if err := writeJSON(d.path, versionName, info); err != nil {
		return err
	}
	d.info = info
	return nil
}

// Held reports whether the log has ever held entries, as far as SetHeld was told.
func (d *Dir) Held() bool { return d.info.Holds }

// SetHeld notes durably that the log holds entries.
func (d *Dir) SetHeld() error {
	info := d.info
	info.Holds = true
	if err := writeJSON(d.path, versionName, info); err != nil {
		return err
	}
	d.info = info
	return nil
}

// Path returns the directory.
func (d *Dir) Path() string { return d.path }

// LogPath returns the folder of the write-ahead log.
func (d *Dir) LogPath() string { return filepath.Join(d.path, logName) }

// Close gives the lock back.
func (d *Dir) Close() error { return d.lock.Close() }

// closedMark is left by an orderly close: the last log index. After a kill it
// is missing and only the log itself can tell.
type closedMark struct {
	Last uint64 `json:"last"`
}

// MarkClosed notes the last log index of an orderly close.
func (d *Dir) MarkClosed(last uint64) error {
	return writeJSON(d.path, closedName, closedMark{Last: last})
}

// restoreMark is there while a snapshot is restored by hand: raft takes it in
// here before the others have it.
type restoreMark struct {
	Epoch uint64 `json:"epoch"` // that begins with it
}

// MarkRestoring notes that the state of an epoch is about to replace all others.
func (d *Dir) MarkRestoring(epoch uint64) error {
	return writeJSON(d.path, restoreName, restoreMark{Epoch: epoch})
}

// Restored removes the note: the state is the cluster's, or was not taken in.
func (d *Dir) Restored() error {
	if err := os.Remove(filepath.Join(d.path, restoreName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("fsm: open %s: %w: %w", d.path, err, ErrOpenFailed)
	}
	return nil
}

// Opened removes the mark of an orderly close, since from now on the log may
// grow, and what an unfinished snapshot left.
func (d *Dir) Opened() error {
	if err := os.Remove(filepath.Join(d.path, closedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("fsm: open %s: %w: %w", d.path, err, ErrOpenFailed)
	}
	return errors.Join(d.Restored(), d.sweep())
}

// checkClosed compares the log with the mark of an orderly close.
func (d *Dir) checkClosed(last uint64) error {
	var m closedMark
	found, err := readJSON(d.path, closedName, &m)
	if err != nil {
		return err
	}
	if found && last < m.Last {
		return fmt.Errorf("fsm: open %s: log ends at entry %d but was closed at %d: %w", d.path, last, m.Last, ErrDamaged)
	}
	return nil
}

func readJSON(dir, name string, v any) (found bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fsm: read %s in %s: %w: %w", name, dir, err, ErrOpenFailed)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("fsm: read %s in %s: %w", name, dir, ErrDamaged)
	}
	return true, nil
}

// writeJSON replaces a file durably: the whole old or the whole new content survives a crash.
func writeJSON(dir, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("fsm: write %s: %w", name, err)
	}
	if err := replace(filepath.Join(dir, name), append(b, '\n')); err != nil {
		return fmt.Errorf("fsm: write %s in %s: %w: %w", name, dir, err, ErrOpenFailed)
	}
	return nil
}

func replace(path string, data []byte) (err error) {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
