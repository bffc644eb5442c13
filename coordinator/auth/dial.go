package auth

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// DialOptions are those of connections to the coordinator that prove who calls:
// by a certificate, by a token, or by both, of which the certificate counts.
func DialOptions(c *Credentials, token string) ([]grpc.DialOption, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(&transport{TransportCredentials: credentials.NewTLS(c.ClientTLS()), files: c})}
	if token == "" {
		return options, nil
	}
	if err := CheckToken(token); err != nil {
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(bearer(token))), nil
}

// Insecure is for connections that cannot leave the machine. No token is sent over them: whoever listens there asks for none.
func Insecure() grpc.DialOption {
	return grpc.WithTransportCredentials(&transport{TransportCredentials: insecure.NewCredentials()})
}

// ServerOptions are those of a gRPC server on the RPC port; without credentials it takes connections without TLS.
func ServerOptions(c *Credentials, g *Guard) ([]grpc.ServerOption, error) {
	options := []grpc.ServerOption{grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream)}
	if c == nil {
		return options, nil
	}
	config, err := c.ServerTLS()
	if err != nil {
		return nil, err
	}
	return append(options, grpc.Creds(credentials.NewTLS(config))), nil
}

// bearer is a token as a credential of each RPC.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{authorization: scheming + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: a token is never sent in the clear.
func (bearer) RequireTransportSecurity() bool { return true }

// transport explains why a connection was refused. files is nil without TLS.
type transport struct {
	credentials.TransportCredentials
	files *Credentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	explain := func(err error) error { return plain(err, authority) }
	if t.files != nil {
		explain = func(err error) error { return t.files.Explain(err, authority) }
	}
	how := t.TransportCredentials
	if t.files != nil { // as they are now
		how = credentials.NewTLS(t.files.ClientTLS())
	}
	conn, info, err := how.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, explain(err)
	}
	return &explained{Conn: conn, explain: explain}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials {
	return &transport{TransportCredentials: t.TransportCredentials.Clone(), files: t.files}
}

// plain explains the end of a connection without TLS.
func plain(err error, address string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return closedEarly{address, err}
	}
	return err
}
