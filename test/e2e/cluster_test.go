package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// clusterNode is one rlfleetd coordinator --config.
type clusterNode struct {
	*program
	id, rpc, raft, config string
}

// cluster is three of them, with certificates, and the directory they live in.
type cluster struct {
	programs, dir string
	nodes         []*clusterNode
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// newCluster makes certificates and starts three nodes that wait for init.
func newCluster(t *testing.T, programs string) *cluster {
	t.Helper()
	c := &cluster{programs: programs, dir: t.TempDir()}
	out, err := rlctl(t, programs, c.dir, "cluster", "certs", "--dir", "certs", "--nodes", "n1=127.0.0.1", "--nodes", "n2=127.0.0.1", "--nodes", "n3=127.0.0.1",
		"--clients", "admin/alice", "--clients", "operator/oscar", "--clients", "viewer/vera", "--clients", "worker/w1")
	require.NoError(t, err, out)
	for i := range 3 {
		c.nodes = append(c.nodes, c.start(t, fmt.Sprint("n", i+1), fmt.Sprint("n", i+1), ""))
	}
	return c
}

// start begins a node with a data directory; more is added to its file.
func (c *cluster) start(t *testing.T, id, data, more string) *clusterNode {
	t.Helper()
	n := &clusterNode{id: id, rpc: freePort(t), raft: freePort(t), config: filepath.Join(c.dir, data+".yaml")}
	c.write(t, n, data, more)
	c.run(t, n)
	n.until(t, "listening", func() bool { return strings.Contains(n.said(), "msg=serving") })
	return n
}

func (c *cluster) write(t *testing.T, n *clusterNode, data, more string) {
	t.Helper()
	certs := filepath.Join("certs", n.id)
	require.NoError(t, os.WriteFile(n.config, fmt.Appendf(nil, "node: %s\ndir: data/%s\nlisten: %s\nraft: %s\nstorage: file://%s/store\ntls: {ca: %s/ca.pem, cert: %s/cert.pem, key: %s/key.pem}\n%s",
		n.id, data, n.rpc, n.raft, c.dir, certs, certs, certs, more), 0o600))
}

func (c *cluster) run(t *testing.T, n *clusterNode) {
	t.Helper()
	n.program = beginWith(t, exec.Command(filepath.Join(c.programs, "rlfleetd"), "coordinator", "--config", n.config), c.dir)
}

func (c *cluster) addresses() string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.rpc)
	}
	return strings.Join(out, ",")
}

// as is the flags of somebody who reaches the cluster.
func (c *cluster) as(who string, args ...string) []string {
	return append(args, "--coordinator", c.addresses(), "--tls", filepath.Join(c.dir, "certs", who))
}

func (c *cluster) init(t *testing.T) {
	t.Helper()
	args := []string{"cluster", "init", "--tls", filepath.Join(c.dir, "certs", "alice")}
	for _, n := range c.nodes {
		args = append(args, n.rpc)
	}
	out, err := rlctl(t, c.programs, c.dir, args...)
	require.NoError(t, err, out)
	require.Equal(t, 3, strings.Count(out, "\n"), out)
}

func (c *cluster) status(t *testing.T) string {
	t.Helper()
	out, err := rlctl(t, c.programs, c.dir, c.as("alice", "cluster", "status")...)
	require.NoError(t, err, out)
	return out
}

// call is a raw connection of a bearer to one node.
func (c *cluster) call(t *testing.T, who, token string) pb.CoordinatorClient {
	t.Helper()
	files := auth.FilesIn(filepath.Join(c.dir, "certs", who))
	if token != "" {
		files.Cert, files.Key = "", ""
	}
	creds, err := files.Load(nil)
	require.NoError(t, err)
	options, err := auth.DialOptions(creds, token)
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///"+c.nodes[0].rpc, append(append(client.DialOptions(), options...), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(200<<20)))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewCoordinatorClient(conn)
}

// refusedRPC requires a code and a sentence.
func refusedRPC(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, grpcstatus.Code(err), err.Error())
	for _, w := range words {
		require.Contains(t, auth.Sentence(err), w)
	}
	require.NotContains(t, auth.Sentence(err), "\n")
}

// Everything that must not be let in or done is one sentence and the right code, and the cluster is as it was.
func TestClusterBadInput(t *testing.T) {
	c := newCluster(t, programsOnly(t))
	c.init(t)
	before := c.status(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	clusterID := strings.Fields(before)[1]

	t.Run("who", func(t *testing.T) {
		out, err := rlctl(t, c.programs, c.dir, "cluster", "certs", "--dir", "foreign", "--clients", "admin/mallory")
		require.NoError(t, err, out)
		mallory := filepath.Join(c.dir, "foreign", "mallory")
		refuses(t, c.programs, c.dir, 1, []string{"authority"}, "cluster", "status", "--coordinator", c.addresses(), "--tls", mallory)
		ca, err := os.ReadFile(filepath.Join(c.dir, "certs", "ca.pem"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(mallory, "ca.pem"), ca, 0o600)) // knows the cluster, is not known to it
		refuses(t, c.programs, c.dir, 1, []string{"was not issued by the authority"}, "cluster", "status", "--coordinator", c.addresses(), "--tls", mallory)
		refuses(t, c.programs, c.dir, 2, []string{"--tls", "--token"}, "cluster", "status", "--coordinator", c.addresses())
		refuses(t, c.programs, c.dir, 2, []string{"loopback"}, "cluster", "status", "--coordinator", "10.0.0.1:1", "--insecure")

		authority, err := auth.LoadCA(filepath.Join(c.dir, "certs"))
		require.NoError(t, err)
		require.NoError(t, authority.IssueTo(filepath.Join(c.dir, "certs", "late"), auth.Identity{Role: auth.Admin, Name: "late"}, nil, time.Nanosecond))
		refuses(t, c.programs, c.dir, 1, []string{"renew it"}, c.as("late", "cluster", "status")...)

		refuses(t, c.programs, c.dir, 1, []string{"viewer", "admin"}, c.as("vera", "cluster", "remove", "n2")...)
		cancel := &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "files-1", Action: "cancel"}}}
		_, err = c.call(t, "w1", "").Propose(ctx, &raftlog.Proposal{Client: "w", Seq: 1, Op: cancel})
		refusedRPC(t, err, codes.PermissionDenied, "worker", "operator")

		text := auth.TokenText("aaaaaaaaaaaaa", strings.Repeat("a", 52))
		_, err = c.call(t, "vera", text).View(ctx, &pb.ViewRequest{})
		if err == nil {
			var s pb.Coordinator_ViewClient
			s, err = c.call(t, "vera", text).View(ctx, &pb.ViewRequest{})
			require.NoError(t, err)
			_, err = s.Recv()
		}
		refusedRPC(t, err, codes.Unauthenticated, "token")
	})

	t.Run("what", func(t *testing.T) {
		w := c.call(t, "w1", "")
		_, err := w.Why(ctx, &pb.WhyRequest{Run: "nope"})
		refusedRPC(t, err, codes.NotFound, "no such run")
		refuses(t, c.programs, c.dir, 1, []string{"nope"}, c.as("vera", "runs", "show", "nope")...)
		ref := &raftlog.NodeRef{Role: state.RoleRollout, Name: "r1", Incarnation: 1}
		register := &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref}}}
		for seq := uint64(1); seq <= 2; seq++ {
			r, err := w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: seq, Op: register})
			require.NoError(t, err)
			require.Equal(t, raftlog.Code_CODE_OK, r.Code)
		}
		r, err := w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: 1, Op: register})
		require.NoError(t, err)
		require.Equal(t, raftlog.Code_CODE_STALE_SEQ, r.Code)
		require.Contains(t, r.Message, "behind")
		old := &raftlog.NodeRef{Role: state.RoleRollout, Name: "r1", Incarnation: 0}
		r, err = w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: 3, Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: old, Count: 1}}}})
		require.NoError(t, err)
		require.Equal(t, raftlog.Code_CODE_FENCED, r.Code)
		require.Contains(t, r.Message, "register again")
		_, err = w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: 4, Op: &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref, Address: strings.Repeat("a", 100<<20)}}}})
		require.Equal(t, codes.ResourceExhausted, grpcstatus.Code(err))
		_, err = w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: 4, Op: &raftlog.Op{}})
		refusedRPC(t, err, codes.InvalidArgument, "unknown")
		_, err = w.Propose(ctx, &raftlog.Proposal{Client: "x", Seq: 0, Op: register})
		refusedRPC(t, err, codes.InvalidArgument, "sequence number")
	})

	t.Run("snapshot", func(t *testing.T) {
		out, err := rlctl(t, c.programs, c.dir, c.as("oscar", "cluster", "snapshot", "save", "good")...)
		require.NoError(t, err, out)
		b, err := os.ReadFile(filepath.Join(c.dir, "good"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, "cut"), b[:len(b)-5], 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, "zip"), []byte("PK\x03\x04 something else entirely"), 0o600))
		refuses(t, c.programs, c.dir, 1, []string{"cut:", "ends early"}, c.as("alice", "cluster", "snapshot", "restore", "cut")...)
		refuses(t, c.programs, c.dir, 1, []string{"not a coordinator snapshot"}, c.as("alice", "cluster", "snapshot", "restore", "zip")...)
		refuses(t, c.programs, c.dir, 2, []string{"missing"}, c.as("alice", "cluster", "snapshot", "restore", "missing")...)
		refuses(t, c.programs, c.dir, 1, []string{"operator"}, c.as("oscar", "cluster", "snapshot", "restore", "good")...)
	})

	t.Run("nodes", func(t *testing.T) {
		refuses(t, c.programs, c.dir, 1, []string{"n9", "no such node"}, c.as("alice", "cluster", "remove", "n9")...)
		refuses(t, c.programs, c.dir, 1, []string{"does not answer"}, c.as("alice", "cluster", "join", "127.0.0.1:1")...)

		twin := c.start(t, "n2", "twin", "") // a second node with the name of one
		refuses(t, c.programs, c.dir, 1, []string{"node n2 runs at"}, c.as("alice", "cluster", "join", twin.rpc)...)
		twin.signal(t, os.Interrupt)
		require.Equal(t, 0, twin.wait(t))

		copied := filepath.Join(c.dir, "data", "copy") // a copy of a node's data that is started elsewhere
		require.NoError(t, os.CopyFS(copied, os.DirFS(filepath.Join(c.dir, "data", "n2"))))
		clone := c.start(t, "n2", "copy", "")
		clone.until(t, "being told", func() bool { return strings.Contains(clone.said(), "another at "+clone.raft+" has its name") })
		clone.signal(t, os.Interrupt)
		require.Equal(t, 0, clone.wait(t))

		starts := func(id, data, more string, words ...string) {
			t.Helper()
			n := &clusterNode{id: id, rpc: freePort(t), raft: freePort(t), config: filepath.Join(c.dir, data+".yaml")}
			c.write(t, n, data, more)
			was := contents(t, filepath.Join(c.dir, "data", data))
			c.run(t, n)
			require.Equal(t, 1, n.wait(t), n.said())
			for _, w := range words {
				require.Contains(t, n.said(), w)
			}
			require.NotContains(t, n.said(), "panic")
			require.Equal(t, was, contents(t, filepath.Join(c.dir, "data", data)), "nothing was changed")
		}
		starts("n3", "copy", "", `made for node "n2"`, "another node")
		starts("n2", "copy", "cluster: 0123456789abcdef\n", clusterID, "0123456789abcdef", "another cluster")
		info := filepath.Join(copied, "version.json")
		require.NoError(t, os.WriteFile(info, []byte(`{"format": 99, "node": "n2", "by": "9.9"}`), 0o600))
		starts("n2", "copy", "", "written by a newer rlfleet")
	})
	require.Equal(t, shape(before), shape(c.status(t)), "the cluster is as it was")
}

// contents is every file below a directory but its lock.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(p)
		out[p] = string(b)
		return err
	}))
	return out
}

// shape is a cluster's status without what moves by itself.
func shape(status string) []string {
	var out []string
	for _, line := range strings.Split(status, "\n") {
		if f := strings.Fields(line); len(f) > 3 && strings.HasPrefix(f[0], "n") {
			out = append(out, f[0]+" "+f[2]+" "+f[3])
		}
	}
	return out
}

// The last voter and a majority that is gone: nothing takes the cluster below what can decide.
func TestClusterKeepsItsQuorum(t *testing.T) {
	c := newCluster(t, programsOnly(t))
	c.init(t)
	c.nodes[1].signal(t, os.Kill)
	c.nodes[1].wait(t)
	refuses(t, c.programs, c.dir, 1, []string{"no majority"}, c.as("alice", "cluster", "remove", "n3")...)
	out, err := rlctl(t, c.programs, c.dir, c.as("alice", "cluster", "remove", "n2")...)
	require.NoError(t, err, out)
	out, err = rlctl(t, c.programs, c.dir, c.as("alice", "cluster", "remove", "n3")...)
	require.NoError(t, err, out)
	require.Equal(t, 1, c.nodes[2].wait(t), "a node that was removed ends")
	require.Contains(t, c.nodes[2].said(), "was removed from cluster")
	refuses(t, c.programs, c.dir, 1, []string{"last voter"}, c.as("alice", "cluster", "remove", "n1")...)
	require.Contains(t, c.status(t), "n1")
}
