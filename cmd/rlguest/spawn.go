//go:build linux

package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vforkSyscall makes a system call that returns twice on one stack.
func vforkSyscall(trap, a1, a2, a3 uintptr) (r1, errno uintptr)

// rlimit is one resource limit, soft and hard alike.
type rlimit struct {
	resource uintptr
	value    unix.Rlimit
}

// child is all a new process needs to become a command. It is complete before
// the fork: the child may not allocate, grow its stack or call the runtime.
type child struct {
	root, dir *byte
	paths     []*byte // tried in order, like execvp
	argv, env []*byte
	files     [3]uintptr // become 0, 1 and 2; all are above 2
	limits    []rlimit
	filter    unix.SockFprog
	into      int // a cgroup; −1: the parent's
	clone     cloneArgs
	pidfd     int32

	// Written by the child, which shares the memory until it executes.
	stage uintptr
	errno uintptr
}

// cloneArgs is struct clone_args of the kernel.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// What a child was doing when it failed.
const (
	stageStart uintptr = iota
	stageRoot
	stageDir
	stageLimits
	stageFiles
	stageFilter
	stageExec
)

// errNoProcess reports that the limit on processes is used up.
var errNoProcess = errors.New("no process can be started")

// spawn starts the child, in the cgroup into unless that is −1, and returns its
// id and a descriptor that is readable once it has ended. The error wraps the errno and names the stage.
func (c *child) spawn(into int) (pid, pidfd int, err error) {
	c.stage, c.errno, c.pidfd = stageStart, 0, -1
	c.into = into
	p, e := c.vfork()
	runtime.KeepAlive(c)
	if e != 0 {
		if en := syscall.Errno(e); en == unix.EAGAIN || en == unix.ENOMEM {
			return 0, -1, errNoProcess
		}
		return 0, -1, fmt.Errorf("fork: %w", syscall.Errno(e))
	}
	if c.errno != 0 {
		var ws unix.WaitStatus
		for {
			if _, err := unix.Wait4(int(p), &ws, 0, nil); err != unix.EINTR {
				break
			}
		}
		unix.Close(int(c.pidfd))
		return 0, -1, &spawnError{c.stage, syscall.Errno(c.errno)}
	}
	return int(p), int(c.pidfd), nil
}

// spawnError is a failure in the child, before the command's first instruction.
type spawnError struct {
	stage uintptr
	errno syscall.Errno
}

func (e *spawnError) Error() string {
	what := []string{"start", "change root", "change directory", "set limits", "pass files", "install the filter", "execute"}
	return what[e.stage] + ": " + e.errno.Error()
}

func (e *spawnError) Unwrap() error { return e.errno }

// vfork clones this thread with its memory; the parent stands still until the
// child executes or exits. The child makes nothing but raw system calls.
//
//go:noinline
//go:norace
func (c *child) vfork() (uintptr, uintptr) {
	const flags = unix.CLONE_VFORK | unix.CLONE_VM | unix.CLONE_PIDFD
	var pid, e uintptr
	if c.into < 0 {
		pid, e = vforkSyscall(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&c.pidfd)))
	} else {
		c.clone = cloneArgs{
			flags: flags | unix.CLONE_INTO_CGROUP, pidfd: uint64(uintptr(unsafe.Pointer(&c.pidfd))),
			exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(c.into),
		}
		pid, e = vforkSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&c.clone)), unsafe.Sizeof(c.clone), 0)
	}
	if e != 0 || pid != 0 {
		return pid, e
	}
	var err syscall.Errno
	if _, _, err = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); err != 0 {
		goto failed
	}
	c.stage = stageRoot
	if _, _, err = syscall.RawSyscall(unix.SYS_CHROOT, uintptr(unsafe.Pointer(c.root)), 0, 0); err != 0 {
		goto failed
	}
	c.stage = stageDir
	if _, _, err = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); err != 0 {
		goto failed
	}
	c.stage = stageLimits
	for i := 0; i < len(c.limits); i++ {
		_, _, err = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, c.limits[i].resource, uintptr(unsafe.Pointer(&c.limits[i].value)), 0, 0, 0)
		if err != 0 {
			goto failed
		}
	}
	c.stage = stageFiles
	for i := 0; i < len(c.files); i++ {
		if _, _, err = syscall.RawSyscall(unix.SYS_DUP3, c.files[i], uintptr(i), 0); err != 0 {
			goto failed
		}
	}
	// All others close on exec; this is for one that should and does not. ENOSYS is no failure.
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, 1<<31-1, 0)
	c.stage = stageFilter
	if _, _, err = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&c.filter)), 0, 0, 0); err != 0 {
		goto failed
	}
	c.stage = stageExec
	for i := 0; i < len(c.paths); i++ {
		_, _, err = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.paths[i])), uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.env[0])))
		if err != unix.ENOENT && err != unix.ENOTDIR {
			break
		}
	}
failed:
	c.errno = uintptr(err)
	for {
		syscall.RawSyscall(unix.SYS_EXIT, 127, 0, 0)
	}
}

// candidates lists where to look for a program, by PATH unless it holds a slash.
func candidates(program string, env []string) ([]*byte, error) {
	if strings.Contains(program, "/") {
		p, err := unix.BytePtrFromString(program)
		return []*byte{p}, err
	}
	path := "/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var out []*byte
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		p, err := unix.BytePtrFromString(dir + "/" + program)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// pointers makes a nil-terminated array of C strings.
func pointers(l []string) ([]*byte, error) {
	out := make([]*byte, 0, len(l)+1)
	for _, s := range l {
		p, err := unix.BytePtrFromString(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return append(out, nil), nil
}
