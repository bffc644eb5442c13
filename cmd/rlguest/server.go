//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool/guest"
)

// maxRequest bounds a request's payload; the largest is a Write.
const maxRequest = 256 << 20

// base is the root directory of commands.
const base = "/base"

// server answers the host. All of it runs on one locked thread, which is the
// only one that changes its mount namespace and the only one that starts commands.
type server struct {
	control fd
	null    int
	mounts  int // the slot's own mount namespace
	into    int // the cgroup that commands are cloned into; −1: none
	filter  []unix.SockFilter
	mounted bool
	full    bool // the disk was full when the last command ended
	scratch []byte
}

// fd reads and writes a descriptor without Go's poller, so that the set of open files stays known.
type fd int

func (f fd) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (f fd) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(int(f), b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// serve prepares the process and answers requests until the host closes the stream.
func serve(control int, groups cgroups) error {
	s := &server{control: fd(control), scratch: make([]byte, 64<<10), filter: seccompFilter(), into: groups.into}
	if err := s.prepare(groups); err != nil {
		return err
	}
	p, err := s.prove()
	if err != nil {
		return err
	}
	if err := guest.WriteFrame(s.control, guest.OpHello, guest.Hello{Version: guest.Version, Proof: p}.Encode()); err != nil {
		return err
	}
	for {
		op, payload, err := guest.ReadFrame(s.control, maxRequest)
		if err == io.EOF {
			return nil // process 1 ends, and the kernel ends all others
		}
		if err != nil {
			return err
		}
		if op == guest.OpKill {
			continue // the command it was meant for had ended
		}
		out, fail := s.answer(op, payload)
		if fail != nil {
			err = guest.WriteFrame(s.control, guest.OpFail, fail.Encode())
		} else {
			err = guest.WriteFrame(s.control, guest.OpDone, out)
		}
		if err != nil {
			return err
		}
	}
}

// answer carries out one request.
func (s *server) answer(op guest.Op, b []byte) ([]byte, *guest.Failure) {
	if !s.mounted && op != guest.OpMount && op != guest.OpScrub {
		return nil, guest.Failf(guest.KindInvalid, "no files are mounted")
	}
	switch op {
	case guest.OpMount:
		var m guest.Mount
		if err := m.Decode(b); err != nil {
			return nil, broken(err)
		}
		return nil, s.mount(m)
	case guest.OpExec:
		var x guest.Exec
		if err := x.Decode(b); err != nil {
			return nil, broken(err)
		}
		e, fail := s.exec(x)
		if fail != nil {
			return nil, fail
		}
		return e.Encode(), nil
	case guest.OpWrite:
		var w guest.Write
		if err := w.Decode(b); err != nil {
			return nil, broken(err)
		}
		return nil, write(w)
	case guest.OpRead:
		var r guest.Read
		if err := r.Decode(b); err != nil {
			return nil, broken(err)
		}
		return read(r)
	case guest.OpCollect:
		var c guest.Collect
		if err := c.Decode(b); err != nil {
			return nil, broken(err)
		}
		return nil, s.collect(c)
	case guest.OpExport:
		return nil, s.export()
	case guest.OpScrub:
		p, fail := s.scrub()
		return p.Encode(), fail
	}
	return nil, guest.Failf(guest.KindBroken, "unknown request %d", op)
}

func broken(err error) *guest.Failure {
	return &guest.Failure{Kind: guest.KindBroken, Text: err.Error()}
}

// prepare makes the process what main's comment says, and its executing thread
// the parent that commands inherit from.
func (s *server) prepare(groups cgroups) error {
	unix.Umask(0o022)
	unix.CloseOnExec(int(s.control))
	for _, fd := range groups.join {
		// "0" is this thread alone in a version 1 tasks file.
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
		unix.Close(fd)
	}
	if groups.into >= 0 {
		unix.CloseOnExec(groups.into)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make undumpable: %w", err)
	}
	if err := defaultSignals(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	d[0].Inheritable, d[1].Inheritable = 0, 0
	if err := unix.Capset(&h, &d[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	var err error
	if s.null, err = unix.Open(base+"/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	for _, i := range []int{0, 1} {
		if err := unix.Dup3(s.null, i, 0); err != nil {
			return fmt.Errorf("redirect descriptor %d: %w", i, err)
		}
	}
	if s.mounts, err = unix.Open(base+"/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open the mount namespace: %w", err)
	}
	openPoller()
	return nil
}

// openPoller makes the Go runtime open its poller's descriptors now. It does so
// at the first timer, and it sets timers of its own after a garbage collection:
// later they would look like something that a use has left. A timer with a
// channel would not do, nothing waits for it.
func openPoller() { time.AfterFunc(time.Hour, func() {}).Stop() }

// defaultSignals undoes the Go runtime's handlers: process 1 is immune to a
// signal from its namespace only while that signal's action is the default.
func defaultSignals() error {
	var dfl [4]uint64 // struct sigaction of the kernel, all zero: SIG_DFL, no flags, empty mask
	for sig := uintptr(1); sig <= 64; sig++ {
		if sig == uintptr(unix.SIGKILL) || sig == uintptr(unix.SIGSTOP) {
			continue
		}
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0); e != 0 {
			return os.NewSyscallError(fmt.Sprintf("rt_sigaction %d", sig), e)
		}
	}
	return nil
}
