package bubblewrap

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/guest"
)

// How long a guest may take to say something.
const (
	killGrace  = 5 * time.Second  // to end a command's processes
	answerTime = 60 * time.Second // to answer anything but a command
)

// slot implements envpool.Slot.
type slot struct {
	r     *Runtime
	index int
	group *group
	conn  *net.UnixConn
	in    *bufio.Reader
	hello guest.Hello
	use   envpool.Use
	lower string // the state's directory name

	cmd    *exec.Cmd
	stderr *tail
	exited chan struct{} // closed when bwrap has ended; it does so after all of its sandbox
	dead   chan struct{}
	die    sync.Once
	reason error // why it died; read after dead

	closing sync.Mutex // guards closed
	closed  bool

	mu    sync.Mutex // guards pidfd
	pidfd int        // of the guest; −1: none
}

var _ envpool.Slot = (*slot)(nil)

// startSlot starts bwrap and waits for the guest's first word.
func startSlot(ctx context.Context, r *Runtime, index int) (_ *slot, err error) {
	s := &slot{r: r, index: index, pidfd: -1, stderr: &tail{}, exited: make(chan struct{}), dead: make(chan struct{})}
	if s.group, err = r.cgroups.group(index, r.spawn.uid(index)); err != nil {
		return nil, fmt.Errorf("make cgroups: %w: %w", envpool.ErrEnvironment, err)
	}
	defer s.group.started()
	theirs, err := s.connect()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", envpool.ErrEnvironment, err), s.group.close())
	}
	infoR, infoW, err := os.Pipe()
	if err != nil {
		theirs.Close()
		s.conn.Close()
		return nil, errors.Join(fmt.Errorf("%w: %w", envpool.ErrEnvironment, err), s.group.close())
	}
	defer infoR.Close()
	cmd, settled, err := r.spawn.start(index, func(shared string) *exec.Cmd { return s.command(shared, theirs, infoW) })
	theirs.Close()
	infoW.Close()
	if err != nil {
		settled()
		s.conn.Close()
		return nil, errors.Join(fmt.Errorf("run bwrap: %w: %w", envpool.ErrEnvironment, err), s.group.close())
	}
	s.cmd = cmd
	r.wait(s)
	err = s.greet(ctx, infoR)
	settled()
	if err != nil {
		// The reason is in what bwrap said, so wait for its end first.
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
		defer cancel()
		cerr := s.Close(cctx)
		return nil, errors.Join(fmt.Errorf("%w: %w%s", envpool.ErrEnvironment, err, s.stderr.said()), cerr)
	}
	return s, nil
}

// command is bwrap as it has to be run.
func (s *slot) command(shared string, control, info *os.File) *exec.Cmd {
	files := []*os.File{control, info}
	joins, into := 0, false
	// A process group of its own: an interrupt typed at the host's terminal is
	// for the host, which lets episodes finish.
	attr := syscall.SysProcAttr{Setpgid: true}
	if g := s.group; g != nil {
		files = append(files, g.join...)
		joins = len(g.join)
		if g.into != nil {
			files = append(files, g.into)
			into = true
			attr.UseCgroupFD, attr.CgroupFD = true, int(g.guest.Fd())
		}
	}
	c := exec.Command(s.r.cfg.Bwrap, bwrapArgs(shared, joins, into)...)
	c.Dir, c.Env, c.Stderr, c.WaitDelay = "/", []string{}, s.stderr, time.Second
	c.ExtraFiles, c.SysProcAttr = files, &attr
	return c
}

// connect makes the stream and returns the guest's end.
func (s *slot) connect() (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	c, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, err
	}
	s.conn = c.(*net.UnixConn)
	s.in = bufio.NewReaderSize(s.conn, 16<<10)
	return theirs, nil
}

// wait sees bwrap's end.
func (r *Runtime) wait(s *slot) {
	go func() { // ends with the process; Close waits for it
		err := s.cmd.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		close(s.exited)
		s.fail(fmt.Errorf("the sandbox's process ended: %w%s", err, s.stderr.said()))
	}()
}

// greet reads the guest's process id from bwrap and the guest's first frame.
func (s *slot) greet(ctx context.Context, info *os.File) error {
	stop := context.AfterFunc(ctx, func() {
		_ = s.conn.SetDeadline(time.Unix(1, 0))
		_ = info.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	var child struct {
		Pid int `json:"child-pid"`
	}
	if err := json.NewDecoder(info).Decode(&child); err != nil {
		return fmt.Errorf("bwrap names no process: %w", err)
	}
	fd, err := unix.PidfdOpen(child.Pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", child.Pid, err)
	}
	s.mu.Lock()
	s.pidfd = fd
	s.mu.Unlock()
	op, b, err := guest.ReadFrame(s.in, 1<<10)
	if err != nil {
		return fmt.Errorf("guest is silent: %w", err)
	}
	if op != guest.OpHello {
		return fmt.Errorf("guest begins with frame %d", op)
	}
	if err := s.hello.Decode(b); err != nil {
		return err
	}
	if s.hello.Version != guest.Version {
		return fmt.Errorf("rlguest speaks version %d, this host %d: build both from one source", s.hello.Version, guest.Version)
	}
	return nil
}

// fail marks the slot dead and ends it.
func (s *slot) fail(err error) {
	s.die.Do(func() {
		s.reason = err
		close(s.dead)
		s.kill()
	})
}

// kill ends the guest, and with process 1 all of the sandbox. The stream's end
// alone would do, were it certain that the guest is reading.
func (s *slot) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd >= 0 {
		_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0)
	} else {
		_ = s.cmd.Process.Kill()
	}
}

// Dead implements envpool.Slot.
func (s *slot) Dead() <-chan struct{} { return s.dead }

// Close implements envpool.Slot. After an error it may be tried again.
func (s *slot) Close(ctx context.Context) error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed {
		return nil
	}
	s.conn.Close()
	s.fail(errors.New("it was closed"))
	s.kill()
	select {
	case <-s.exited:
	case <-ctx.Done():
		return fmt.Errorf("bubblewrap: close: process %d does not end: %w", s.cmd.Process.Pid, ctx.Err())
	}
	s.mu.Lock()
	if s.pidfd >= 0 {
		unix.Close(s.pidfd)
		s.pidfd = -1
	}
	s.mu.Unlock()
	if err := s.group.close(); err != nil {
		return fmt.Errorf("bubblewrap: close: %w", err)
	}
	s.closed = true
	s.r.free(s.index)
	return nil
}

// died is the error of a call on a slot that cannot go on.
func (s *slot) died(op string, err error) error {
	if err != nil {
		s.fail(err)
	}
	<-s.dead
	return fmt.Errorf("bubblewrap: %s: %w: %w", op, envpool.ErrEnvironment, s.reason)
}

// broke is died for a stream that failed. Where that is because the process
// ended, its own end is the reason; it follows at once.
func (s *slot) broke(op string, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case <-s.dead:
		case <-time.After(time.Second):
		}
	}
	return s.died(op, err)
}

// tail keeps the last of what bwrap and the guest print.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	const most = 2 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - most; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// said returns what was printed, ready to be appended to a sentence.
func (t *tail) said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.b) == 0 {
		return ""
	}
	return "; it said: " + strings.TrimSpace(string(t.b))
}

// ask sends a request and reads the answer, handing entries to each. When ctx
// ends, a command is killed; anything that then keeps silent is destroyed.
func (s *slot) ask(ctx context.Context, op guest.Op, payload []byte, limit int64, wait time.Duration, each func(guest.Op, []byte) error) ([]byte, error) {
	select {
	case <-s.dead:
		return nil, s.died("call", nil)
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return nil, s.died("call", err)
	}
	if err := guest.WriteFrame(s.conn, op, payload); err != nil {
		return nil, s.broke("send", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.conn.SetDeadline(time.Now().Add(killGrace))
		if op == guest.OpExec {
			_ = guest.WriteFrame(s.conn, guest.OpKill, nil)
		}
	})
	b, err := s.answer(limit, each)
	if !stop() {
		<-interrupted
	}
	return b, err
}

// answer reads frames until the one that ends the answer.
func (s *slot) answer(limit int64, each func(guest.Op, []byte) error) ([]byte, error) {
	var refused error
	for {
		op, b, err := guest.ReadFrame(s.in, max(limit, guest.ChunkSize)+(64<<10))
		if err != nil {
			return nil, s.broke("receive", err)
		}
		switch op {
		case guest.OpDone:
			return b, refused
		case guest.OpFail:
			var f guest.Failure
			if err := f.Decode(b); err != nil {
				return nil, s.died("receive", err)
			}
			return nil, s.failure(&f)
		case guest.OpEntry, guest.OpChunk:
			if each == nil {
				return nil, s.died("receive", fmt.Errorf("unexpected frame %d", op))
			}
			if refused == nil { // the rest is read and dropped
				refused = each(op, b)
			}
		default:
			return nil, s.died("receive", fmt.Errorf("unexpected frame %d", op))
		}
	}
}

// failure gives a guest's failure the host's kind.
func (s *slot) failure(f *guest.Failure) error {
	kind := map[guest.Kind]error{
		guest.KindInvalid: envpool.ErrInvalid, guest.KindNotFound: envpool.ErrNotFound, guest.KindUnsafe: envpool.ErrUnsafe,
		guest.KindTooLarge: envpool.ErrTooLarge, guest.KindFull: envpool.ErrTooLarge,
	}[f.Kind]
	if kind == nil {
		return s.died("call", f)
	}
	return fmt.Errorf("bubblewrap: %w: %w", kind, f)
}
