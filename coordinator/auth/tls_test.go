package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// denied checks what a person sees: the code, the reason, and one sentence.
func denied(t *testing.T, err error, words ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
	var reason pb.Reason
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*pb.Refusal); ok {
			reason = r.Reason
		}
	}
	require.Equal(t, pb.Reason_REASON_UNAUTHENTICATED, reason)
	text := Sentence(err)
	for _, w := range words {
		require.Contains(t, text, w)
	}
	require.NotContains(t, text, "desc =", "the words of a library")
	require.NotContains(t, text, "\n")
}

func TestCertificatesOverARealConnection(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	real := &clock{}
	c := serve(t, real.load(issue(t, ca, "coordinator/n1", year, "127.0.0.1")), false)
	ahead := &clock{}
	ahead.advance(-2 * time.Hour)

	t.Run("good", func(t *testing.T) {
		for _, who := range []string{"coordinator/n2", "admin/alice", "viewer/v", "worker/w1", "operator/o"} {
			f := issue(t, ca, who, year, "other.example")
			got, err := whoami(t, c.dial(t, options(t, real.load(f), "")...))
			require.NoError(t, err)
			require.Equal(t, who, got)
		}
	})
	t.Run("two hours late is not too late for a new one", func(t *testing.T) {
		_, err := whoami(t, c.dial(t, options(t, ahead.load(issue(t, ca, "worker/w", year)), "")...))
		require.NoError(t, err)
	})
	t.Run("none", func(t *testing.T) {
		f := issue(t, ca, "worker/w", year)
		_, err := whoami(t, c.dial(t, options(t, real.load(Files{CA: f.CA}), "")...))
		denied(t, err, "--tls", "--token")
	})
	t.Run("of another authority", func(t *testing.T) {
		f := issue(t, foreign, "admin/mallory", year)
		write(t, f.CA, append(ca.PEM(), foreign.PEM()...)) // it trusts the server
		_, err := whoami(t, c.dial(t, options(t, real.load(f), "")...))
		denied(t, err, "admin/mallory", f.Cert, "another authority", c.address)
	})
	t.Run("expired", func(t *testing.T) {
		f := issue(t, ca, "worker/old", time.Nanosecond)
		_, err := whoami(t, c.dial(t, options(t, real.load(f), "")...))
		denied(t, err, "worker/old", f.Cert, "valid from", "renew")
	})
	t.Run("expired by the server's clock alone", func(t *testing.T) {
		slow := &clock{}
		f := issue(t, ca, "worker/old", time.Nanosecond)
		slow.advance(-time.Hour)
		_, err := whoami(t, c.dial(t, options(t, slow.load(f), "")...))
		denied(t, err, "worker/old", "set the clocks right")
	})
	t.Run("the server is of another authority", func(t *testing.T) {
		f := issue(t, foreign, "worker/w", year)
		_, err := whoami(t, c.dial(t, options(t, real.load(f), "")...))
		denied(t, err, c.address, f.CA, "use the ca.pem of its cluster")
	})
	t.Run("no TLS", func(t *testing.T) {
		_, err := whoami(t, c.dial(t, Insecure()))
		require.Equal(t, codes.Unavailable, status.Code(err), "it may also be going down")
		require.Contains(t, Sentence(err), "auth: connect: what answers at "+c.address+" closes connections without TLS")
		require.Contains(t, Sentence(err), "--tls")
		require.NotContains(t, Sentence(err), "desc =")
	})
}

func TestServersThatAreNotTrusted(t *testing.T) {
	ca := newCA(t)
	real := &clock{}
	mine := real.load(issue(t, ca, "worker/w", year))
	for name, c := range map[string]struct {
		server Files
		words  []string
	}{
		"not a coordinator": {issue(t, ca, "worker/evil", year, "127.0.0.1"), []string{"worker/evil", "a coordinator was expected"}},
		"another host":      {issue(t, ca, "coordinator/n1", year, "n1.example", "10.0.0.9"), []string{"n1.example and 10.0.0.9", "not for 127.0.0.1", "--nodes n1=n1.example,10.0.0.9,127.0.0.1"}},
		"expired":           {issue(t, ca, "coordinator/n1", time.Nanosecond, "127.0.0.1"), []string{"expired on", "renew"}},
		"not for servers":   {issue(t, ca, "admin/a", year), []string{"that of admin/a", "a coordinator was expected"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, real.load(c.server), false)
			_, err := whoami(t, s.dial(t, options(t, mine, "")...))
			denied(t, err, append(c.words, "127.0.0.1")...)
		})
	}
	t.Run("not yet valid", func(t *testing.T) {
		late := &clock{}
		f := issue(t, ca, "worker/w", year)
		late.advance(-5 * time.Hour)
		s := serve(t, real.load(issue(t, ca, "coordinator/n1", year, "127.0.0.1")), false)
		_, err := whoami(t, s.dial(t, options(t, late.load(f), "")...))
		denied(t, err, "valid from", "set the clocks right")
	})
	t.Run("no TLS there", func(t *testing.T) {
		s := serve(t, nil, true)
		_, err := whoami(t, s.dial(t, options(t, mine, "")...))
		denied(t, err, "does not speak TLS", "--insecure")
	})
	t.Run("nobody there", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		_, err = whoami(t, dialAt(t, l.Addr().String(), options(t, mine, "")...))
		require.Equal(t, codes.Unavailable, status.Code(err), "a node that is down is no refusal")
	})
}

// TLS below 1.3 is refused on both ports.
func TestOldTLS(t *testing.T) {
	ca := newCA(t)
	real := &clock{}
	creds := real.load(issue(t, ca, "coordinator/n1", year, "127.0.0.1"))
	c := serve(t, creds, false)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM())
	_, err := tls.Dial("tcp", c.address, &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12}) //nolint:gosec // the point
	require.ErrorContains(t, err, "protocol version")
}

// exchange makes one connection between two nodes, one byte each way, and returns what each side saw.
func exchange(t *testing.T, server, client *Credentials) (serverErr, clientErr error) {
	t.Helper()
	inbound, err := server.PeerTLS()
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", inbound)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			var b [1]byte
			if _, err = io.ReadFull(c, b[:]); err == nil {
				_, err = c.Write(b[:])
			}
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	outbound := client.ClientTLS()
	if client.Identity().Role == Coordinator {
		outbound, err = client.PeerTLS()
		require.NoError(t, err)
	}
	outbound.ServerName = "127.0.0.1"
	c, err := tls.Dial("tcp", l.Addr().String(), outbound)
	if err == nil {
		b, said := []byte{7}, client.Explained(c, "127.0.0.1")
		if _, err = said.Write(b); err == nil {
			_, err = io.ReadFull(said, b)
		}
		_ = c.Close() // the server has closed it
	}
	require.NoError(t, l.Close())
	return <-done, client.Explain(err, "127.0.0.1")
}

func TestPeers(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	real := &clock{}
	n1 := real.load(issue(t, ca, "coordinator/n1", year, "127.0.0.1"))
	n2 := real.load(issue(t, ca, "coordinator/n2", year, "127.0.0.1"))
	serverErr, clientErr := exchange(t, n1, n2)
	require.NoError(t, serverErr)
	require.NoError(t, clientErr)

	alien := issue(t, foreign, "coordinator/n3", year, "127.0.0.1")
	write(t, alien.CA, append(ca.PEM(), foreign.PEM()...))
	none := issue(t, ca, "worker/w", year)
	for name, c := range map[string]struct {
		client *Credentials
		words  string
	}{
		"a worker":             {real.load(none), "its role may not connect there"},
		"an admin":             {real.load(issue(t, ca, "admin/a", year, "127.0.0.1")), "its role may not connect there"},
		"no certificate":       {real.load(Files{CA: none.CA}), "with a certificate only"},
		"of another authority": {real.load(alien), "of another authority"},
		"expired":              {real.load(issue(t, ca, "coordinator/n4", time.Nanosecond, "127.0.0.1")), "renew"},
	} {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := exchange(t, n1, c.client)
			require.Error(t, serverErr)
			var refused *Refused
			require.ErrorAs(t, clientErr, &refused)
			require.ErrorContains(t, clientErr, c.words)
		})
	}
	_, clientErr = exchange(t, n1, real.load(alien))
	require.Error(t, clientErr)
	_, err := real.load(none).PeerTLS()
	require.ErrorContains(t, err, "a node needs one with the role coordinator")
	_, err = real.load(Files{CA: none.CA}).PeerTLS()
	require.ErrorContains(t, err, "a server needs a certificate")
	_, err = real.load(Files{CA: none.CA}).ServerTLS()
	require.ErrorContains(t, err, "a server needs a certificate")
}

// Errors that have nothing to do with certificates stay what they are.
func TestExplainKeepsOtherErrors(t *testing.T) {
	real := &clock{}
	c := real.load(issue(t, newCA(t), "worker/w", year))
	for _, err := range []error{nil, io.EOF, fmt.Errorf("x: %w", net.ErrClosed), &net.OpError{Op: "remote error", Err: errors.New("odd")}, &net.OpError{Op: "read", Err: io.EOF}} {
		require.Equal(t, err, c.Explain(err, "a"))
	}
	known := refused("x")
	require.Equal(t, error(known), c.Explain(known, "a"))
}
