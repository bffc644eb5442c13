package robustness

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// proxy stands before one port of one node. Who connects is found in /proc, so
// that the way from each node to each other one is a link of its own although
// all of them dial the same address.
type proxy struct {
	net    *network
	node   string                    // whose port it is
	target string                    // the port itself
	whose  func(inode uint64) string // the node that has a socket; "client" for none
	listen net.Listener
	done   chan struct{}
	work   sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

func newProxy(n *network, node, address, target string, whose func(inode uint64) string) (*proxy, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &proxy{net: n, node: node, target: target, whose: whose, listen: l, done: make(chan struct{}), conns: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listen.Addr().String() }

// close ends every connection.
func (p *proxy) close() error {
	close(p.done)
	err := p.listen.Close()
	p.breakAll()
	p.work.Wait()
	return err
}

// breakAll resets the connections that there are.
func (p *proxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // its pumps see to the rest
	}
}

func (p *proxy) accept() {
	for {
		c, err := p.listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.work.Go(func() { p.serve(c) })
		}
	}
}

// track lets breakAll and close reach a connection; false when the proxy has ended.
func (p *proxy) track(c net.Conn, there bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !there {
		delete(p.conns, c)
		return true
	}
	select {
	case <-p.done:
		return false
	default:
		p.conns[c] = true
		return true
	}
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	if !p.track(c, true) {
		return
	}
	defer p.track(c, false)
	from := p.whose(inodeOf(c.RemoteAddr()))
	if !p.open(from, p.node) || !p.open(p.node, from) { // the handshake goes both ways
		return
	}
	d, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil {
		return
	}
	defer d.Close()
	if !p.track(d, true) {
		return
	}
	defer p.track(d, false)
	back := make(chan struct{})
	go func() { defer close(back); p.pump(d, c, p.node, from); _ = c.Close(); _ = d.Close() }()
	p.pump(c, d, from, p.node)
	_ = c.Close()
	_ = d.Close()
	<-back
}

// open waits until bytes can go from one party to another.
func (p *proxy) open(from, to string) bool {
	for {
		f, changed := p.net.at(from, to)
		if !f.cut {
			return true
		}
		select {
		case <-changed:
		case <-p.done:
			return false
		}
	}
}

// pump carries bytes in one direction until one end is closed. What is cut is
// held back, as TCP would until it gives up.
func (p *proxy) pump(src, dst net.Conn, from, to string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if !p.open(from, to) {
				return
			}
			f, _ := p.net.at(from, to)
			if f.delay > 0 {
				select {
				case <-time.After(f.delay):
				case <-p.done:
				}
			}
			if p.net.broken(f) {
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.open(from, to) // that the sender has gone is a message, too
			}
			return
		}
	}
}

// inodeOf returns the inode of the socket at the other end of a loopback connection; 0 when it is gone.
func inodeOf(remote net.Addr) uint64 {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0
	}
	defer f.Close()
	_, port, _ := net.SplitHostPort(remote.String())
	n, _ := strconv.Atoi(port)
	want := fmt.Sprintf(":%04X", n)
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], want) && fields[9] != "0" {
			inode, _ := strconv.ParseUint(fields[9], 10, 64)
			return inode
		}
	}
	return 0
}

// hasSocket reports whether a process has a socket.
func hasSocket(pid int, inode uint64) bool {
	if inode == 0 {
		return false
	}
	want := fmt.Sprintf("socket:[%d]", inode)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == want {
			return true
		}
	}
	return false
}
