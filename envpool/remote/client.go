package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	rlfleetv1 "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Client is a Host in another process.
type Client struct {
	c rlfleetv1.EnvPoolClient
}

var _ envpool.Host = (*Client)(nil)

// NewClient uses a connection, which stays the caller's.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{c: rlfleetv1.NewEnvPoolClient(conn)}
}

// large lets big files through in both directions.
func large() []grpc.CallOption {
	return []grpc.CallOption{grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)}
}

func wire(h envpool.Handle) *rlfleetv1.EnvHandle {
	return &rlfleetv1.EnvHandle{Sandbox: h.Sandbox, Fence: uint64(h.Fence)}
}

// Prepare implements envpool.Host; the layers' sources are on the host's machine.
func (c *Client) Prepare(ctx context.Context, t envpool.Template) (envpool.SnapshotID, error) {
	r := &rlfleetv1.EnvPrepareRequest{Digest: string(t.Digest), Image: t.Image, Workdir: t.Workdir, Env: t.Env}
	for _, l := range t.Layers {
		r.Layers = append(r.Layers, &rlfleetv1.EnvLayer{Source: l.Source, Dest: l.Dest})
	}
	out, err := c.c.Prepare(ctx, r)
	return envpool.SnapshotID(out.GetSnapshot()), fromStatus(ctx, "prepare", err)
}

// grace is how long before the caller's deadline the host is told to give up,
// so that its answer says why.
const grace = 20 * time.Millisecond

// Claim implements envpool.Host.
func (c *Client) Claim(ctx context.Context, cl envpool.Claim) (envpool.Handle, error) {
	call := ctx
	if d, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		call, cancel = context.WithDeadline(ctx, d.Add(-min(grace, time.Until(d)/4)))
		defer cancel()
	}
	l := cl.Limits
	out, err := c.c.Claim(call, &rlfleetv1.EnvClaimRequest{
		Lease: &rlfleetv1.EnvLease{
			Resource: cl.Lease.Resource, Holder: cl.Lease.Holder, Incarnation: cl.Lease.Incarnation,
			Fence: uint64(cl.Lease.Fence), TtlNanos: int64(cl.Lease.TTL),
		},
		Snapshot: string(cl.Snapshot), Quota: string(cl.Quota), Entropy: cl.Entropy,
		Limits: &rlfleetv1.EnvLimits{
			Cpu: l.CPU, Memory: l.Memory, Pids: int64(l.Pids), Disk: l.Disk, Inodes: l.Inodes, OpenFiles: int64(l.OpenFiles),
			Output: l.Output, WallNanos: int64(l.Wall),
		},
	})
	err = fromStatus(call, "claim", err)
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, envpool.ErrNoSlot) {
		// The transport gave up together with the host. To have waited for a
		// slot in vain is the only thing a claim spends its deadline on.
		err = fmt.Errorf("%w: %w", envpool.ErrNoSlot, err)
	}
	return envpool.Handle{Sandbox: out.GetHandle().GetSandbox(), Fence: lease.Fence(out.GetHandle().GetFence())}, err
}

// Exec implements envpool.Host.
func (c *Client) Exec(ctx context.Context, h envpool.Handle, cmd envpool.Command) (envpool.Result, error) {
	r := &rlfleetv1.EnvExecRequest{
		Handle: wire(h), Argv: raw(cmd.Argv), Stdin: cmd.Stdin, Env: map[string][]byte{}, Dir: []byte(cmd.Dir),
		TimeoutNanos: int64(cmd.Timeout), Output: cmd.Output,
	}
	for k, v := range cmd.Env {
		r.Env[k] = []byte(v)
	}
	out, err := c.c.Exec(ctx, r, large()...)
	if err != nil {
		return envpool.Result{}, fromStatus(ctx, "exec", err)
	}
	return envpool.Result{
		ExitCode: int(out.GetExitCode()), Signal: int(out.GetSignal()), Stdout: out.GetStdout(), Stderr: out.GetStderr(),
		StdoutTotal: out.GetStdoutTotal(), StderrTotal: out.GetStderrTotal(), Hit: envpool.LimitHit(out.GetHit()),
		Duration: time.Duration(out.GetDurationNanos()), CPU: time.Duration(out.GetCpuNanos()),
	}, nil
}

func raw(l []string) [][]byte {
	out := make([][]byte, len(l))
	for i, s := range l {
		out[i] = []byte(s)
	}
	return out
}

// Write implements envpool.Host.
func (c *Client) Write(ctx context.Context, h envpool.Handle, path string, mode fs.FileMode, data []byte) error {
	_, err := c.c.Write(ctx, &rlfleetv1.EnvWriteRequest{Handle: wire(h), Path: []byte(path), Mode: uint32(mode.Perm()), Data: data}, large()...)
	return fromStatus(ctx, "write", err)
}

// Read implements envpool.Host.
func (c *Client) Read(ctx context.Context, h envpool.Handle, path string, limit int64) ([]byte, error) {
	out, err := c.c.Read(ctx, &rlfleetv1.EnvReadRequest{Handle: wire(h), Path: []byte(path), Limit: limit}, large()...)
	return out.GetData(), fromStatus(ctx, "read", err)
}

// Collect implements envpool.Host.
func (c *Client) Collect(ctx context.Context, h envpool.Handle, paths []string, limit int64) ([]envpool.File, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream on every way out
	defer cancel()
	in, err := c.c.Collect(ctx, &rlfleetv1.EnvCollectRequest{Handle: wire(h), Paths: raw(paths), Limit: limit}, large()...)
	if err != nil {
		return nil, fromStatus(ctx, "collect", err)
	}
	var files []envpool.File
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fromStatus(ctx, "collect", err)
		}
		if !m.GetMore() {
			files = append(files, envpool.File{Path: string(m.GetPath()), Mode: fs.FileMode(m.GetMode()).Perm(), Data: m.GetData()})
			continue
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("envpool: remote: collect: content comes before its file: %w", envpool.ErrEnvironment)
		}
		f := &files[len(files)-1]
		f.Data = append(f.Data, m.GetData()...)
	}
}

// Snapshot implements envpool.Host.
func (c *Client) Snapshot(ctx context.Context, h envpool.Handle) (envpool.SnapshotID, error) {
	out, err := c.c.Snapshot(ctx, &rlfleetv1.EnvSnapshotRequest{Handle: wire(h)})
	return envpool.SnapshotID(out.GetSnapshot()), fromStatus(ctx, "snapshot", err)
}

// Release implements envpool.Host.
func (c *Client) Release(ctx context.Context, h envpool.Handle) error {
	_, err := c.c.Release(ctx, &rlfleetv1.EnvReleaseRequest{Handle: wire(h)})
	return fromStatus(ctx, "release", err)
}

// Revoke implements envpool.Host.
func (c *Client) Revoke(ctx context.Context, resource string, f lease.Fence) error {
	_, err := c.c.Revoke(ctx, &rlfleetv1.EnvRevokeRequest{Resource: resource, Fence: uint64(f)})
	return fromStatus(ctx, "revoke", err)
}

// Stats implements envpool.Host.
func (c *Client) Stats(ctx context.Context) (envpool.Stats, error) {
	st, err := c.c.Stats(ctx, &rlfleetv1.EnvStatsRequest{})
	return envpool.Stats{
		Tier: st.GetTier(), Warm: int(st.GetWarm()), Leased: int(st.GetLeased()), Quarantined: int(st.GetQuarantined()),
		Agents: int(st.GetAgents()), Verifiers: int(st.GetVerifiers()), MaxAgents: int(st.GetMaxAgents()), MaxVerifiers: int(st.GetMaxVerifiers()),
		Claims: st.GetClaims(), Resets: st.GetResets(), Destroyed: st.GetDestroyed(), Advisory: st.GetAdvisory(),
	}, fromStatus(ctx, "stats", err)
}
