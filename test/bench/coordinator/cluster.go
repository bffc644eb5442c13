package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// startWithin is how long a cluster, or a node that comes back, may take to be of use.
const startWithin = 30 * time.Second

// certificates makes an authority and one certificate for the nodes of both
// clusters and one for their clients.
func (b *bench) certificates() error {
	const month = 30 * 24 * time.Hour // one that ends soon is warned of
	ca, err := auth.NewCA("bench", month)
	if err != nil {
		return err
	}
	if err := ca.IssueTo(b.tls("node"), auth.Identity{Role: auth.Coordinator, Name: "node"}, []string{"127.0.0.1", "localhost"}, month); err != nil {
		return err
	}
	return ca.IssueTo(b.tls("client"), auth.Identity{Role: auth.Admin, Name: "bench"}, nil, month)
}

// tls is the directory of a bearer's certificate.
func (b *bench) tls(who string) string { return filepath.Join(b.work, "tls", who) }

// cluster is three nodes of ours, each a process.
type cluster struct {
	program string
	dial    []grpc.DialOption
	nodes   []*node
}

type node struct {
	id, address, config, log string
	process                  *process // nil while it does not run
	conn                     *grpc.ClientConn
}

// cluster returns the running cluster, which it starts the first time.
func (b *bench) cluster(ctx context.Context) (*cluster, error) {
	if b.ours != nil {
		return b.ours, nil
	}
	creds, err := auth.FilesIn(b.tls("client")).Load(slog.New(slog.NewTextHandler(b.notes, nil)))
	if err != nil {
		return nil, err
	}
	c := &cluster{program: b.rlfleetd}
	if c.dial, err = auth.DialOptions(creds, ""); err != nil {
		return nil, err
	}
	if err := c.start(ctx, filepath.Join(b.work, "ours"), b.tls("node")); err != nil {
		c.stop()
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	b.ours = c
	return c, nil
}

// start writes the nodes' files, starts them and makes them one cluster.
func (c *cluster) start(ctx context.Context, dir, tls string) error {
	for i := range 3 {
		n := &node{id: fmt.Sprint("n", i+1)}
		at := filepath.Join(dir, n.id)
		n.config, n.log = at+".yaml", at+".log"
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		raft, err := freeAddress()
		if err != nil {
			return err
		}
		if n.address, err = freeAddress(); err != nil {
			return err
		}
		text := fmt.Sprintf("node: %s\ndir: %s\nlisten: %s\nraft: %s\nstorage: file://%s\ntls: {ca: %s, cert: %s, key: %s}\n",
			n.id, at, n.address, raft, filepath.Join(dir, "store"), filepath.Join(tls, "ca.pem"), filepath.Join(tls, "cert.pem"), filepath.Join(tls, "key.pem"))
		if err := os.WriteFile(n.config, []byte(text), 0o644); err != nil {
			return err
		}
		if n.conn, err = grpc.NewClient("passthrough:///"+n.address, append(client.DialOptions(), c.dial...)...); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
		if err := c.run(n); err != nil {
			return err
		}
	}
	for i, n := range c.nodes {
		err := until(ctx, startWithin, func(ctx context.Context) error {
			if i == 0 {
				_, err := pb.NewClusterClient(n.conn).Init(ctx, &pb.InitRequest{})
				return err
			}
			_, err := pb.NewClusterClient(c.nodes[0].conn).Join(ctx, &pb.JoinRequest{Address: n.address})
			return err
		})
		if err != nil {
			return errors.Join(err, lastWords(n.log))
		}
	}
	return nil
}

// run starts a node's process.
func (c *cluster) run(n *node) (err error) {
	n.process, err = start(n.log, c.program, "coordinator", "--config", n.config)
	return err
}

// stop ends the nodes.
func (c *cluster) stop() {
	for _, n := range c.nodes {
		if n.process != nil {
			n.process.stop()
			n.process = nil
		}
		if n.conn != nil {
			_ = n.conn.Close() // there is nothing to lose
		}
	}
}

// addresses are where the nodes answer.
func (c *cluster) addresses() []string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.address)
	}
	return out
}

// processes are those of the nodes that run.
func (c *cluster) processes() []*process {
	var out []*process
	for _, n := range c.nodes {
		if n.process != nil {
			out = append(out, n.process)
		}
	}
	return out
}

// status asks one node.
func (n *node) status(ctx context.Context) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return pb.NewCoordinatorClient(n.conn).Status(ctx, &pb.StatusRequest{})
}

// leader waits for the node that leads and returns what it says.
func (c *cluster) leader(ctx context.Context) (found *node, said *pb.StatusResponse, err error) {
	err = until(ctx, startWithin, func(ctx context.Context) error {
		for _, n := range c.nodes {
			if n.process == nil {
				continue
			}
			if s, err := n.status(ctx); err == nil && s.State == "leader" {
				found, said = n, s
				return nil
			}
		}
		return errors.New("no node leads")
	})
	return found, said, err
}

// led is when a node said last that it leads.
func (c *cluster) led() (last time.Time) {
	for _, n := range c.nodes {
		b, err := os.ReadFile(n.log)
		if err != nil {
			continue // what it says is a remark only
		}
		for line := range strings.Lines(string(b)) {
			if !strings.Contains(line, `msg="this node leads"`) {
				continue
			}
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if t, err := time.Parse(time.RFC3339Nano, first); err == nil && t.After(last) {
				last = t
			}
		}
	}
	return last
}

// level waits until every node has applied what is committed: a node that has
// just come back may have the log and be reading it still. write commits
// something, and whoever has applied that is at its log time.
func (c *cluster) level(ctx context.Context, write func() error) error {
	_, said, err := c.leader(ctx)
	if err == nil {
		err = write()
	}
	if err != nil {
		return err
	}
	return until(ctx, startWithin, func(ctx context.Context) error {
		for _, n := range c.nodes {
			s, err := n.status(ctx)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.id, err)
			}
			if s.NowNs < said.NowNs {
				return fmt.Errorf("node %s is %s of log time behind", n.id, time.Duration(said.NowNs-s.NowNs))
			}
		}
		return nil
	})
}

// clients makes clients of the cluster, each one connection, with a lane for
// each of the callers that share them and some for what keeps nodes registered.
func (c *cluster) clients(ctx context.Context, name string, connections, callers int) ([]*client.Client, func() error, error) {
	var out []*client.Client
	end := func() error {
		var errs []error
		for _, x := range out {
			errs = append(errs, x.Close())
		}
		return errors.Join(errs...)
	}
	for i := range connections {
		cfg := client.DefaultConfig(fmt.Sprint(name, i), c.addresses()...)
		cfg.Dial, cfg.Lanes = c.dial, callers/connections+4
		x, err := client.New(ctx, cfg)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		out = append(out, x)
	}
	return out, end, nil
}

// until tries until it succeeds; the error is that of the last try.
func until(ctx context.Context, within time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", within, err)
		}
	}
}

// closing adds the error of closing something to that of using it.
func closing(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }
