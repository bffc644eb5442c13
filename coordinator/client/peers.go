package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// maxMessage bounds an RPC message; the coordinator's own limit is the lower one.
const maxMessage = 32 << 20

// Pauses between two tries of a call.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// DialOptions are those of every connection to the coordinator: it comes back
// within a second of a restart, and a peer that went silent is noticed.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the coordinator serves loopback and Unix sockets only
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
}

// peers are the nodes of the coordinator and which one is asked now.
type peers struct {
	services []pb.CoordinatorClient
	conns    []*grpc.ClientConn // that the client made

	mu  sync.Mutex // guards now
	now int
}

func newPeers(cfg Config) (*peers, error) {
	if cfg.Conn != nil {
		return &peers{services: []pb.CoordinatorClient{pb.NewCoordinatorClient(cfg.Conn)}}, nil
	}
	p := &peers{}
	for _, a := range cfg.Addresses {
		target := a
		if !strings.HasPrefix(a, "unix:") {
			target = "passthrough:///" + a // the operating system resolves names at each dial
		}
		conn, err := grpc.NewClient(target, DialOptions()...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("client: address %q: %w", a, err), p.close())
		}
		p.conns = append(p.conns, conn)
		p.services = append(p.services, pb.NewCoordinatorClient(conn))
	}
	return p, nil
}

func (p *peers) close() error {
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

// leave goes on from a node that could not answer, unless another call has already.
func (p *peers) leave(from int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == from {
		p.now = (from + 1) % len(p.services)
	}
}

// retry tries a call until it succeeds, can never succeed, or ctx ends.
func (c *Client) retry(ctx context.Context, op string, call func(context.Context, pb.CoordinatorClient) error) error {
	pause, why := firstPause, ""
	for {
		service, number := c.peers.current()
		try, cancel := context.WithTimeout(ctx, c.cfg.Attempt)
		err := call(try, service)
		cancel()
		if err == nil {
			return nil
		}
		if why == "" || ctx.Err() == nil { // that time ran out is known; what was wrong before is not
			why = status.Convert(err).Message()
		}
		v, detail, kind := judge(err)
		if v == final {
			return fmt.Errorf("client: %s: %w: %s", op, kind, status.Convert(err).Message())
		}
		if v == elsewhere {
			c.peers.leave(number)
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
