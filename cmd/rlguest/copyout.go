//go:build linux

package main

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool/guest"
)

// Bounds of one Collect beside its bytes.
const (
	maxEntries = 20000
	maxDepth   = 64
)

// collect ends the processes, so that the files stand still, and sends the
// regular files below the given paths.
func (s *server) collect(c guest.Collect) *guest.Failure {
	killAll()
	reapAll(nil)
	w := &collector{s: s, left: c.Limit, limit: c.Limit, entries: maxEntries}
	for _, p := range c.Paths {
		dir, rest, fail := openRoot(p)
		if fail != nil {
			return fail
		}
		fail = w.visit(dir, rest, p, 0)
		unix.Close(dir)
		if fail != nil {
			return fail
		}
	}
	return nil
}

type collector struct {
	s           *server
	left, limit int64
	entries     int
}

// visit sends the file at name, or the files below it. What is absent or neither file nor directory is passed over.
func (w *collector) visit(dir int, name, full string, depth int) *guest.Failure {
	var st unix.Stat_t
	f, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		if k := refused(full, err); k.Kind == guest.KindBroken {
			return k
		}
		return nil
	}
	err = unix.Fstat(f, &st)
	unix.Close(f)
	if err != nil {
		return refused(full, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return w.file(dir, name, full, st.Mode)
	case unix.S_IFDIR:
		if depth == maxDepth {
			return guest.Failf(guest.KindTooLarge, "%s: deeper than %d directories", full, maxDepth)
		}
		return w.dir(dir, name, full, depth)
	}
	return nil
}

func (w *collector) dir(at int, name, full string, depth int) *guest.Failure {
	d, err := openAt(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return refused(full, err)
	}
	defer unix.Close(d)
	entries, err := names(d)
	if err != nil {
		return refused(full, err)
	}
	for _, n := range entries {
		if fail := w.visit(d, n, path.Join(full, n), depth+1); fail != nil {
			return fail
		}
	}
	return nil
}

func (w *collector) file(dir int, name, full string, mode uint32) *guest.Failure {
	if w.entries--; w.entries < 0 {
		return guest.Failf(guest.KindTooLarge, "more than %d files", maxEntries)
	}
	f, size, err := openFile(dir, name)
	if err != nil {
		return refused(full, err)
	}
	defer unix.Close(f)
	if w.left -= size; w.left < 0 {
		return guest.Failf(guest.KindTooLarge, "%s: more than %d bytes in all", full, w.limit)
	}
	return w.s.send(f, guest.Entry{Kind: guest.EntryFile, Path: full, Mode: mode & 0o777, Size: size})
}

// send sends one entry and, for a file, exactly Size bytes of content.
func (s *server) send(f int, e guest.Entry) *guest.Failure {
	if err := guest.WriteFrame(s.control, guest.OpEntry, e.Encode()); err != nil {
		return broken(err)
	}
	if e.Kind != guest.EntryFile {
		return nil
	}
	buf := make([]byte, min(e.Size, guest.ChunkSize))
	for left := e.Size; left > 0; {
		n, err := fd(f).Read(buf[:min(left, int64(len(buf)))])
		if err != nil {
			return broken(fmt.Errorf("read %s: %w", e.Path, err))
		}
		if err := guest.WriteFrame(s.control, guest.OpChunk, buf[:n]); err != nil {
			return broken(err)
		}
		left -= int64(n)
	}
	return nil
}

// export sends what the use has changed against its template: the upper layer,
// entry by entry, directories before what they hold.
func (s *server) export() *guest.Failure {
	killAll()
	reapAll(nil)
	d, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return broken(fmt.Errorf("open upper layer: %w", err))
	}
	defer unix.Close(d)
	return s.exportDir(d, "", 0)
}

func (s *server) exportDir(d int, prefix string, depth int) *guest.Failure {
	if depth > 4*maxDepth {
		return guest.Failf(guest.KindTooLarge, "%s: too deep for a snapshot", prefix)
	}
	entries, err := names(d)
	if err != nil {
		return broken(err)
	}
	for _, n := range entries {
		p := path.Join(prefix, n)
		var st unix.Stat_t
		if err := unix.Fstatat(d, n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return broken(fmt.Errorf("stat %s: %w", p, err))
		}
		if fail := s.exportEntry(d, n, p, &st, depth); fail != nil {
			return fail
		}
	}
	return nil
}

func (s *server) exportEntry(d int, n, p string, st *unix.Stat_t, depth int) *guest.Failure {
	e := guest.Entry{Path: p, Mode: st.Mode & 0o1777}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		sub, err := unix.Openat(d, n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return broken(fmt.Errorf("open %s: %w", p, err))
		}
		defer unix.Close(sub)
		e.Kind = guest.EntryDir
		var v [1]byte
		if n, err := unix.Fgetxattr(sub, "user.overlay.opaque", v[:]); err == nil && n == 1 && v[0] == 'y' {
			e.Kind = guest.EntryOpaque
		}
		if fail := s.send(-1, e); fail != nil {
			return fail
		}
		return s.exportDir(sub, p, depth+1)
	case unix.S_IFREG:
		f, size, err := openFile(d, n)
		if err != nil {
			return broken(fmt.Errorf("open %s: %w", p, err))
		}
		defer unix.Close(f)
		e.Kind, e.Size, e.Mode = guest.EntryFile, size, e.Mode&0o777
		return s.send(f, e)
	case unix.S_IFLNK:
		buf := make([]byte, 4096)
		m, err := unix.Readlinkat(d, n, buf)
		if err != nil {
			return broken(fmt.Errorf("read link %s: %w", p, err))
		}
		e.Kind, e.Target = guest.EntryLink, string(buf[:m])
		return s.send(-1, e)
	case unix.S_IFCHR:
		if st.Rdev == 0 { // overlayfs marks a removed entry so
			e.Kind = guest.EntryGone
			return s.send(-1, e)
		}
	}
	return nil // sockets, FIFOs: nothing of theirs outlives the processes
}
