package auth

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const year = 365 * 24 * time.Hour

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA("test", 10*year)
	require.NoError(t, err)
	return ca
}

// issue writes a bearer's files into a new directory.
func issue(t *testing.T, ca *CA, identity string, validity time.Duration, hosts ...string) Files {
	t.Helper()
	dir := t.TempDir()
	reissue(t, ca, dir, identity, validity, hosts...)
	return FilesIn(dir)
}

func reissue(t *testing.T, ca *CA, dir, identity string, validity time.Duration, hosts ...string) {
	t.Helper()
	who, err := ParseIdentity(identity)
	require.NoError(t, err)
	require.NoError(t, ca.IssueTo(dir, who, hosts, validity))
	write(t, filepath.Join(dir, "ca.pem"), ca.PEM())
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// clock is wall time plus what a test adds to it.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time            { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration)   { c.ahead.Add(int64(d)) }
func (c *clock) load(f Files) *Credentials { return c.mustLoad(f, slog.New(slog.DiscardHandler)) }

func (c *clock) mustLoad(f Files, log *slog.Logger) *Credentials {
	creds, err := f.load(log, c.now)
	if err != nil {
		panic(err)
	}
	return creds
}

// lines keeps what was logged.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), word)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// tokens is the part of the state that knows tokens, and log time.
type tokens struct {
	mu  sync.Mutex // guards what follows
	all map[string]*raftlog.Token
	at  int64
}

func (s *tokens) token(id string) *raftlog.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

func (s *tokens) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *tokens) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// add makes a token and returns its text.
func (s *tokens) add(role string, expires int64) (id, text string) {
	id, secret, sum := GenerateToken()
	s.change(func() { s.all[id] = &raftlog.Token{Id: id, Role: role, Sum: sum[:], ExpiresNs: expires} })
	return id, TokenText(id, secret)
}

// service answers with who it believes to be asked by.
type service struct {
	pb.UnimplementedCoordinatorServer
	pb.UnimplementedClusterServer
	next chan struct{} // one for each message of Changes after the first
}

func (service) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	who, _ := FromContext(ctx)
	return &pb.StatusResponse{Node: who.String()}, nil
}

func (service) Propose(context.Context, *raftlog.Proposal) (*raftlog.Result, error) {
	return &raftlog.Result{}, nil
}

func (service) Remove(context.Context, *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	return &pb.RemoveResponse{}, nil
}

func (s service) Changes(_ *pb.ChangesRequest, stream grpc.ServerStreamingServer[pb.Change]) error {
	for {
		who, _ := FromContext(stream.Context())
		if err := stream.Send(&pb.Change{Run: who.String()}); err != nil {
			return err
		}
		select {
		case <-s.next:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// cluster is one server with certificates of ca.
type cluster struct {
	address string
	tokens  *tokens
	next    chan struct{}
}

// serve starts a server; creds is nil for one without TLS.
func serve(t *testing.T, creds *Credentials, isInsecure bool) *cluster {
	t.Helper()
	c := &cluster{tokens: &tokens{all: map[string]*raftlog.Token{}, at: 1}, next: make(chan struct{})}
	guard, err := NewGuard(Config{Insecure: isInsecure, Token: c.tokens.token, Now: c.tokens.now})
	require.NoError(t, err)
	options, err := ServerOptions(creds, guard)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c.address = l.Addr().String()
	g := grpc.NewServer(options...)
	pb.RegisterCoordinatorServer(g, service{next: c.next})
	pb.RegisterClusterServer(g, service{})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); require.NoError(t, <-served) })
	return c
}

func (c *cluster) dial(t *testing.T, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return dialAt(t, c.address, options...)
}

func dialAt(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func options(t *testing.T, c *Credentials, token string) []grpc.DialOption {
	t.Helper()
	o, err := DialOptions(c, token)
	require.NoError(t, err)
	return o
}

// whoami asks once.
func whoami(t *testing.T, conn *grpc.ClientConn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := pb.NewCoordinatorClient(conn).Status(ctx, &pb.StatusRequest{})
	return r.GetNode(), err
}
