// Package client asks the coordinator: it follows the leader, repeats what may
// or may not have happened without doing it twice, and keeps a node's leases alive.
//
// Every operation carries a client id and a sequence number, and the
// coordinator remembers the last result of each id. An id therefore has one
// operation on its way at a time. A Client owns several ids, its lanes, and an
// operation takes a free one; until its deadline it is repeated with the same
// numbers, so that it is applied at most once whatever was lost on the way.
package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Config says where the coordinator is. Start from DefaultConfig.
type Config struct {
	Addresses []string                 // of the coordinator's nodes: "unix:PATH" or "host:port"
	Dial      []grpc.DialOption        // how callers prove who they are, see auth.DialOptions; none: loopback and Unix sockets only
	Conn      grpc.ClientConnInterface // instead of Addresses: a connection of the caller's, see DialOptions
	Name      string                   // begins the client ids, so that records can be read by people
	Lanes     int                      // operations on their way at a time
	Timeout   time.Duration            // of calls whose context has no deadline
	Attempt   time.Duration            // after which an unanswered try is given up and repeated
}

// DefaultConfig is for a worker that names itself.
func DefaultConfig(name string, addresses ...string) Config {
	return Config{Addresses: addresses, Name: name, Lanes: 32, Timeout: 30 * time.Second, Attempt: 5 * time.Second}
}

// Validate returns one error that names every field that is wrong.
func (c Config) Validate() error {
	var errs []error
	if (len(c.Addresses) == 0) == (c.Conn == nil) {
		errs = append(errs, errors.New("give either addresses or a connection"))
	}
	if c.Name == "" {
		errs = append(errs, errors.New("the name is empty"))
	}
	if c.Lanes < 1 || c.Timeout <= 0 || c.Attempt <= 0 {
		errs = append(errs, errors.New("lanes, timeout and attempt must be positive"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("client: config: %w", errors.Join(errs...))
	}
	return nil
}

// Client talks to the coordinator. It is safe for concurrent use.
type Client struct {
	cfg   Config
	peers *peers
	ids   string        // what the ids of this client begin with
	free  chan struct{} // one for each lane that may be taken

	stopping context.Context // ends when Close begins
	stop     context.CancelFunc
	work     sync.WaitGroup // watchers

	mu    sync.Mutex // guards made, lanes
	made  int
	lanes []*lane // free ones; the last used is taken first, so that few have a row in the state
}

// lane is one client id. Whoever holds it may have one operation on its way.
type lane struct {
	id  string
	seq uint64
}

// New returns a client; connections are made when they are used. ctx lends its
// values only: Close ends the client.
func New(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p, err := newPeers(cfg)
	if err != nil {
		return nil, err
	}
	return newClient(ctx, cfg, p), nil
}

func newClient(ctx context.Context, cfg Config, p *peers) *Client {
	var unique [8]byte
	_, _ = rand.Read(unique[:]) // never fails
	c := &Client{cfg: cfg, peers: p, free: make(chan struct{}, cfg.Lanes), ids: cfg.Name + "." + hex.EncodeToString(unique[:])}
	c.stopping, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	for range cfg.Lanes {
		c.free <- struct{}{}
	}
	return c
}

// Close ends watchers and the connections that the client made.
func (c *Client) Close() error {
	c.stop()
	c.work.Wait()
	return c.peers.close()
}

// newLane makes an id. A session has one of its own: a heartbeat must not wait for a free one.
func (c *Client) newLane() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newLaneLocked()
}

func (c *Client) newLaneLocked() *lane {
	c.made++
	return &lane{id: fmt.Sprintf("%s.%d", c.ids, c.made)}
}

// take returns a free lane, of which there is one: the caller took from c.free.
func (c *Client) take() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lanes) == 0 {
		return c.newLaneLocked()
	}
	l := c.lanes[len(c.lanes)-1]
	c.lanes = c.lanes[:len(c.lanes)-1]
	return l
}

func (c *Client) give(l *lane) {
	c.mu.Lock()
	c.lanes = append(c.lanes, l)
	c.mu.Unlock()
	c.free <- struct{}{}
}

// Propose commits an operation and returns its result. A refusal of the state
// machine is a *Refused; when the deadline comes first the error is
// ErrUnavailable with the reason, and the operation may or may not have happened.
func (c *Client) Propose(ctx context.Context, op *raftlog.Op) (*raftlog.Result, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	select {
	case <-c.free:
		l := c.take()
		defer c.give(l)
		return c.propose(ctx, l, op)
	case <-ctx.Done():
		return nil, fmt.Errorf("client: %s: %w: %d operations are on their way already", opName(op), ErrUnavailable, c.cfg.Lanes)
	case <-c.stopping.Done():
		return nil, fmt.Errorf("client: %s: %w: the client is closed", opName(op), ErrUnavailable)
	}
}

// propose uses a lane that the caller holds. An earlier operation of the lane
// whose outcome is unknown is overtaken: should it still arrive, its number is of the past.
func (c *Client) propose(ctx context.Context, l *lane, op *raftlog.Op) (*raftlog.Result, error) {
	l.seq++
	p := &raftlog.Proposal{Client: l.id, Seq: l.seq, Op: op}
	var result *raftlog.Result
	err := c.retry(ctx, opName(op), func(ctx context.Context, s pb.CoordinatorClient) (err error) {
		result, err = s.Propose(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	if result.Code != raftlog.Code_CODE_OK {
		return nil, &Refused{op: opName(op), code: result.Code, message: result.Message}
	}
	return result, nil
}

// limit gives a call a deadline if it has none.
func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timeout)
}

// opName is the name of an operation for messages, for example "LeaseEpisodes".
func opName(op *raftlog.Op) string {
	if op == nil || op.Op == nil {
		return "no operation"
	}
	name := fmt.Sprintf("%T", op.Op)
	const prefix = "*raftlogv1.Op_"
	return name[min(len(prefix), len(name)):]
}
