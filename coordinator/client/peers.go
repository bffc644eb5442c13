package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// maxMessage bounds an RPC message; the coordinator's own limit is the lower one.
const maxMessage = 32 << 20

// Pauses between two tries of a call. The last is short: it is what a change of
// leaders takes longer for a caller, on average half of it and the round through the others.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// DialOptions are those of every connection to the coordinator: it comes back
// within a second of a restart, and a peer that went silent is noticed. The
// connection is not authenticated; options that follow these may change that.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		auth.Insecure(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
}

// maxLearned bounds the addresses that are learned from hints beyond those that were given.
const maxLearned = 16

// errExposed refuses an address where others could listen in.
var errExposed = errors.New("it is neither a Unix socket nor a loopback address: give a certificate or a token (--tls or --ca with --token)")

// peers are the nodes of the coordinator and which one is asked now.
type peers struct {
	cfg   Config
	given int // how many addresses the configuration has

	mu        sync.Mutex // guards what follows
	services  []pb.CoordinatorClient
	addresses []string           // of the services; empty when the caller made the connection
	conns     []*grpc.ClientConn // that the client made
	now       int
	round     int // where the round through all of them is; a hint leaves it for a moment
	closed    bool
}

func newPeers(cfg Config) (*peers, error) {
	p := &peers{cfg: cfg, given: len(cfg.Addresses)}
	if cfg.Conn != nil {
		p.services = []pb.CoordinatorClient{newService(cfg.Conn)}
		return p, nil
	}
	for _, a := range cfg.Addresses {
		if err := p.addLocked(a); err != nil {
			return nil, errors.Join(fmt.Errorf("client: address %q: %w", a, err), p.close())
		}
	}
	return p, nil
}

// addLocked makes the connection to a node; it is used later.
func (p *peers) addLocked(address string) error {
	if len(p.cfg.Dial) == 0 && !auth.Loopback(address) {
		return errExposed
	}
	target := address
	if !strings.HasPrefix(address, "unix:") {
		target = "passthrough:///" + address // the operating system resolves names at each dial
	}
	conn, err := grpc.NewClient(target, append(DialOptions(), p.cfg.Dial...)...)
	if err != nil {
		return err
	}
	p.conns, p.addresses = append(p.conns, conn), append(p.addresses, address)
	p.services = append(p.services, newService(conn))
	return nil
}

func (p *peers) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// current returns the node to ask and its number.
func (p *peers) current() (pb.CoordinatorClient, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.services[p.now], p.now
}

// size is the number of nodes that are known.
func (p *peers) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.services)
}

// leave goes on from a node that could not answer, unless another call has
// already: to the leader, when the node said where it is, else to the next one.
// It reports whether it was to the leader.
func (p *peers) leave(from int, leader string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != from {
		return false
	}
	if to := p.findLocked(leader); to >= 0 && to != from {
		p.now = to
		return true
	}
	// From where the hint was given, not from the node it named: followers may name a dead leader for a while.
	p.round = (p.round + 1) % len(p.services)
	p.now = p.round
	return false
}

// findLocked returns the number of a node by its address, -1 when it cannot be
// asked. A cluster changes, so that its leader may be a node that was not given.
func (p *peers) findLocked(address string) int {
	if address == "" || p.given == 0 || p.closed {
		return -1
	}
	if i := slices.Index(p.addresses, address); i >= 0 {
		return i
	}
	if len(p.services) >= p.given+maxLearned || p.addLocked(address) != nil {
		return -1 // the round goes on: a hint is not a duty
	}
	return len(p.services) - 1
}

// retry tries a call until it succeeds, can never succeed, or ctx ends.
func (c *Client) retry(ctx context.Context, op string, call func(context.Context, pb.CoordinatorClient) error) error {
	pause, why, begun := firstPause, "", time.Now()
	hinted := false           // a hint was followed already: two nodes may each believe that the other leads
	refused := map[int]bool{} // nodes that do not accept who calls
	for {
		service, number := c.peers.current()
		try, cancel := context.WithTimeout(ctx, c.cfg.Attempt)
		err := call(try, service)
		cancel()
		if err == nil {
			return nil
		}
		v, detail, kind := judge(err)
		// That time ran out is known; what was wrong before is not. That a node is down says less than that another refused.
		if why == "" || ctx.Err() == nil && (v == denied || len(refused) == 0) {
			why = auth.Sentence(err)
		}
		if v == denied {
			refused[number] = true
		}
		if v == final || v == denied && len(refused) == c.peers.size() || v == again && kind != nil && time.Since(begun) > c.cfg.Attempt {
			return &callError{op: op, kind: kind, sentence: auth.Sentence(err)}
		}
		if v != again && c.peers.leave(number, detail.GetLeaderAddress()) && !hinted {
			hinted = true
			continue
		}
		wait := time.Duration(float64(pause) * (0.5 + rand.Float64()))
		if after := time.Duration(detail.GetRetryAfterNs()); after > wait {
			wait = time.Duration(float64(after) * (1 + rand.Float64()))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		case <-c.stopping.Done():
		}
		switch {
		case c.stopping.Err() != nil:
			return fmt.Errorf("client: %s: %w: the client is closed", op, ErrUnavailable)
		case ctx.Err() != nil:
			return fmt.Errorf("client: %s: %w: %s: %w", op, ErrUnavailable, why, ctx.Err())
		}
		pause = min(2*pause, lastPause)
	}
}
