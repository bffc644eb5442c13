package coordinator

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/internal/raftlogslog"
)

// TransportConfig says how a node reaches the others of its cluster.
type TransportConfig struct {
	Node      string // id of this node
	Listen    string // address that takes log entries, host:port
	Advertise string // what the others dial; empty: Listen
	Timeout   time.Duration
	Logger    *slog.Logger

	// TLS is for both sides, asking for the other's certificate; it is called for
	// each connection that is dialed. nil: plain TCP, on loopback addresses only.
	TLS func() (*tls.Config, error)

	// Explain wraps a dialed connection so that what TLS says of a refusal is a
	// sentence; nil leaves it.
	Explain func(c net.Conn, address string) net.Conn
}

// Transport carries raft's messages over TCP. Each connection begins with a
// hello of both sides, so that nodes of two clusters, or two nodes with one
// id, never exchange a vote or an entry.
type Transport struct {
	*raft.NetworkTransport
	layer *layer
}

// NewTransport listens. A node that is opened with the transport closes it. ctx
// lends its values only.
func NewTransport(ctx context.Context, cfg TransportConfig) (*Transport, error) {
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("coordinator: listen for other nodes on %s: %w", cfg.Listen, err)
	}
	if cfg.TLS == nil && !l.Addr().(*net.TCPAddr).IP.IsLoopback() { //nolint:forcetypeassert // of a TCP listener
		return nil, errors.Join(fmt.Errorf("coordinator: listen for other nodes on %s: %w", cfg.Listen, ErrExposed), l.Close())
	}
	if cfg.Advertise == "" {
		cfg.Advertise = l.Addr().String()
	}
	y := &layer{cfg: cfg, listener: l, ready: make(chan net.Conn), introduced: make(chan struct{}), done: make(chan struct{}), said: map[string]time.Time{}, open: map[*tracked]struct{}{}}
	y.stopping, y.stop = context.WithCancel(context.WithoutCancel(ctx))
	if cfg.TLS != nil {
		if y.tls, err = cfg.TLS(); err != nil {
			return nil, errors.Join(fmt.Errorf("coordinator: listen for other nodes on %s: %w", cfg.Listen, err), l.Close())
		}
	}
	y.work.Go(y.accept)
	return &Transport{layer: y, NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: y, MaxPool: 3, Timeout: cfg.Timeout, Logger: raftlogslog.New(cfg.Logger).Named("transport"),
	})}, nil
}

// acquaintance is what a node knows of its cluster.
type acquaintance interface {
	cluster() string                                             // its id; empty when the node belongs to none
	addressOf(id raft.ServerID) (at raft.ServerAddress, is bool) // of a node in the newest configuration known
}

// introduce says who this node is, once, when that is known; until then others wait for an answer.
func (t *Transport) introduce(a acquaintance) {
	t.layer.mu.Lock()
	defer t.layer.mu.Unlock()
	t.layer.node = a
	close(t.layer.introduced)
}

// hello is what each side says first: four bytes of length and this as JSON.
type hello struct {
	Cluster string `json:"cluster"` // empty: new, takes whoever adopts it
	Node    string `json:"node"`
	Address string `json:"address"`           // where the node takes log entries
	Refused string `json:"refused,omitempty"` // in the answer: why not
}

const (
	helloLimit   = 4 << 10
	helloTimeout = 5 * time.Second
	sayAgain     = time.Minute // a refusal of the same kind is logged once in this time
)

// layer is raft's stream layer.
type layer struct {
	cfg        TransportConfig
	tls        *tls.Config // of the listener; nil: none
	listener   net.Listener
	ready      chan net.Conn
	introduced chan struct{}
	done       chan struct{}
	stopping   context.Context // ends when Close begins
	stop       context.CancelFunc
	work       sync.WaitGroup
	closing    sync.Once

	mu   sync.Mutex            // guards node, said, open
	node acquaintance          // nil until the node is open
	open map[*tracked]struct{} // raft leaves some to the other side to close
	said map[string]time.Time
}

// Addr implements net.Listener: the advertised address, which is this node's in raft's configuration.
func (y *layer) Addr() net.Addr { return advertised(y.cfg.Advertise) }

type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// Accept implements net.Listener: connections whose hello was good.
func (y *layer) Accept() (net.Conn, error) {
	select {
	case c := <-y.ready:
		return c, nil
	case <-y.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (y *layer) Close() error {
	var err error
	y.closing.Do(func() {
		close(y.done)
		y.stop()
		err = y.listener.Close()
		y.mu.Lock()
		open := slices.Collect(maps.Keys(y.open))
		y.mu.Unlock()
		for _, c := range open {
			_ = c.Close() // the other side sees the end
		}
	})
	y.work.Wait()
	return err
}

func (y *layer) accept() {
	for {
		c, err := y.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of files, for one: others may yet close some
			select {
			case <-time.After(50 * time.Millisecond):
			case <-y.done:
				return
			}
			continue
		}
		y.work.Go(func() { y.welcome(c) })
	}
}

// welcome answers a hello and hands the connection on, or says why not and closes it.
func (y *layer) welcome(c net.Conn) {
	raw := c
	end := context.AfterFunc(y.stopping, func() { _ = raw.Close() }) // unblocks the handshake
	defer end()
	if y.tls != nil {
		c = tls.Server(c, y.tls)
	}
	theirs, err := func() (hello, error) {
		if err := c.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
			return hello{}, err
		}
		return readHello(c)
	}()
	if err != nil {
		y.warn("a node could not say hello", "from", c.RemoteAddr().String(), "error", err)
		_ = c.Close() // there is nothing to lose
		return
	}
	select {
	case <-y.introduced:
	case <-time.After(helloTimeout):
	case <-y.done:
	}
	ours := y.ours()
	ours.Refused = y.refuse(ours, theirs)
	err = writeHello(c, ours)
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if ours.Refused != "" {
		y.warn(ours.Refused, "node", theirs.Node, "from", c.RemoteAddr().String())
	}
	if err != nil || ours.Refused != "" {
		_ = c.Close() // the reason was said
		return
	}
	select {
	case y.ready <- y.track(c):
	case <-y.done:
		_ = c.Close() // the node ends
	}
}

func (y *layer) ours() hello {
	h := hello{Node: y.cfg.Node, Address: y.cfg.Advertise}
	if n := y.known(); n != nil {
		h.Cluster = n.cluster()
	}
	return h
}

func (y *layer) known() acquaintance {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.node
}

// refuse says why a node is not talked to, or nothing.
func (y *layer) refuse(ours, theirs hello) string {
	node := y.known()
	switch {
	case ours.Cluster == "":
		return fmt.Sprintf("node %s belongs to no cluster yet: add it with rlctl cluster join", ours.Node)
	case ours.Cluster != theirs.Cluster:
		return fmt.Sprintf("node %s belongs to cluster %s and node %s to cluster %s: start %s on an empty directory to join it here", ours.Node, ours.Cluster, theirs.Node, name(theirs.Cluster), theirs.Node)
	case theirs.Node == ours.Node:
		return fmt.Sprintf("two nodes are called %s: give each its own name and directory", ours.Node)
	}
	if at, is := node.addressOf(raft.ServerID(theirs.Node)); is && string(at) != theirs.Address {
		return fmt.Sprintf("node %s is at %s, and another at %s has its name: stop one of them; if it has moved, add it again with rlctl cluster join", theirs.Node, at, theirs.Address)
	}
	return ""
}

func name(cluster string) string {
	if cluster == "" {
		return "(none)"
	}
	return cluster
}

// Dial implements raft.StreamLayer.
func (y *layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 {
		timeout = helloTimeout
	}
	deadline := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(y.stopping, deadline)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", string(address))
	if err != nil {
		return nil, err
	}
	if y.cfg.TLS != nil {
		cfg, err := y.cfg.TLS()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		cfg.ServerName, _, _ = net.SplitHostPort(string(address)) // it was dialed
		c = tls.Client(c, cfg)
		if y.cfg.Explain != nil {
			c = y.cfg.Explain(c, string(address))
		}
	}
	end := context.AfterFunc(y.stopping, func() { _ = c.Close() })
	defer end()
	err = y.greet(c, deadline)
	if err != nil {
		_ = c.Close() // err says more
		y.warn("a node cannot be reached", "address", string(address), "error", err)
		return nil, err
	}
	return y.track(c), nil
}

// tracked is a connection that ends with the layer.
type tracked struct {
	net.Conn
	layer *layer
}

func (y *layer) track(c net.Conn) *tracked {
	t := &tracked{Conn: c, layer: y}
	y.mu.Lock()
	y.open[t] = struct{}{}
	y.mu.Unlock()
	if y.stopping.Err() != nil { // Close may have missed it
		_ = t.Close() // it begins with its end
	}
	return t
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.layer.mu.Lock()
	delete(t.layer.open, t)
	t.layer.mu.Unlock()
	return t.Conn.Close()
}

func (y *layer) greet(c net.Conn, deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	if err := writeHello(c, y.ours()); err != nil {
		return err
	}
	theirs, err := readHello(c)
	if err != nil {
		return err
	}
	if theirs.Refused != "" {
		return errors.New(theirs.Refused)
	}
	return c.SetDeadline(time.Time{})
}

// warn logs what would otherwise be said at every try.
func (y *layer) warn(message string, args ...any) {
	key := fmt.Sprint(message, args)
	y.mu.Lock()
	at, again := y.said[key]
	if !again || time.Since(at) > sayAgain {
		if len(y.said) > 100 { // addresses of scanners
			clear(y.said)
		}
		y.said[key], again = time.Now(), false
	}
	y.mu.Unlock()
	if !again {
		y.cfg.Logger.Warn(message, args...)
	}
}

func writeHello(w io.Writer, h hello) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("coordinator: hello: %w", err)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readHello(r io.Reader) (h hello, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return h, fmt.Errorf("coordinator: hello: %w", err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > helloLimit {
		return h, errors.New("coordinator: hello: this is not a node of rlfleet")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, fmt.Errorf("coordinator: hello: %w", err)
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, errors.New("coordinator: hello: this is not a node of rlfleet")
	}
	return h, nil
}
