package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/guest"
)

// Build implements envpool.Runtime: it copies the layers into a directory that
// slots mount as the lower layer of their overlays, and that never changes.
func (r *Runtime) Build(ctx context.Context, id envpool.SnapshotID, t envpool.Template) (int64, error) {
	if t.Image != "" && t.Image != "host" {
		return 0, fmt.Errorf("bubblewrap: build: image %q: only \"host\": %w", t.Image, envpool.ErrUnsupported)
	}
	if _, _, err := guest.Locate(orApp(t.Workdir)); err != nil {
		return 0, fmt.Errorf("bubblewrap: build: workdir: %w: %w", envpool.ErrInvalid, err)
	}
	return r.make(id, func(b *builder) error {
		for _, g := range guest.Roots {
			if err := b.dir(g.Name, fs.FileMode(g.Mode)); err != nil {
				return err
			}
		}
		for _, l := range t.Layers {
			g, rest, err := guest.Locate(path.Clean(l.Dest))
			if err != nil {
				return fmt.Errorf("layer: %w: %w", envpool.ErrInvalid, err)
			}
			if err := b.layer(ctx, l.Source, path.Join(g.Name, rest)); err != nil {
				return fmt.Errorf("layer %s at %s: %w", l.Source, l.Dest, err)
			}
		}
		return b.dir(strings.TrimPrefix(workdirIn(t.Workdir), "/"), 0)
	})
}

func orApp(dir string) string {
	if dir == "" {
		return "/app"
	}
	return dir
}

// workdirIn is where in a template the workdir is, so that it exists.
func workdirIn(dir string) string {
	g, rest, _ := guest.Locate(orApp(dir))
	return path.Join("/", g.Name, rest)
}

// make builds a state's directory and enters it under id; a failure leaves nothing.
func (r *Runtime) make(id envpool.SnapshotID, f func(*builder) error) (int64, error) {
	r.mu.Lock()
	r.made++
	name := fmt.Sprintf("t%d", r.made)
	r.mu.Unlock()
	dir := filepath.Join(r.dir, "templates", name)
	b := &builder{owner: -1}
	if r.root && !r.spawn.idmap {
		b.owner = r.cfg.UIDBase
	}
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = b.in(dir, f)
	}
	if err != nil {
		return 0, fmt.Errorf("bubblewrap: build: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[id] = name
	return b.size, nil
}

// Drop implements envpool.Runtime.
func (r *Runtime) Drop(id envpool.SnapshotID) error {
	r.mu.Lock()
	name, ok := r.states[id]
	delete(r.states, id)
	r.mu.Unlock()
	if !ok {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "templates", name)); err != nil {
		return fmt.Errorf("bubblewrap: drop %s: %w", id, err)
	}
	return nil
}

// state returns the directory name of a state.
func (r *Runtime) state(id envpool.SnapshotID) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, ok := r.states[id]
	if !ok {
		return "", fmt.Errorf("snapshot %s: %w", id, envpool.ErrUnknown)
	}
	return name, nil
}

// builder writes one state. Its os.Root keeps every write inside, whatever
// links earlier layers brought.
type builder struct {
	root  *os.Root
	size  int64
	owner int // −1: who runs this
}

func (b *builder) in(dir string, f func(*builder) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	b.root = root
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	if b.owner >= 0 {
		if err := root.Chown(".", b.owner, b.owner); err != nil {
			return err
		}
	}
	return f(b)
}

// own gives an entry to the user of the slots.
func (b *builder) own(name string) error {
	if b.owner < 0 {
		return nil
	}
	return b.root.Lchown(name, b.owner, b.owner)
}

// dir makes a directory and its parents, or changes its mode; mode 0 leaves an existing one as it is.
func (b *builder) dir(name string, mode fs.FileMode) error {
	if parent := path.Dir(name); parent != "." {
		if err := b.dir(parent, 0); err != nil {
			return err
		}
	}
	err := b.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		if st, err := b.root.Lstat(name); err != nil || !st.IsDir() {
			return fmt.Errorf("%s is in the way of a directory: %w", name, envpool.ErrInvalid)
		}
		if mode == 0 {
			return nil
		}
	} else if err != nil {
		return err
	}
	if mode == 0 {
		mode = 0o755
	}
	if mode&0o1000 != 0 {
		mode = mode&0o777 | fs.ModeSticky
	}
	if err := b.root.Chmod(name, mode|0o700); err != nil { // the host must be able to remove it
		return err
	}
	return b.own(name)
}

// file writes a regular file in place of what is there.
func (b *builder) file(name string, mode fs.FileMode, content io.Reader) error {
	if err := b.root.RemoveAll(name); err != nil {
		return err
	}
	f, err := b.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	b.size += n
	if cerr := f.Chmod(mode.Perm() | 0o400); err == nil {
		err = cerr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return b.own(name)
}

func (b *builder) link(name, target string) error {
	if err := b.root.RemoveAll(name); err != nil {
		return err
	}
	if err := b.root.Symlink(target, name); err != nil {
		return err
	}
	return b.own(name)
}

// layer copies a directory or a file. Links that leave it, devices and the like are refused.
func (b *builder) layer(ctx context.Context, source, dest string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		to := path.Join(dest, filepath.ToSlash(rel))
		switch d.Type() {
		case fs.ModeDir:
			st, err := d.Info()
			if err != nil {
				return err
			}
			return b.dir(to, st.Mode().Perm())
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(filepath.ToSlash(rel)), target)) {
				return fmt.Errorf("link %s to %s leaves the layer: %w", rel, target, envpool.ErrUnsafe)
			}
			return b.link(to, target)
		case 0:
			return b.copyFile(p, rel, to)
		}
		return fmt.Errorf("%s is a %s: %w", rel, d.Type(), envpool.ErrUnsafe)
	})
}

func (b *builder) copyFile(from, rel, to string) error {
	if rel == "." { // the layer is this one file
		if err := b.dir(path.Dir(to), 0); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file any more: %w", from, envpool.ErrUnsafe)
	}
	return b.file(to, st.Mode(), f)
}

// clone fills the state with another one's entries. States never change, so files are shared by hard links.
func (b *builder) clone(from string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return fs.WalkDir(src.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			mode := st.Mode().Perm()
			if st.Mode()&fs.ModeSticky != 0 {
				mode |= 0o1000
			}
			return b.dir(p, mode)
		case fs.ModeSymlink:
			target, err := src.Readlink(p)
			if err != nil {
				return err
			}
			return b.link(p, target)
		}
		b.size += st.Size()
		if err := os.Link(filepath.Join(from, p), filepath.Join(b.root.Name(), p)); err == nil {
			return nil
		}
		b.size -= st.Size()
		f, err := src.Open(p) // too many links to it
		if err != nil {
			return err
		}
		defer f.Close()
		return b.file(p, st.Mode(), f)
	})
}
