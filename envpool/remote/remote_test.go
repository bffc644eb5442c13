package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/envpool/envpooltest"
	"github.com/rlfleet/rlfleet/envpool/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial serves a host at the address and returns a client of it; both end with the test.
func dial(t *testing.T, network, address string, h envpool.Host) *remote.Client {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	s := grpc.NewServer(remote.ServerOptions()...)
	remote.Register(s, h)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	target := l.Addr().String()
	if network == "unix" {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		s.Stop()
		require.NoError(t, <-done)
	})
	return remote.NewClient(conn)
}

func TestSuite(t *testing.T) {
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, no sandboxes on this machine: %v", err)
	}
	guest := filepath.Join(t.TempDir(), "rlguest")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", guest, "github.com/rlfleet/rlfleet/cmd/rlguest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	envpooltest.Run(t, func(t *testing.T) envpool.Host {
		rc := bubblewrap.DefaultConfig(t.TempDir())
		rc.Guest = guest
		rt, err := bubblewrap.New(rc)
		require.NoError(t, err)
		cfg := envpool.DefaultConfig()
		cfg.MaxAgents, cfg.MaxVerifiers, cfg.WarmLow, cfg.WarmHigh = 4, 2, 1, 6
		p, err := envpool.NewHost(context.Background(), cfg, rt)
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			require.NoError(t, p.Close(ctx))
		})
		return dial(t, "unix", filepath.Join(t.TempDir(), "s"), p)
	})
}

// failing fails every call with one error.
type failing struct {
	envpool.Host
	err error
}

func (f failing) Claim(context.Context, envpool.Claim) (envpool.Handle, error) {
	return envpool.Handle{}, f.err
}

func (f failing) Collect(context.Context, envpool.Handle, []string, int64) ([]envpool.File, error) {
	return nil, f.err
}

func (f failing) Release(context.Context, envpool.Handle) error { return f.err }

func TestKindsSurvive(t *testing.T) {
	all := []error{
		lease.ErrFenced, envpool.ErrNoSlot, envpool.ErrUnknown, envpool.ErrUnsafe, envpool.ErrInvalid, envpool.ErrUnsupported,
		envpool.ErrTooLarge, envpool.ErrNotFound, envpool.ErrEnvironment, context.Canceled,
	}
	for _, kind := range all {
		t.Run(kind.Error(), func(t *testing.T) {
			c := dial(t, "tcp", "127.0.0.1:0", failing{err: fmt.Errorf("envpool: op: %w: because", kind)})
			ctx := context.Background()
			_, err1 := c.Claim(ctx, envpool.Claim{})
			_, err2 := c.Collect(ctx, envpool.Handle{}, nil, 0)
			err3 := c.Release(ctx, envpool.Handle{})
			for _, err := range []error{err1, err2, err3} {
				for _, other := range all {
					require.Equal(t, other == kind, errors.Is(err, other), "%v is %v", err, other)
				}
				require.ErrorContains(t, err, "because")
			}
		})
	}
	c := dial(t, "tcp", "127.0.0.1:0", failing{err: errors.New("of no kind")})
	err := c.Release(context.Background(), envpool.Handle{})
	require.ErrorContains(t, err, "of no kind")
	for _, kind := range all {
		require.NotErrorIs(t, err, kind)
	}
}

// A host that cannot be reached says nothing about a sandbox.
func TestUnreachable(t *testing.T) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(t.TempDir(), "nobody"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	err = remote.NewClient(conn).Release(context.Background(), envpool.Handle{Sandbox: "x"})
	require.Error(t, err)
	require.NotErrorIs(t, err, envpool.ErrEnvironment)
	require.NotErrorIs(t, err, envpool.ErrUnknown)
}

// big answers with files larger than one message of the stream.
type big struct {
	envpool.Host
	files []envpool.File
}

func (b big) Collect(context.Context, envpool.Handle, []string, int64) ([]envpool.File, error) {
	return b.files, nil
}

func TestCollectLarge(t *testing.T) {
	want := []envpool.File{
		{Path: "/app/a", Mode: 0o644, Data: make([]byte, 5<<20+17)},
		{Path: "/app/odd\xff\n", Mode: 0o755, Data: []byte("x")},
		{Path: "/app/b", Mode: 0o600, Data: make([]byte, 2<<20)},
	}
	for i := range want[0].Data {
		want[0].Data[i] = byte(i * 7)
	}
	c := dial(t, "tcp", "127.0.0.1:0", big{files: append(want, envpool.File{Path: "/app/empty", Mode: 0o644})})
	got, err := c.Collect(context.Background(), envpool.Handle{}, nil, 1<<30)
	require.NoError(t, err)
	require.Equal(t, want, got[:3])
	require.Empty(t, got[3].Data)
}
