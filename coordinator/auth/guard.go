package auth

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// The metadata that carries a token: "authorization: Bearer rlf_…".
const (
	authorization = "authorization"
	scheming      = "Bearer "
)

// Config says how callers are recognized.
type Config struct {
	Insecure bool                           // everyone may do everything; for sockets that cannot be reached from elsewhere
	Token    func(id string) *raftlog.Token // from the newest state of this node; nil when there is none
	Now      func() int64                   // log time in ns, for the end of tokens
}

// Validate returns an error for what cannot work.
func (c Config) Validate() error {
	if !c.Insecure && (c.Token == nil || c.Now == nil) {
		return errors.New("auth: config: tokens cannot be checked without the state and log time")
	}
	return nil
}

// Guard lets RPCs in, or refuses them. Its interceptors go before all others.
type Guard struct{ cfg Config }

// NewGuard returns a guard.
func NewGuard(cfg Config) (*Guard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Guard{cfg: cfg}, nil
}

// Unary is a grpc.UnaryServerInterceptor.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := g.admit(ctx, info.FullMethod, req)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// Stream is a grpc.StreamServerInterceptor. A stream lives long, so that a
// token is looked up again before each message that is sent.
func (g *Guard) Stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := g.admit(s.Context(), info.FullMethod, nil)
	if err != nil {
		return err
	}
	return handler(srv, &stream{ServerStream: s, ctx: ctx, again: func() error {
		if _, err := g.identify(ctx); err != nil {
			return unauthenticated(err)
		}
		return nil
	}})
}

type stream struct {
	grpc.ServerStream
	ctx   context.Context
	again func() error
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s *stream) SendMsg(m any) error {
	if err := s.again(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (g *Guard) admit(ctx context.Context, method string, req any) (context.Context, error) {
	if g.cfg.Insecure {
		return withIdentity(ctx, Identity{Role: Coordinator, Name: "insecure"}), nil
	}
	who, err := g.identify(ctx)
	if err != nil {
		return nil, unauthenticated(err)
	}
	if err := Allow(who, method, req); err != nil {
		return nil, statusOf(codes.PermissionDenied, pb.Reason_REASON_FORBIDDEN, err.Error()).Err()
	}
	return withIdentity(ctx, who), nil
}

func unauthenticated(err error) error {
	return statusOf(codes.Unauthenticated, pb.Reason_REASON_UNAUTHENTICATED, err.Error()).Err()
}

var errNobody = errors.New("auth: who calls is not known: give a certificate of this cluster with --tls DIR, or a token with --token or RLFLEET_TOKEN")

// identify returns the caller: by certificate, which TLS has verified, else by token.
func (g *Guard) identify(ctx context.Context) (Identity, error) {
	if g.cfg.Insecure {
		return Identity{}, nil
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return Identity{}, errNobody
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return Identity{}, errNobody // a token that came without TLS is worth nothing: anyone may have read it
	}
	if len(info.State.VerifiedChains) > 0 {
		return identityOf(info.State.VerifiedChains[0][0])
	}
	given := metadata.ValueFromIncomingContext(ctx, authorization)
	if len(given) == 0 {
		return Identity{}, errNobody
	}
	// Of several, which no client of ours sends, the first counts.
	if len(given[0]) < len(scheming) || !strings.EqualFold(given[0][:len(scheming)], scheming) {
		return Identity{}, errToken
	}
	return admit(given[0][len(scheming):], g.cfg.Token, g.cfg.Now())
}
