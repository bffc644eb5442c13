package coordinator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var (
	errTimeout = errors.New("no answer")
	errRefused = errors.New("connection refused")
)

// network carries raft's messages between the nodes of a synctest bubble. Where it is cut
// messages vanish, in one direction if the test says so; a paused node's
// messages, in and out, wait and arrive when it is resumed, however late.
type network struct {
	timeout time.Duration // after which a caller gives up

	mu     sync.Mutex // guards all below
	wires  map[raft.ServerAddress]*wire
	cut    map[[2]raft.ServerAddress]bool
	paused map[raft.ServerAddress]chan struct{} // closed when it is resumed
}

func newNetwork() *network {
	return &network{
		timeout: 500 * time.Millisecond,
		wires:   map[raft.ServerAddress]*wire{},
		cut:     map[[2]raft.ServerAddress]bool{},
		paused:  map[raft.ServerAddress]chan struct{}{},
	}
}

// dial returns a new transport at an address; one that was there before should be closed.
func (n *network) dial(at raft.ServerAddress) *wire {
	w := &wire{net: n, at: at, in: make(chan raft.RPC), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wires[at] = w
	return w
}

func (n *network) peer(at raft.ServerAddress) *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wires[at]
}

// oneWay loses everything from one address to another from now on.
func (n *network) oneWay(from, to raft.ServerAddress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]raft.ServerAddress{from, to}] = true
}

// split lets the nodes of a group talk to each other only; nodes in no group talk to nobody.
func (n *network) split(groups ...[]raft.ServerAddress) {
	side := map[raft.ServerAddress]int{}
	for i, g := range groups {
		for _, a := range g {
			side[a] = i + 1
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for a := range n.wires {
		for b := range n.wires {
			if a != b {
				n.cut[[2]raft.ServerAddress{a, b}] = side[a] == 0 || side[a] != side[b]
			}
		}
	}
}

// isolate cuts one node off in both directions.
func (n *network) isolate(at raft.ServerAddress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for b := range n.wires {
		if b != at {
			n.cut[[2]raft.ServerAddress{at, b}] = true
			n.cut[[2]raft.ServerAddress{b, at}] = true
		}
	}
}

// heal mends every cut.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
}

func (n *network) pause(at raft.ServerAddress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused[at] == nil {
		n.paused[at] = make(chan struct{})
	}
}

func (n *network) resume(at raft.ServerAddress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.paused[at]; c != nil {
		close(c)
		delete(n.paused, at)
	}
}

// pass brings one message across: it waits out pauses and says whether it arrived.
func (n *network) pass(from, to *wire) bool {
	time.Sleep(100*time.Microsecond + rand.N(2*time.Millisecond))
	for {
		n.mu.Lock()
		wait := n.paused[from.at]
		if wait == nil {
			wait = n.paused[to.at]
		}
		cut := n.cut[[2]raft.ServerAddress{from.at, to.at}]
		n.mu.Unlock()
		if wait == nil {
			return !cut
		}
		select {
		case <-wait:
		case <-from.closed:
			return false
		case <-to.closed:
			return false
		}
	}
}

// wire is a raft.Transport on a network. Like the one on TCP it pipelines
// appends, and heartbeats overtake what waits for raft's main loop.
type wire struct {
	net    *network
	at     raft.ServerAddress
	in     chan raft.RPC
	closed chan struct{}
	work   sync.WaitGroup // messages sent from here

	mu   sync.Mutex // guards beat, shut
	beat func(raft.RPC)
	shut bool
}

var (
	_ raft.Transport   = (*wire)(nil)
	_ raft.WithPreVote = (*wire)(nil)
	_ raft.WithClose   = (*wire)(nil)
)

func (w *wire) Consumer() <-chan raft.RPC     { return w.in }
func (w *wire) LocalAddr() raft.ServerAddress { return w.at }

func (w *wire) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }
func (w *wire) DecodePeer(b []byte) raft.ServerAddress                  { return raft.ServerAddress(b) }

func (w *wire) SetHeartbeatHandler(f func(raft.RPC)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beat = f
}

// Close breaks every connection and waits for what was on its way.
func (w *wire) Close() error {
	w.mu.Lock()
	if !w.shut {
		w.shut = true
		close(w.closed)
	}
	w.mu.Unlock()
	w.work.Wait()
	return nil
}

// start runs f unless the wire is closed; Close waits for it.
func (w *wire) start(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut {
		return false
	}
	w.work.Go(f)
	return true
}

// deliver brings a request to its receiver and later the answer back. What is
// lost on the way is never answered. It returns once the receiver has the request.
func (w *wire) deliver(to *wire, cmd any, data io.Reader, answer chan<- raft.RPCResponse) {
	if to == nil {
		answer <- raft.RPCResponse{Error: errRefused}
		return
	}
	if !w.net.pass(w, to) {
		return
	}
	got := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: cmd, Reader: data, RespChan: got}
	to.mu.Lock()
	beat := to.beat
	to.mu.Unlock()
	if beat != nil && isHeartbeat(cmd) {
		beat(rpc)
	} else {
		select {
		case to.in <- rpc:
		case <-to.closed:
			answer <- raft.RPCResponse{Error: errRefused}
			return
		case <-w.closed:
			return
		}
	}
	w.start(func() {
		select {
		case r := <-got:
			if w.net.pass(to, w) {
				answer <- r
			}
		case <-to.closed:
		case <-w.closed:
		}
	})
}

func isHeartbeat(cmd any) bool {
	a, ok := cmd.(*raft.AppendEntriesRequest)
	return ok && a.Term != 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}

// own copies a request as encoding it would.
func own(a *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	c := *a
	c.Entries = make([]*raft.Log, len(a.Entries))
	for i, l := range a.Entries {
		e := *l
		c.Entries[i] = &e
	}
	return &c
}

func (w *wire) await(answer <-chan raft.RPCResponse, within time.Duration) (any, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case r := <-answer:
		return r.Response, r.Error
	case <-late.C:
		return nil, errTimeout
	case <-w.closed:
		return nil, raft.ErrTransportShutdown
	}
}

// request is one request with its answer.
func request[T any](w *wire, to raft.ServerAddress, cmd any, data io.Reader, within time.Duration, out *T) error {
	answer := make(chan raft.RPCResponse, 1)
	peer := w.net.peer(to)
	if !w.start(func() { w.deliver(peer, cmd, data, answer) }) {
		return raft.ErrTransportShutdown
	}
	r, err := w.await(answer, within)
	if err != nil {
		return fmt.Errorf("%s to %s: %w", w.at, to, err)
	}
	*out = *r.(*T)
	return nil
}

func (w *wire) AppendEntries(_ raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	return request(w, to, own(a), nil, w.net.timeout, r)
}

func (w *wire) RequestVote(_ raft.ServerID, to raft.ServerAddress, a *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return request(w, to, a, nil, w.net.timeout, r)
}

func (w *wire) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, a *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	return request(w, to, a, nil, w.net.timeout, r)
}

func (w *wire) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, a *raft.TimeoutNowRequest, r *raft.TimeoutNowResponse) error {
	return request(w, to, a, nil, w.net.timeout, r)
}

// InstallSnapshot sends a copy: the sender closes its file when it gives up.
func (w *wire) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, a *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	b, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	return request(w, to, a, bytes.NewReader(b), 10*w.net.timeout, r)
}

// pipeline keeps two appends on their way, which arrive in order. It holds
// back and lets go exactly as raft.NetworkTransport does with its defaults.
type pipeline struct {
	w      *wire
	to     *wire
	socket chan *flight // bytes on their way
	wait   chan *flight // those whose answer is read next
	done   chan raft.AppendFuture
	stop   chan struct{}
	once   sync.Once
}

// flight is one append of a pipeline.
type flight struct {
	start  time.Time
	args   *raft.AppendEntriesRequest
	resp   *raft.AppendEntriesResponse
	answer chan raft.RPCResponse
	ended  chan struct{}
	err    error
}

func (f *flight) Error() error                          { <-f.ended; return f.err }
func (f *flight) Start() time.Time                      { return f.start }
func (f *flight) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *flight) Response() *raft.AppendEntriesResponse { return f.resp }

func (w *wire) AppendEntriesPipeline(_ raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	peer := w.net.peer(to)
	if peer == nil {
		return nil, errRefused
	}
	p := &pipeline{
		w: w, to: peer, socket: make(chan *flight, 16), wait: make(chan *flight),
		done: make(chan raft.AppendFuture), stop: make(chan struct{}),
	}
	if !w.start(p.carry) || !w.start(p.collect) {
		return nil, raft.ErrTransportShutdown
	}
	return p, nil
}

func (p *pipeline) AppendEntries(a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := &flight{start: time.Now(), args: a, resp: r, answer: make(chan raft.RPCResponse, 1), ended: make(chan struct{})}
	for _, c := range []chan *flight{p.socket, p.wait} {
		select {
		case c <- f:
		case <-p.stop:
			return nil, raft.ErrPipelineShutdown
		case <-p.w.closed:
			return nil, raft.ErrTransportShutdown
		}
	}
	return f, nil
}

// carry brings appends over one after the other, without waiting for answers.
func (p *pipeline) carry() {
	for {
		select {
		case f := <-p.socket:
			p.w.deliver(p.to, own(f.args), nil, f.answer)
		case <-p.stop:
			return
		case <-p.w.closed:
			return
		}
	}
}

// collect answers in order.
func (p *pipeline) collect() {
	for {
		select {
		case f := <-p.wait:
			r, err := p.w.await(f.answer, p.w.net.timeout)
			if err == nil {
				*f.resp = *r.(*raft.AppendEntriesResponse)
			}
			f.err = err
			close(f.ended)
			select {
			case p.done <- f:
			case <-p.stop:
				return
			case <-p.w.closed:
				return
			}
		case <-p.stop:
			return
		case <-p.w.closed:
			return
		}
	}
}

func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.done }

func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.stop) })
	return nil
}
