package file

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempDir holds files being written. A writer holds a lock on its file, so that
// a file without a lock is one whose writer died.
const tempDir = ".tmp"

// writeTemp returns a locked temporary file whose content is on disk. The caller moves or removes it, then closes it.
func (s *Store) writeTemp(data []byte) (*os.File, error) {
	dir := filepath.Join(s.root, tempDir)
	if err := s.makeDir(dir); err != nil {
		return nil, err
	}
	f, err := createLocked(dir)
	if err != nil {
		return nil, err
	}
	n, err := s.write(f, data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		_ = os.Remove(f.Name())
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func createLocked(dir string) (*os.File, error) {
	for {
		var id [12]byte
		if _, err := rand.Read(id[:]); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(dir, hex.EncodeToString(id[:])), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) { // else a sweep has it: take another name
			_ = os.Remove(f.Name())
			return nil, fmt.Errorf("lock: %w", err)
		}
	}
}

// sweep removes the temporary files that no living writer holds.
func (s *Store) sweep() error {
	dir := filepath.Join(s.root, tempDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrPermission) {
			continue // another user's: theirs to sweep
		}
		if err != nil {
			continue // moved to its place meanwhile
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.Remove(path)
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

// moveNew renames from to to unless to exists; then it returns fs.ErrExist.
func moveNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		return linkNew(from, to)
	}
	if err != nil {
		return fmt.Errorf("move into place: %w", err)
	}
	return nil
}

// linkNew does the same where the file system lacks the flag: a hard link refuses to replace as well.
func linkNew(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return fmt.Errorf("link into place: %w", err)
	}
	return os.Remove(from)
}

// makeDir makes dir and what is missing above it, and syncs the names of all
// directories of the tree once per process: another process may have made one
// and not synced it yet.
func (s *Store) makeDir(dir string) error {
	s.mu.Lock()
	_, known := s.dirs[dir]
	s.mu.Unlock()
	if known {
		return nil
	}
	parent := filepath.Dir(dir)
	if len(dir) < len(s.root) { // above the tree
		if _, err := os.Stat(dir); err == nil || parent == dir {
			return err
		}
	}
	if err := s.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// The directory above an old tree may be closed to us, and is not ours to sync.
	if err := syncDir(parent); err != nil && !(dir == s.root && errors.Is(err, fs.ErrPermission)) {
		return err
	}
	s.mu.Lock()
	s.dirs[dir] = struct{}{}
	s.mu.Unlock()
	return nil
}

// forget makes the next Put look at its directories again.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.dirs)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
