package robustness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlfleet/rlfleet/coordinator/client"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// cluster is several machines, and the network between them and their clients.
type cluster struct {
	dir      string
	programs string // directory of rlfleetd and rlctl
	net      *network
	machines []*machine
	asked    map[string]*grpc.ClientConn // by machine; past the proxies, for this test alone
}

// newCluster starts machines and makes a cluster of them by the commands that people use.
func newCluster(ctx context.Context, dir, programs string, size int, seed uint64) (*cluster, error) {
	c := &cluster{dir: dir, programs: programs, net: newNetwork(seed), asked: map[string]*grpc.ClientConn{}}
	own := mountable(dir) == nil
	for i := range size {
		if err := c.add(fmt.Sprint("n", i+1), own); err != nil {
			return c, err
		}
	}
	for i, m := range c.machines {
		if err := m.start(); err != nil {
			return c, err
		}
		if err := c.listening(ctx, m); err != nil {
			return c, err
		}
		if i == 0 {
			if _, err := c.rlctl(ctx, "cluster", "init", m.rpc.address()); err != nil {
				return c, err
			}
			continue
		}
		if err := c.join(ctx, m); err != nil {
			return c, err
		}
	}
	return c, nil
}

// store is the directory of the object store, which all machines share.
func (c *cluster) store() string { return filepath.Join(c.dir, "store") }

// add prepares a machine that is not running yet.
func (c *cluster) add(name string, own bool) error {
	m := &machine{name: name, program: filepath.Join(c.programs, "rlfleetd"), home: filepath.Join(c.dir, name)}
	if err := os.MkdirAll(m.home, 0o755); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	var err error
	if m.disk, err = newDisk(m.home, own); err != nil {
		return err
	}
	ports := make([]string, 2)
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	if m.rpc, err = newProxy(c.net, name, "127.0.0.1:0", ports[0], c.whose); err != nil {
		return err
	}
	if m.raft, err = newProxy(c.net, name, "127.0.0.1:0", ports[1], c.whose); err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+ports[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	c.asked[name] = conn
	c.machines = append(c.machines, m)
	return c.configure(m, ports[0], ports[1])
}

// configure writes the machine's configuration.
func (c *cluster) configure(m *machine, rpc, raft string) error {
	text := fmt.Sprintf(`node: %s
dir: %s
listen: %s
advertise: %s
raft: %s
raftAdvertise: %s
storage: %s
insecure: true
`, m.name, m.disk.data(), rpc, m.rpc.address(), raft, m.raft.address(), c.store())
	return os.WriteFile(filepath.Join(m.home, "config.yaml"), []byte(text), 0o644)
}

// freePort returns a loopback address that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// whose names the machine that has a socket.
func (c *cluster) whose(inode uint64) string {
	for _, m := range c.machines {
		if p := m.process(); p != nil && hasSocket(p.pid, inode) {
			return m.name
		}
	}
	return "client"
}

// addresses are those that clients are given.
func (c *cluster) addresses() []string {
	var out []string
	for _, m := range c.machines {
		out = append(out, m.rpc.address())
	}
	return out
}

// direct is a machine's own address, past the proxies.
func (c *cluster) direct(m *machine) string { return m.rpc.target }

// dial returns a client of the cluster.
func (c *cluster) dial(name string) (*client.Client, error) {
	return client.New(context.Background(), client.DefaultConfig(name, c.addresses()...))
}

// rlctl runs a command against the cluster and returns what it said.
func (c *cluster) rlctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(c.programs, "rlctl"), args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rlctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// try repeats a command until it succeeds or ctx ends: the cluster may be busy electing.
func (c *cluster) try(ctx context.Context, args ...string) error {
	for {
		_, err := c.rlctl(ctx, args...)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (c *cluster) join(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	return c.try(ctx, "cluster", "join", "--coordinator", strings.Join(c.addresses(), ","), m.rpc.address())
}

func (c *cluster) remove(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	return c.try(ctx, "cluster", "remove", "--coordinator", strings.Join(c.addresses(), ","), m.name)
}

// status asks one machine about itself, past the proxies.
func (c *cluster) status(ctx context.Context, m *machine) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return pb.NewCoordinatorClient(c.asked[m.name]).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(true))
}

// listening waits until a machine answers.
func (c *cluster) listening(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	for {
		_, err := c.status(ctx, m)
		if err == nil {
			return nil
		}
		if !m.alive() {
			return fmt.Errorf("machine %s ended: %s", m.name, m.sentence())
		}
		if ctx.Err() != nil {
			return fmt.Errorf("machine %s does not answer: %w: %s", m.name, err, m.sentence())
		}
	}
}

// leader returns the machine that leads in the highest term, nil when none says so.
func (c *cluster) leader(ctx context.Context) *machine {
	var out *machine
	var term uint64
	for _, m := range c.machines {
		if !m.alive() {
			continue
		}
		if st, err := c.status(ctx, m); err == nil && st.State == "leader" && st.Term > term {
			out, term = m, st.Term
		}
	}
	return out
}

// wellLimit is how long a cluster may take to be well again after a fault.
const wellLimit = 45 * time.Second

// well waits until a leader exists, answers a read through the proxies, and
// every machine has applied what was committed when the wait began. Machines
// that have ended are started.
func (c *cluster) well(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	why := errors.New("no leader")
	for ctx.Err() == nil {
		for _, m := range c.machines {
			if !m.alive() {
				if err := m.start(); err != nil {
					return err
				}
			}
		}
		if why = c.level(ctx); why == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("the cluster is not well %s after the fault: %w", wellLimit, why)
}

// level returns nil when every machine has what the leader had committed at the call.
func (c *cluster) level(ctx context.Context) error {
	l := c.leader(ctx)
	if l == nil {
		return errors.New("no leader")
	}
	st, err := c.status(ctx, l)
	if err != nil {
		return err
	}
	for _, m := range c.machines {
		behind := errors.New("it does not answer")
		for range 20 {
			s, err := c.status(ctx, m)
			if err == nil && s.Applied >= st.Commit {
				behind = nil
				break
			}
			if err == nil {
				behind = fmt.Errorf("it has applied %d of %d (%s)", s.Applied, st.Commit, s.State)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("machine %s: %w", m.name, behind)
			}
		}
		if behind != nil {
			return fmt.Errorf("machine %s: %w", m.name, behind)
		}
	}
	return nil
}

// close ends everything; what it could not end is in the error.
func (c *cluster) close() error {
	var errs []error
	for _, m := range c.machines {
		m.signal(18) // SIGCONT, should it be stopped
		m.kill()
		for _, p := range []*proxy{m.rpc, m.raft} {
			if p != nil {
				errs = append(errs, p.close())
			}
		}
		if m.disk != nil {
			errs = append(errs, m.disk.unmount())
		}
	}
	for _, conn := range c.asked {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
