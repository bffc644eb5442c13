//go:build linux

package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool/guest"
)

// Where the slot keeps what commands must not see, outside of their root.
const (
	templates = "/templates"
	layers    = "/use" // a file system in memory, fresh for each use
	upper     = layers + "/upper"
	work      = layers + "/work"
	merged    = layers + "/merged"
)

const mountFlags = unix.MS_NOSUID | unix.MS_NODEV

// mount makes the files of a use in a mount namespace of its own, so that the
// end of that namespace takes every mount with it and the slot's own never change.
func (s *server) mount(m guest.Mount) *guest.Failure {
	if s.mounted {
		return guest.Failf(guest.KindBroken, "files of another use are mounted")
	}
	if m.Lower == "" || strings.ContainsAny(m.Lower, "/:,\\") || m.Lower[0] == '.' {
		return guest.Failf(guest.KindInvalid, "template %q is not a name", m.Lower)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return broken(fmt.Errorf("unshare mounts: %w", err))
	}
	s.mounted, s.full = true, false
	if err := unix.Sethostname([]byte(m.Host)); err != nil {
		return broken(fmt.Errorf("set host name: %w", err))
	}
	// Each template brings its empty directories; they are the use's, not the limit's.
	size := "mode=0755,size=" + strconv.FormatInt(m.Disk, 10) + ",nr_inodes=" + strconv.FormatInt(m.Inodes+8, 10)
	if err := unix.Mount("tmpfs", layers, "tmpfs", mountFlags, size); err != nil {
		return broken(fmt.Errorf("mount %s with %s: %w", layers, size, err))
	}
	for _, d := range []string{upper, work, merged} {
		if err := unix.Mkdir(d, 0o755); err != nil {
			return broken(fmt.Errorf("make %s: %w", d, err))
		}
	}
	opt := "userxattr,lowerdir=" + templates + "/" + m.Lower + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", merged, "overlay", mountFlags, opt); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return guest.Failf(guest.KindNotFound, "template %s is not there", m.Lower)
		}
		return broken(fmt.Errorf("mount overlay with %s: %w", opt, err))
	}
	for _, r := range guest.Roots {
		if err := unix.Mount(merged+"/"+r.Name, base+r.Path, "", unix.MS_BIND, ""); err != nil {
			return broken(fmt.Errorf("bind %s: %w", r.Path, err))
		}
	}
	return nil
}

// scrub ends all processes, drops the use's files and says what it finds then.
func (s *server) scrub() (guest.Proof, *guest.Failure) {
	killAll()
	reapAll(nil)
	if s.mounted {
		// The last reference to the use's namespace goes with this thread's.
		if err := unix.Setns(s.mounts, unix.CLONE_NEWNS); err != nil {
			return guest.Proof{}, broken(fmt.Errorf("leave the use's mounts: %w", err))
		}
		s.mounted = false
	}
	if err := dropIPC(); err != nil {
		return guest.Proof{}, broken(err)
	}
	p, err := s.prove()
	if err != nil {
		return guest.Proof{}, broken(err)
	}
	return p, nil
}

// prove counts what a use could have left.
func (s *server) prove() (guest.Proof, error) {
	var p guest.Proof
	procs, err := processes()
	if err != nil {
		return p, err
	}
	p.Processes = len(procs)
	table, err := readAll(base + "/proc/thread-self/mountinfo")
	if err != nil {
		return p, err
	}
	h := fnv.New64a()
	h.Write(table)
	p.Mounts = h.Sum64()
	fds, err := list(base + "/proc/self/fd")
	if err != nil {
		return p, err
	}
	p.Files = len(fds) - 1 // the listing's own
	for _, k := range ipcKinds {
		ids, err := k.ids()
		if err != nil {
			return p, err
		}
		p.IPC += len(ids)
	}
	return p, nil
}

// killAll ends every process but this one. The kernel walks the processes with
// forks excluded, so none slips through.
func killAll() { _ = unix.Kill(-1, unix.SIGKILL) }

// reapAll waits until no child is left. Every process of the namespace is a
// descendant of process 1, so no child means no process.
func reapAll(seen func(pid int, ws unix.WaitStatus, ru *unix.Rusage)) {
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := unix.Wait4(-1, &ws, unix.WALL, &ru)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if seen != nil {
			seen(pid, ws, &ru)
		}
	}
}

// processes lists the process ids of the namespace.
func processes() ([]string, error) {
	names, err := list(base + "/proc")
	if err != nil {
		return nil, err
	}
	pids := names[:0]
	for _, n := range names {
		if n[0] >= '0' && n[0] <= '9' {
			pids = append(pids, n)
		}
	}
	return pids, nil
}
