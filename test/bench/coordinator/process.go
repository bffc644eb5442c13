package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one node of a cluster.
type process struct {
	cmd  *exec.Cmd
	said *os.File
	done chan struct{} // closed when it has ended
}

// start runs a program whose output goes to the end of a file. It ends with this process, however that ends.
func start(log, program string, args ...string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), said: f, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

// kill ends a process at once, as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has ended already
	<-p.done
	_ = p.said.Close()
}

// stop lets a process end in order.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
	}
	p.kill()
}

// processorTime is what the processes have used so far. One that has ended has used none.
func processorTime(all []*process) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux port
	var sum time.Duration
	for _, p := range all {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // a program's name may hold anything
		for _, s := range f[11:13] {
			n, _ := strconv.ParseInt(s, 10, 64) // the kernel wrote it
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// lastWords are the end of a process's log, for an error.
func lastWords(log string) error {
	b, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	return fmt.Errorf("its log ends with: %s", b[max(0, len(b)-1500):])
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
