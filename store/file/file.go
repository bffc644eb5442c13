// Package file keeps objects as files of one directory tree.
//
// A Put is durable when it returns: the content is written to a temporary file
// and synced, moved to its name without ever replacing another (so that of any
// number of creators exactly one wins), and the directory is synced. Several
// processes may use one tree at a time. Directories are never removed: that
// keeps "made and synced once" true for as long as the tree lives.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/store"
)

// Store is an ObjectStore over the directory it was opened on.
type Store struct {
	root string

	mu   sync.Mutex          // guards dirs
	dirs map[string]struct{} // directories known to be on disk, with all their parents

	write func(f *os.File, data []byte) (int, error) // (*os.File).Write, but for tests of a full disk
}

var _ store.ObjectStore = (*Store)(nil)

// Open returns the store rooted at dir and removes what writers that crashed
// left half-written. The directory is made by the first Put; reading where
// there is none finds nothing.
func Open(dir string) (*Store, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("file: open %s: %w", dir, err)
	}
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		return nil, fmt.Errorf("file: open %s: it is not a directory", root)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file: open: %w", err)
	}
	s := &Store{root: root, dirs: map[string]struct{}{}, write: (*os.File).Write}
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("file: open %s: sweep: %w", root, err)
	}
	return s, nil
}

// Root returns the absolute path of the tree.
func (s *Store) Root() string { return s.root }

func (s *Store) path(key string) string { return filepath.Join(s.root, filepath.FromSlash(key)) }

// Put implements store.ObjectStore.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	if err := s.check(ctx, key); err != nil {
		return err
	}
	if err := s.put(key, data); err != nil {
		return fmt.Errorf("file: put %s: %w", key, full(err))
	}
	return nil
}

func (s *Store) put(key string, data []byte) error {
	path := s.path(key)
	dir := filepath.Dir(path)
	if done, err := s.settled(path, data); done || err != nil {
		return err
	}
	// The write starts over where a sweep of another process took the temporary
	// file in the instant before it was locked, or somebody removed the directory.
	for range 3 {
		if err := s.makeDir(dir); err != nil {
			return err
		}
		tmp, err := s.writeTemp(data)
		if errors.Is(err, fs.ErrNotExist) {
			s.forget()
			continue
		}
		if err != nil {
			return err
		}
		err = moveNew(tmp.Name(), path)
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
		_ = tmp.Close() // synced before; closing only drops the lock
		switch {
		case err == nil:
			return syncDir(dir)
		case errors.Is(err, fs.ErrExist):
			_, err := s.settled(path, data)
			return err
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		s.forget()
	}
	return errors.New("files are being removed from under the store")
}

// settled reports whether path exists with data as its content, and then makes
// sure that its name is on disk: its creator may be between move and sync.
func (s *Store) settled(path string, data []byte) (bool, error) {
	have, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !bytes.Equal(have, data) {
		return false, store.ErrExists
	}
	dir := filepath.Dir(path)
	if err := s.makeDir(dir); err != nil {
		return false, err
	}
	return true, syncDir(dir)
}

// Get implements store.ObjectStore.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.check(ctx, key); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.path(key))
	if err != nil {
		return nil, fmt.Errorf("file: get %s: %w", key, absent(err))
	}
	return data, nil
}

// GetRange implements store.ObjectStore.
func (s *Store) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := s.check(ctx, key); err != nil {
		return nil, err
	}
	if offset < 0 || length < 0 {
		return nil, fmt.Errorf("file: get %s: range (%d, %d) is negative", key, offset, length)
	}
	f, err := os.Open(s.path(key))
	if err != nil {
		return nil, fmt.Errorf("file: get %s: %w", key, absent(err))
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("file: get %s: %w", key, err)
	}
	buf := make([]byte, min(length, max(0, st.Size()-offset)))
	n, err := f.ReadAt(buf, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("file: get %s: %w", key, absent(err))
	}
	return buf[:n], nil
}

// Head implements store.ObjectStore.
func (s *Store) Head(ctx context.Context, key string) (store.Info, error) {
	if err := s.check(ctx, key); err != nil {
		return store.Info{}, err
	}
	st, err := os.Stat(s.path(key))
	if err == nil && !st.Mode().IsRegular() {
		err = store.ErrNotFound // a directory is no object
	}
	if err != nil {
		return store.Info{}, fmt.Errorf("file: head %s: %w", key, absent(err))
	}
	return store.Info{Key: key, Size: st.Size()}, nil
}

// Delete implements store.ObjectStore.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.check(ctx, key); err != nil {
		return err
	}
	path := s.path(key)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("file: delete %s: %w", key, err)
	}
	return nil
}

func (s *Store) check(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("file: %s: %w", key, err)
	}
	return store.CheckKey(key)
}

// absent turns "no such file", also below another object, into the contract's kind.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EISDIR) {
		return store.ErrNotFound
	}
	return err
}

// full turns "no space", "no inodes" and "over quota" into the contract's kind.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return err
}
