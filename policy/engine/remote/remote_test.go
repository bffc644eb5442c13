package remote_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/policy/engine/enginetest"
	"github.com/rlfleet/rlfleet/policy/engine/remote"
	"github.com/rlfleet/rlfleet/policy/engine/tiny"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect serves e in memory and returns a client of it.
func connect(t *testing.T, e engine.Engine) (client *remote.Client, server *grpc.Server) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server = grpc.NewServer()
	remote.Register(server, e)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///engine", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		if err := <-done; !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			require.NoError(t, err)
		}
	})
	return remote.NewClient(conn), server
}

func TestConformance(t *testing.T) {
	cfg := tiny.DefaultConfig()
	cfg.MaxPending = 40
	enginetest.Run(t, func(t *testing.T, p *enginetest.Policies) enginetest.Subject {
		e, err := tiny.New(cfg, p.Load, p.Resolve)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		c, _ := connect(t, e)
		return enginetest.Subject{Engine: c, Close: e.Close, Store: p, Pending: cfg.MaxPending}
	})
}

// faulty answers what no engine may answer.
type faulty struct {
	engine.Engine
	response engine.Response
	err      error
}

func (f faulty) Generate(context.Context, engine.Request) (engine.Response, error) {
	return f.response, f.err
}

func (f faulty) Score(context.Context, policy.Version, [][]int32) ([][]float32, error) {
	return nil, nil
}

func TestAnswersThatCannotBeRecordedAreRefused(t *testing.T) {
	spans := []policy.Span{{Length: 2}}
	for name, r := range map[string]engine.Response{
		"a log-probability is missing": {Tokens: []int32{1, 2}, Logprobs: []float32{-1}, Spans: spans, Finish: engine.FinishStop},
		"spans do not cover":           {Tokens: []int32{1}, Logprobs: []float32{-1}, Spans: spans, Finish: engine.FinishStop},
		"no finish reason":             {Tokens: []int32{1, 2}, Logprobs: []float32{-1, -1}, Spans: spans},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, faulty{response: r})
			_, err := c.Generate(t.Context(), engine.Request{Prompt: []int32{1}})
			require.Error(t, err)
			_, err = c.Score(t.Context(), 0, [][]int32{{1}})
			require.Error(t, err)
		})
	}
}

func TestTransportFailuresHaveNoKind(t *testing.T) {
	c, server := connect(t, faulty{})
	server.Stop()
	_, err := c.Generate(t.Context(), engine.Request{Prompt: []int32{1}})
	require.Equal(t, codes.Unavailable, status.Code(err))
	for _, kind := range []error{engine.ErrClosed, engine.ErrVersion, engine.ErrTooLong, engine.ErrInvalid} {
		require.NotErrorIs(t, err, kind)
	}
}

func TestDeadlinesAreTheCallers(t *testing.T) {
	c, _ := connect(t, faulty{err: context.DeadlineExceeded})
	_, err := c.Generate(t.Context(), engine.Request{Prompt: []int32{1}})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.NotErrorIs(t, err, context.DeadlineExceeded, "it was the server's own deadline")
}
