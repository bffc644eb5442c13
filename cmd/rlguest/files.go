//go:build linux

package main

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool/guest"
)

// resolve keeps a look-up below where it starts, on one file system, through
// no symbolic link: a command may rename and link while the guest looks.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openRoot opens the writable directory that holds an absolute path and returns the rest of the path.
func openRoot(p string) (dir int, rest string, fail *guest.Failure) {
	r, rest, err := guest.Locate(p)
	if err != nil {
		return -1, "", guest.Failf(guest.KindUnsafe, "%v", err)
	}
	dir, err = unix.Open(base+r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", broken(fmt.Errorf("open %s: %w", r.Path, err))
	}
	return dir, rest, nil
}

// openAt opens a path below dir.
func openAt(dir int, p string, flags, mode uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: resolve}
	for {
		f, err := unix.Openat2(dir, p, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return f, err
		}
	}
}

// refused classifies an error of the file system.
func refused(p string, err error) *guest.Failure {
	k := guest.KindBroken
	switch {
	case errors.Is(err, unix.ENOENT):
		k = guest.KindNotFound
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		k = guest.KindUnsafe
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EFBIG):
		k = guest.KindFull
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENAMETOOLONG),
		errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		k = guest.KindInvalid
	}
	return guest.Failf(k, "%s: %v", p, err)
}

// openFile opens a regular file for reading. O_NONBLOCK keeps a FIFO from holding the guest up.
func openFile(dir int, p string) (f int, size int64, err error) {
	f, err = openAt(dir, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f, &st); err != nil {
		unix.Close(f)
		return -1, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(f)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return -1, 0, unix.EISDIR
		}
		return -1, 0, unix.ENODEV
	}
	return f, st.Size, nil
}

// read returns the content of one file.
func read(r guest.Read) ([]byte, *guest.Failure) {
	dir, rest, fail := openRoot(r.Path)
	if fail != nil {
		return nil, fail
	}
	defer unix.Close(dir)
	f, size, err := openFile(dir, rest)
	if err != nil {
		return nil, refused(r.Path, err)
	}
	defer unix.Close(f)
	if size > r.Limit {
		return nil, guest.Failf(guest.KindTooLarge, "%s: %d bytes where at most %d are allowed", r.Path, size, r.Limit)
	}
	// The file may grow under the read; one byte more than the limit tells.
	out := make([]byte, size, size+1)
	n := 0
	for {
		if n == len(out) {
			if int64(n) > r.Limit {
				return nil, guest.Failf(guest.KindTooLarge, "%s: grew over %d bytes", r.Path, r.Limit)
			}
			out = append(out, 0)
			out = out[:min(int64(cap(out)), r.Limit+1)]
		}
		m, err := unix.Read(f, out[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, refused(r.Path, err)
		}
		if m == 0 {
			return out[:n], nil
		}
		n += m
	}
}

// write replaces whatever has the file's name, unless it is a directory.
func write(w guest.Write) *guest.Failure {
	dir, rest, fail := openRoot(w.Path)
	if fail != nil {
		return fail
	}
	defer unix.Close(dir)
	if rest == "." {
		return guest.Failf(guest.KindInvalid, "%s is a directory", w.Path)
	}
	parent, err := makeParents(dir, path.Dir(rest))
	if err != nil {
		return refused(path.Dir(w.Path), err)
	}
	defer unix.Close(parent)
	name := path.Base(rest)
	f := -1
	for range 8 { // a command may put something there again
		if err = unix.Unlinkat(parent, name, 0); err != nil && err != unix.ENOENT {
			return refused(w.Path, err)
		}
		f, err = openAt(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != unix.EEXIST {
			break
		}
	}
	if err != nil {
		return refused(w.Path, err)
	}
	defer unix.Close(f)
	if _, err := fd(f).Write(w.Data); err != nil {
		_ = unix.Unlinkat(parent, name, 0)
		return refused(w.Path, err)
	}
	if err := unix.Fchmod(f, w.Mode&0o777); err != nil {
		return refused(w.Path, err)
	}
	return nil
}

// makeParents opens a directory below dir, making what is missing.
func makeParents(dir int, p string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	f, err := openAt(dir, p, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	at, err := openAt(dir, ".", flags, 0)
	if err != nil {
		return -1, err
	}
	for e := range strings.SplitSeq(p, "/") {
		if err := unix.Mkdirat(at, e, 0o755); err != nil && err != unix.EEXIST {
			unix.Close(at)
			return -1, err
		}
		next, err := openAt(at, e, flags, 0)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}
