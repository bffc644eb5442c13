package robustness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rlfleet/rlfleet/internal/failpoint"
)

// machine is one node of the cluster: a process, its disk, and the proxies
// before its two ports. Its methods are called by one goroutine.
type machine struct {
	name    string
	program string
	home    string // configuration, log, plan of failpoints
	disk    *disk
	rpc     *proxy // what clients and other nodes dial
	raft    *proxy
	wrap    []string // a command that runs the program

	mu   sync.Mutex // guards proc
	proc *process
}

// process is one life of a machine.
type process struct {
	cmd  *exec.Cmd
	pid  int // of the program itself, not of what wraps it
	done chan struct{}
}

func (m *machine) plan() string { return filepath.Join(m.home, "failpoints") }
func (m *machine) log() string  { return filepath.Join(m.home, "log") }

// start begins a new life.
func (m *machine) start() error {
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	defer log.Close()
	argv := append(append([]string{}, m.wrap...), m.program, "coordinator", "--config", filepath.Join(m.home, "config.yaml"))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), failpoint.Env+"=@"+m.plan(), clockEnv+"="+filepath.Join(m.home, "clock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }() // ends with the process, which stop and kill wait for
	if len(m.wrap) > 0 {
		if p.pid, err = childOf(p); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.proc = p
	m.mu.Unlock()
	return nil
}

// childOf waits for the program that a wrapper runs.
func childOf(p *process) (int, error) {
	for range 200 {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.cmd.Process.Pid, p.cmd.Process.Pid))
		if f := strings.Fields(string(b)); len(f) > 0 {
			return strconv.Atoi(f[0])
		}
		select {
		case <-p.done:
			return 0, errors.New("the wrapper of a machine ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
	return 0, errors.New("the wrapper of a machine runs nothing")
}

func (m *machine) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc
}

// alive reports whether the process runs.
func (m *machine) alive() bool {
	p := m.process()
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// gaveUp reports whether the process has ended by itself and not in order: nobody killed it.
func (m *machine) gaveUp() bool {
	p := m.process()
	return p != nil && !m.alive() && p.pid == p.cmd.Process.Pid && p.cmd.ProcessState.ExitCode() > 0
}

// signal sends one to the program.
func (m *machine) signal(s syscall.Signal) {
	if m.alive() {
		_ = syscall.Kill(m.process().pid, s) // it may just have ended
	}
}

// kill ends the process at once and waits for its end.
func (m *machine) kill() {
	m.signal(syscall.SIGKILL)
	if p := m.process(); p != nil {
		<-p.done
	}
}

// stop ends the process in order; it is killed when that takes too long.
func (m *machine) stop(limit time.Duration) error {
	m.signal(syscall.SIGTERM)
	p := m.process()
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		m.kill()
		return fmt.Errorf("machine %s does not stop within %s", m.name, limit)
	}
}

// waitEnd waits until the process ends by itself.
func (m *machine) waitEnd(limit time.Duration) bool {
	p := m.process()
	if p == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// said returns the end of the log.
func (m *machine) said(n int) string {
	b, _ := os.ReadFile(m.log())
	return string(b[max(0, len(b)-n):])
}

// sentence is the last line that the program said before it ended.
func (m *machine) sentence() string {
	lines := strings.Split(strings.TrimSpace(m.said(4000)), "\n")
	return lines[len(lines)-1]
}

// crashed returns the first line of a panic in the log.
func (m *machine) crashed() string {
	b, _ := os.ReadFile(m.log())
	for _, mark := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE"} {
		if i := bytes.Index(b, []byte(mark)); i >= 0 && (i == 0 || b[i-1] == '\n') {
			return string(b[i:min(len(b), i+2000)])
		}
	}
	return ""
}

// arm puts a plan of failpoints where the running process finds it, and waits a moment until it has.
func (m *machine) arm(plan string) error {
	for _, old := range []string{".fired", ".fired.by", ".armed"} {
		_ = os.Remove(m.plan() + old)
	}
	if err := os.WriteFile(m.plan()+".new", []byte(plan), 0o644); err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	if err := os.Rename(m.plan()+".new", m.plan()); err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	for range 200 { // it may just be starting, or be stopped
		if _, err := os.Stat(m.plan() + ".armed"); err == nil || !m.alive() {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	return nil
}

// fired reports whether a process has acted on the plan.
func (m *machine) fired() bool {
	_, err := os.Stat(m.plan() + ".fired")
	return err == nil
}

// disarm takes a plan back that nothing has acted on.
func (m *machine) disarm() { _ = os.Remove(m.plan()) }
