//go:build linux

package main

import (
	"errors"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool/guest"
)

// The limits a command can hit, as envpool names them.
const (
	hitTime   = "time"
	hitMemory = "memory"
	hitPids   = "pids"
	hitDisk   = "disk"
	hitInodes = "inodes"
	hitOutput = "output"
)

// drainLimit bounds what is read from a pipe after its command has ended,
// because a process left behind may go on writing.
const drainLimit = 1 << 20

// watchEvery is the most time between two looks at the processes: what is taken
// between two is seen late. A look at twenty processes takes about 0.7 ms of CPU.
const watchEvery = 100 * time.Millisecond

// stream is one output of a command: its head is kept, all of it is counted.
type stream struct {
	fd    int // −1 once closed
	keep  int64
	head  []byte
	total int64
}

// take reads once. It reports false when there is nothing more to read now.
func (o *stream) take(scratch []byte) bool {
	n, err := unix.Read(o.fd, scratch)
	if err == unix.EINTR {
		return true
	}
	if err == unix.EAGAIN {
		return false
	}
	if n <= 0 {
		unix.Close(o.fd)
		o.fd = -1
		return false
	}
	if room := o.keep - int64(len(o.head)); room > 0 {
		o.head = append(o.head, scratch[:min(int64(n), room)]...)
	}
	o.total += int64(n)
	return true
}

// run is a command in flight.
type run struct {
	s          *server
	x          guest.Exec
	pid, pidfd int
	in         int // −1 once written or closed
	out, err   stream
	start      time.Time
	hit        string
	killed     bool
	pids       bool // the processes were seen at their limit
	ended      bool // the command itself, not all it started
	status     unix.WaitStatus
	cpu        time.Duration
}

// exec starts a command and waits for its end, its deadline or the host's word.
func (s *server) exec(x guest.Exec) (guest.Exit, *guest.Failure) {
	r := &run{s: s, x: x, in: -1, pidfd: -1, out: stream{fd: -1, keep: x.Output}, err: stream{fd: -1, keep: x.Output}}
	defer r.close()
	if fail := r.spawn(); fail != nil {
		return guest.Exit{}, fail
	}
	if r.pid != 0 {
		r.wait()
	}
	return r.exit(), nil
}

// spawn opens the pipes and starts the process.
func (r *run) spawn() *guest.Failure {
	if len(r.x.Argv) == 0 || r.x.Argv[0] == "" {
		return guest.Failf(guest.KindInvalid, "command is empty")
	}
	c := &child{files: [3]uintptr{uintptr(r.s.null)}, limits: r.limits()}
	c.filter = unix.SockFprog{Len: uint16(len(r.s.filter)), Filter: &r.s.filter[0]}
	var err error
	if c.paths, err = candidates(r.x.Argv[0], r.x.Env); err == nil {
		if c.argv, err = pointers(r.x.Argv); err == nil {
			if c.env, err = pointers(r.x.Env); err == nil {
				if c.dir, err = unix.BytePtrFromString(path.Clean("/" + r.x.Dir)); err == nil {
					c.root, err = unix.BytePtrFromString(base)
				}
			}
		}
	}
	if err != nil {
		return guest.Failf(guest.KindInvalid, "command holds a NUL byte")
	}
	var theirs [3]int
	n := 0
	defer func() {
		for _, fd := range theirs[:n] {
			unix.Close(fd)
		}
	}()
	for i, mine := range []*int{&r.in, &r.out.fd, &r.err.fd} {
		if i == 0 && len(r.x.Stdin) == 0 {
			continue
		}
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return broken(os.NewSyscallError("pipe2", err))
		}
		m, t := p[0], p[1]
		if i == 0 {
			m, t = p[1], p[0]
		}
		theirs[n], n = t, n+1
		*mine, c.files[i] = m, uintptr(t)
		if err := unix.SetNonblock(m, true); err != nil {
			return broken(os.NewSyscallError("set nonblock", err))
		}
	}
	r.start = time.Now()
	r.pid, r.pidfd, err = c.spawn(r.s.into)
	return r.started(err)
}

// started turns a failed start into a result where a limit of the command caused it.
func (r *run) started(err error) *guest.Failure {
	var se *spawnError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoProcess):
		r.hit, r.status = hitPids, 126<<8
		return nil
	case errors.As(err, &se) && (se.stage == stageExec || se.stage == stageDir):
		if se.errno == unix.ENOMEM || se.errno == unix.EAGAIN {
			r.hit, r.status = hitMemory, 126<<8
			return nil
		}
		what := r.x.Argv[0]
		if se.stage == stageDir {
			what = "directory " + r.x.Dir
		}
		return guest.Failf(guest.KindInvalid, "%s: %v", what, err)
	}
	return broken(err)
}

// limits are the resource limits of the command and of all it starts.
func (r *run) limits() []rlimit {
	both := func(res uintptr, v int64) rlimit {
		return rlimit{res, unix.Rlimit{Cur: uint64(v), Max: uint64(v)}}
	}
	l := []rlimit{
		both(unix.RLIMIT_CORE, 0), both(unix.RLIMIT_MSGQUEUE, 0), both(unix.RLIMIT_FSIZE, r.x.FileSize), both(unix.RLIMIT_NOFILE, r.x.OpenFiles),
	}
	if r.x.Memory > 0 {
		// The sum over all processes is bounded by the watch; this bounds what one
		// can take between two looks, shared memory apart, which no such limit counts.
		l = append(l, both(unix.RLIMIT_DATA, r.x.Memory+r.x.Memory/2+(64<<20)))
	}
	if r.x.Pids > 0 {
		l = append(l, both(unix.RLIMIT_NPROC, r.x.Pids+ownThreads()))
	}
	return l
}

// ownThreads counts this process's threads, which share the commands' user id and so their RLIMIT_NPROC.
func ownThreads() int64 {
	var st unix.Stat_t
	if err := unix.Stat(base+"/proc/self/task", &st); err != nil || st.Nlink < 3 {
		return 16
	}
	return int64(st.Nlink) - 2
}

// wait serves the pipes until the command has ended.
func (r *run) wait() {
	deadline := r.start.Add(r.x.Timeout)
	tick, slowest := 100*time.Millisecond, time.Second
	if r.x.Watch {
		tick, slowest = 10*time.Millisecond, watchEvery
	}
	look := r.start.Add(tick)
	for !r.ended {
		now := time.Now()
		if !r.killed && !now.Before(deadline) {
			r.kill(hitTime)
		}
		if !now.Before(look) {
			r.reap()
			if r.x.Watch {
				r.watch()
			}
			// Long commands are mostly waiting ones: look less often.
			tick = min(tick+tick/4, slowest)
			look = now.Add(tick)
		}
		until := look
		if !r.killed && deadline.Before(until) {
			until = deadline
		}
		r.poll(until.Sub(now))
	}
	if r.killed {
		reapAll(r.seen)
	} else {
		r.reap()
	}
	for _, o := range []*stream{&r.out, &r.err} {
		for stop := o.total + drainLimit; o.fd >= 0 && o.total < stop && o.take(r.s.scratch); {
		}
	}
}

// poll waits for one of the descriptors, at most d, and serves those that are ready.
func (r *run) poll(d time.Duration) {
	p := [5]unix.PollFd{
		{Fd: int32(r.pidfd), Events: unix.POLLIN},
		{Fd: int32(r.s.control), Events: unix.POLLIN},
		{Fd: int32(r.out.fd), Events: unix.POLLIN},
		{Fd: int32(r.err.fd), Events: unix.POLLIN},
		{Fd: int32(r.in), Events: unix.POLLOUT},
	}
	ts := unix.NsecToTimespec(max(int64(d), 0))
	if n, err := unix.Ppoll(p[:], &ts, nil); err != nil || n == 0 {
		return
	}
	if p[1].Revents != 0 {
		r.told()
	}
	for i, o := range []*stream{&r.out, &r.err} {
		if p[2+i].Revents != 0 {
			o.take(r.s.scratch)
		}
		if o.total > r.x.Flood && !r.killed {
			r.kill(hitOutput)
		}
	}
	if p[4].Revents != 0 {
		r.feed()
	}
	if p[0].Revents != 0 {
		r.reap()
	}
}

// told reads the host's word: kill, or the end of the stream.
func (r *run) told() {
	op, _, err := guest.ReadFrame(r.s.control, maxRequest)
	if err != nil || op != guest.OpKill {
		os.Exit(1) // the host is gone or confused; the kernel ends everything with process 1
	}
	r.kill("")
}

// feed writes some of the command's input.
func (r *run) feed() {
	n, err := unix.Write(r.in, r.x.Stdin)
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if n > 0 {
		r.x.Stdin = r.x.Stdin[n:]
	}
	if err != nil || len(r.x.Stdin) == 0 {
		unix.Close(r.in)
		r.in = -1
	}
}

// kill ends all processes of the sandbox: a command's double-forked children cannot be told from others.
func (r *run) kill(hit string) {
	if r.hit == "" {
		r.hit = hit
	}
	r.killed = true
	killAll()
}

// reap takes the children that have ended, orphans included.
func (r *run) reap() {
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, &ru)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		r.seen(pid, ws, &ru)
	}
}

func (r *run) seen(pid int, ws unix.WaitStatus, ru *unix.Rusage) {
	r.cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	if pid == r.pid {
		r.ended, r.status = true, ws
	}
}

// exit describes the command's end.
func (r *run) exit() guest.Exit {
	e := guest.Exit{
		Stdout: r.out.head, Stderr: r.err.head, StdoutTotal: r.out.total, StderrTotal: r.err.total,
		Duration: time.Since(r.start), CPU: r.cpu,
	}
	if r.status.Signaled() {
		e.Code, e.Signal = -1, int(r.status.Signal())
	} else {
		e.Code = r.status.ExitStatus()
	}
	e.Hit = r.hit
	if r.pids && r.hit != hitMemory {
		e.Hit = hitPids // what followed from it does not count
	}
	if full := r.s.diskHit(e.Code != 0); e.Hit == "" {
		e.Hit = full
	}
	switch {
	case e.Hit != "":
	case e.Signal == int(unix.SIGXFSZ):
		e.Hit = hitDisk
	case r.out.total > r.x.Output || r.err.total > r.x.Output:
		e.Hit = hitOutput
	}
	return e
}

// diskHit reports that the use's file system is full. A full disk left by an
// earlier command counts again only for a command that failed.
func (s *server) diskHit(failed bool) string {
	var st unix.Statfs_t
	if err := unix.Statfs(layers, &st); err != nil {
		return ""
	}
	was := s.full
	s.full = st.Bavail == 0 || st.Ffree == 0
	switch {
	case was && !failed:
		return ""
	case st.Bavail == 0:
		return hitDisk
	case st.Ffree == 0:
		return hitInodes
	}
	return ""
}

func (r *run) close() {
	for _, fd := range []int{r.pidfd, r.in, r.out.fd, r.err.fd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
