package robustness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// cluster is several machines, and the network between them and their clients.
type cluster struct {
	dir      string
	store    string // directory of the object store, which all machines share
	programs string // directory of rlfleetd and rlctl
	net      *network
	machines []*machine
	asked    map[string]*grpc.ClientConn // by machine; past the proxies, for this test alone
	admin    []grpc.DialOption           // proves to be who manages the cluster
	worker   []grpc.DialOption           // proves to be a worker
	mayEnd   bool                        // a machine may end by itself in this fault
}

// newCluster starts machines and makes a cluster of them by the commands that people use.
func newCluster(ctx context.Context, dir, store, programs string, size int, seed uint64) (*cluster, error) {
	c := &cluster{dir: dir, store: store, programs: programs, net: newNetwork(seed), asked: map[string]*grpc.ClientConn{}}
	if err := c.certify(ctx, size); err != nil {
		return c, err
	}
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

// certs is where a node's or a client's certificate is.
func (c *cluster) certs(name string) string { return filepath.Join(c.dir, "certs", name) }

// certify makes the certificates of nodes and clients by the command that people use.
func (c *cluster) certify(ctx context.Context, size int) error {
	args := []string{"cluster", "certs", "--dir", filepath.Join(c.dir, "certs"), "--clients", "admin/chaos,worker/fleet"}
	for i := range size {
		args = append(args, "--nodes", fmt.Sprintf("n%d=127.0.0.1", i+1))
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(c.programs, "rlctl"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cluster: %w: %s", err, out)
	}
	var err error
	if c.admin, err = c.options("chaos"); err != nil {
		return err
	}
	c.worker, err = c.options("fleet")
	return err
}

func (c *cluster) options(name string) ([]grpc.DialOption, error) {
	creds, err := auth.FilesIn(c.certs(name)).Load(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return auth.DialOptions(creds, "")
}

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
	conn, err := grpc.NewClient("passthrough:///"+ports[0], c.admin...)
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
raft: %s
advertise: {listen: %s, raft: %s}
storage: file://%s
tls: {ca: %[8]s/ca.pem, cert: %[8]s/cert.pem, key: %[8]s/key.pem}
log: {segmentBytes: 65536, snapshotAfter: 200, snapshotEvery: 3s, trailing: 200} # so that all are cut often
`, m.name, m.disk.data(), rpc, raft, m.rpc.address(), m.raft.address(), c.store, c.certs(m.name))
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

// dial returns a client of the cluster that is a worker.
func (c *cluster) dial(name string) (*client.Client, error) { return c.client(name, c.worker) }

func (c *cluster) client(name string, who []grpc.DialOption) (*client.Client, error) {
	cfg := client.DefaultConfig(name, c.addresses()...)
	cfg.Dial = who
	return client.New(context.Background(), cfg)
}

// rlctl runs a command against the cluster and returns what it said.
func (c *cluster) rlctl(ctx context.Context, args ...string) (string, error) {
	return c.rlctlAt(ctx, strings.Join(c.addresses(), ","), args...)
}

// rlctlAt is rlctl against given addresses.
func (c *cluster) rlctlAt(ctx context.Context, addresses string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.programs, "rlctl"), args...)
	cmd.Env = append(os.Environ(), "RLFLEET_COORDINATOR="+addresses, "RLFLEET_TLS="+c.certs("chaos"))
	out, err := cmd.CombinedOutput()
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
	return c.try(ctx, "cluster", "join", m.rpc.address())
}

func (c *cluster) remove(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	return c.try(ctx, "cluster", "remove", m.name)
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
			return fmt.Errorf("machine %s ended: %s %s", m.name, m.sentence(), m.crashed())
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
			if m.gaveUp() && !c.mayEnd {
				return fmt.Errorf("machine %s ended by itself: %s", m.name, m.sentence())
			}
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
