package bubblewrap

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawner starts slots from one thread that lives as long as the runtime,
// because --die-with-parent is about the thread that forked. When the host is
// root this thread has a mount namespace of its own, in which the shared files
// are reachable for unprivileged users whatever directory they lie in.
type spawner struct {
	idmap bool // each slot has a user id of its own
	root  bool
	dir   string // the shared files, as the host sees them
	base  int    // first user id

	requests chan request
	quit     chan struct{}
	wg       sync.WaitGroup

	// Of the thread only:
	meeting string           // where its mount namespace has the shared files
	tree    int              // the shared files, opened before meeting hid anything
	maps    map[int]*os.File // user namespaces for id-mapped mounts, by user id
}

// request is work for the thread.
type request struct {
	do   func() error
	done chan error
}

func startSpawner(root bool, dir string, uidBase int) (*spawner, error) {
	s := &spawner{root: root, dir: dir, base: uidBase, requests: make(chan request), quit: make(chan struct{}), tree: -1, maps: map[int]*os.File{}}
	s.wg.Go(s.loop)
	if !root {
		return s, nil
	}
	if err := s.on(s.enter); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// loop finds a thread that is not the process's first: that one's mounts are
// what /proc shows as the whole host's.
func (s *spawner) loop() {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		s.serve()
		return
	}
	locked, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		close(locked)
		s.serve()
	}()
	<-locked
	runtime.UnlockOSThread()
	<-done
}

// serve is the thread. It is never unlocked, so it ends with the goroutine.
func (s *spawner) serve() {
	defer func() {
		for _, f := range s.maps {
			f.Close()
		}
		if s.tree >= 0 {
			unix.Close(s.tree)
		}
	}()
	for {
		select {
		case r := <-s.requests:
			r.done <- r.do()
		case <-s.quit:
			return
		}
	}
}

// on runs f on the thread.
func (s *spawner) on(f func() error) error {
	r := request{f, make(chan error, 1)}
	select {
	case s.requests <- r:
		return <-r.done
	case <-s.quit:
		return errors.New("spawner is closed")
	}
}

func (s *spawner) close() {
	close(s.quit)
	s.wg.Wait()
}

// enter gives the thread its mount namespace and finds out whether mounts can be id-mapped.
func (s *spawner) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	// What the host unmounts goes here too; what is mounted here stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	var err error
	if s.tree, err = unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", s.dir, err)
	}
	// A place that everyone may pass through.
	s.meeting = "/mnt"
	if st, err := os.Stat(s.meeting); err != nil || !st.IsDir() {
		s.meeting = "/tmp"
	}
	if err := unix.Mount("tmpfs", s.meeting, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mount %s: %w", s.meeting, err)
	}
	target, err := s.share(s.base)
	if err == nil {
		s.idmap = true
		return unix.Unmount(target, unix.MNT_DETACH)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err // not the file system's answer: nothing is known
	}
	// One user id for all sandboxes, which then owns the files itself.
	return s.attach(filepath.Join(s.meeting, "shared"), nil)
}

// attach mounts a copy of the shared files at target.
func (s *spawner) attach(target string, attr *unix.MountAttr) error {
	fd, err := unix.OpenTree(s.tree, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open tree %s: %w", s.dir, err)
	}
	defer unix.Close(fd)
	if attr != nil {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
			return fmt.Errorf("map ids of %s: %w", s.dir, err)
		}
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move mount to %s: %w", target, err)
	}
	return nil
}

// uid is the user id of a slot.
func (s *spawner) uid(index int) int {
	if !s.root {
		return os.Geteuid()
	}
	if !s.idmap {
		return s.base
	}
	return s.base + index
}

// share mounts the shared files, as if they belonged to uid, and returns where.
func (s *spawner) share(uid int) (string, error) {
	users, err := s.userNamespace(uid)
	if err != nil {
		return "", err
	}
	target := filepath.Join(s.meeting, strconv.Itoa(uid))
	return target, s.attach(target, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(users.Fd()),
	})
}

// userNamespace returns a user namespace that maps root, the owner on disk, to
// uid. A namespace needs a process to be made, not to live.
func (s *spawner) userNamespace(uid int) (*os.File, error) {
	if f := s.maps[uid]; f != nil {
		return f, nil
	}
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	program, err := unix.Openat(s.tree, "rlguest", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open rlguest: %w", err)
	}
	defer unix.Close(program)
	var cmd *exec.Cmd
	var in io.WriteCloser
	for try := range 100 {
		cmd = exec.Command(fmt.Sprintf("/proc/self/fd/%d", program), "hold")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWUSER, UidMappings: one, GidMappings: one}
		if in, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
		// A process that was forked while rlguest was copied has the copy open for
		// writing until it executes its own program.
		if err = cmd.Start(); !errors.Is(err, unix.ETXTBSY) || try == 99 {
			break
		}
		in.Close()
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	in.Close()
	if werr := cmd.Wait(); err == nil && werr != nil {
		f.Close()
		err = werr
	}
	if err != nil {
		return nil, fmt.Errorf("open a user namespace: %w", err)
	}
	s.maps[uid] = f
	return f, nil
}

// start runs cmd, made by command from the place where the slot's user finds
// the shared files, as that user. The returned function is called once the
// slot stands or has failed.
func (s *spawner) start(index int, command func(shared string) *exec.Cmd) (cmd *exec.Cmd, settled func(), err error) {
	settled = func() {}
	err = s.on(func() error {
		shared := s.dir
		uid := s.uid(index)
		if s.root {
			shared = filepath.Join(s.meeting, "shared")
			if s.idmap {
				var err error
				if shared, err = s.share(uid); err != nil {
					return err
				}
				settled = func() {
					_ = s.on(func() error { return unix.Unmount(shared, unix.MNT_DETACH) })
				}
			}
		}
		cmd = command(shared)
		if s.root {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
		}
		return cmd.Start()
	})
	return cmd, settled, err
}
