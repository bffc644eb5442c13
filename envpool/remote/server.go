// Package remote reaches an envpool.Host in another process: a gRPC server over a host, and a client that is one.
//
// Both work over whatever grpc dials, TCP and Unix sockets alike. Error kinds
// survive the way by one table.
package remote

import (
	"context"
	"io/fs"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
	rlfleetv1 "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// MaxMessage is the largest message either side accepts: a Read or a Write of
// the largest size, with room to spare. Servers and clients must be made with it.
const MaxMessage = 520 << 20

// chunk is how much of a collected file one message carries.
const chunk = 1 << 20

// ServerOptions are what a gRPC server needs to serve a host.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage)}
}

// Register serves a host.
func Register(s grpc.ServiceRegistrar, h envpool.Host) {
	rlfleetv1.RegisterEnvPoolServer(s, &server{h: h})
}

type server struct {
	rlfleetv1.UnimplementedEnvPoolServer
	h envpool.Host
}

func handle(h *rlfleetv1.EnvHandle) envpool.Handle {
	return envpool.Handle{Sandbox: h.GetSandbox(), Fence: lease.Fence(h.GetFence())}
}

// Prepare implements the service.
func (s *server) Prepare(ctx context.Context, r *rlfleetv1.EnvPrepareRequest) (*rlfleetv1.EnvPrepareResponse, error) {
	t := envpool.Template{Digest: policy.Digest(r.GetDigest()), Image: r.GetImage(), Workdir: r.GetWorkdir(), Env: r.GetEnv()}
	for _, l := range r.GetLayers() {
		t.Layers = append(t.Layers, envpool.Layer{Source: l.GetSource(), Dest: l.GetDest()})
	}
	id, err := s.h.Prepare(ctx, t)
	return &rlfleetv1.EnvPrepareResponse{Snapshot: string(id)}, toStatus(err)
}

// Claim implements the service.
func (s *server) Claim(ctx context.Context, r *rlfleetv1.EnvClaimRequest) (*rlfleetv1.EnvClaimResponse, error) {
	l, m := r.GetLease(), r.GetLimits()
	h, err := s.h.Claim(ctx, envpool.Claim{
		Lease: lease.Token{
			Resource: l.GetResource(), Holder: l.GetHolder(), Incarnation: l.GetIncarnation(),
			Fence: lease.Fence(l.GetFence()), TTL: time.Duration(l.GetTtlNanos()),
		},
		Snapshot: envpool.SnapshotID(r.GetSnapshot()), Quota: envpool.Quota(r.GetQuota()), Entropy: r.GetEntropy(),
		Limits: envpool.Limits{
			CPU: m.GetCpu(), Memory: m.GetMemory(), Pids: int(m.GetPids()), Disk: m.GetDisk(), Inodes: m.GetInodes(),
			OpenFiles: int(m.GetOpenFiles()), Output: m.GetOutput(), Wall: time.Duration(m.GetWallNanos()),
		},
	})
	return &rlfleetv1.EnvClaimResponse{Handle: &rlfleetv1.EnvHandle{Sandbox: h.Sandbox, Fence: uint64(h.Fence)}}, toStatus(err)
}

// Exec implements the service.
func (s *server) Exec(ctx context.Context, r *rlfleetv1.EnvExecRequest) (*rlfleetv1.EnvExecResponse, error) {
	c := envpool.Command{
		Argv: text(r.GetArgv()), Stdin: r.GetStdin(), Env: map[string]string{}, Dir: string(r.GetDir()),
		Timeout: time.Duration(r.GetTimeoutNanos()), Output: r.GetOutput(),
	}
	for k, v := range r.GetEnv() {
		c.Env[k] = string(v)
	}
	res, err := s.h.Exec(ctx, handle(r.GetHandle()), c)
	if err != nil {
		return nil, toStatus(err)
	}
	return &rlfleetv1.EnvExecResponse{
		ExitCode: int32(res.ExitCode), Signal: int32(res.Signal), Stdout: res.Stdout, Stderr: res.Stderr,
		StdoutTotal: res.StdoutTotal, StderrTotal: res.StderrTotal, Hit: string(res.Hit),
		DurationNanos: int64(res.Duration), CpuNanos: int64(res.CPU),
	}, nil
}

func text(l [][]byte) []string {
	out := make([]string, len(l))
	for i, b := range l {
		out[i] = string(b)
	}
	return out
}

// Write implements the service.
func (s *server) Write(ctx context.Context, r *rlfleetv1.EnvWriteRequest) (*rlfleetv1.EnvWriteResponse, error) {
	err := s.h.Write(ctx, handle(r.GetHandle()), string(r.GetPath()), fs.FileMode(r.GetMode()), r.GetData())
	return &rlfleetv1.EnvWriteResponse{}, toStatus(err)
}

// Read implements the service.
func (s *server) Read(ctx context.Context, r *rlfleetv1.EnvReadRequest) (*rlfleetv1.EnvReadResponse, error) {
	b, err := s.h.Read(ctx, handle(r.GetHandle()), string(r.GetPath()), r.GetLimit())
	return &rlfleetv1.EnvReadResponse{Data: b}, toStatus(err)
}

// Collect implements the service.
func (s *server) Collect(r *rlfleetv1.EnvCollectRequest, out grpc.ServerStreamingServer[rlfleetv1.EnvCollectResponse]) error {
	files, err := s.h.Collect(out.Context(), handle(r.GetHandle()), text(r.GetPaths()), r.GetLimit())
	if err != nil {
		return toStatus(err)
	}
	for _, f := range files {
		m := &rlfleetv1.EnvCollectResponse{Path: []byte(f.Path), Mode: uint32(f.Mode)}
		for rest := f.Data; ; {
			n := min(len(rest), chunk)
			m.Data, rest = rest[:n], rest[n:]
			if err := out.Send(m); err != nil {
				return err
			}
			if len(rest) == 0 {
				break
			}
			m = &rlfleetv1.EnvCollectResponse{More: true}
		}
	}
	return nil
}

// Snapshot implements the service.
func (s *server) Snapshot(ctx context.Context, r *rlfleetv1.EnvSnapshotRequest) (*rlfleetv1.EnvSnapshotResponse, error) {
	id, err := s.h.Snapshot(ctx, handle(r.GetHandle()))
	return &rlfleetv1.EnvSnapshotResponse{Snapshot: string(id)}, toStatus(err)
}

// Release implements the service.
func (s *server) Release(ctx context.Context, r *rlfleetv1.EnvReleaseRequest) (*rlfleetv1.EnvReleaseResponse, error) {
	return &rlfleetv1.EnvReleaseResponse{}, toStatus(s.h.Release(ctx, handle(r.GetHandle())))
}

// Revoke implements the service.
func (s *server) Revoke(ctx context.Context, r *rlfleetv1.EnvRevokeRequest) (*rlfleetv1.EnvRevokeResponse, error) {
	return &rlfleetv1.EnvRevokeResponse{}, toStatus(s.h.Revoke(ctx, r.GetResource(), lease.Fence(r.GetFence())))
}

// Stats implements the service.
func (s *server) Stats(ctx context.Context, _ *rlfleetv1.EnvStatsRequest) (*rlfleetv1.EnvStatsResponse, error) {
	st, err := s.h.Stats(ctx)
	return &rlfleetv1.EnvStatsResponse{
		Tier: st.Tier, Warm: int64(st.Warm), Leased: int64(st.Leased), Quarantined: int64(st.Quarantined),
		Agents: int64(st.Agents), Verifiers: int64(st.Verifiers), MaxAgents: int64(st.MaxAgents), MaxVerifiers: int64(st.MaxVerifiers),
		Claims: st.Claims, Resets: st.Resets, Destroyed: st.Destroyed, Advisory: st.Advisory,
	}, toStatus(err)
}
