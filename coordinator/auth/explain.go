package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Refused is a connection that one side did not want. It survives gRPC: an RPC
// that fails for it has the code Unauthenticated and a Refusal with the sentence.
type Refused struct{ sentence string }

func refused(format string, args ...any) *Refused {
	return &Refused{"auth: connect: " + fmt.Sprintf(format, args...)}
}

// Error implements error.
func (r *Refused) Error() string { return r.sentence }

// GRPCStatus gives the error its meaning in gRPC.
func (r *Refused) GRPCStatus() *status.Status {
	return statusOf(codes.Unauthenticated, pb.Reason_REASON_UNAUTHENTICATED, r.sentence)
}

// closedEarly is a connection without TLS that was closed before the other side
// said anything. A server with TLS does that, and so does one that goes down:
// it is worth another try.
type closedEarly struct {
	address string
	err     error
}

func (c closedEarly) Error() string {
	return fmt.Sprintf("auth: connect: what answers at %s closes connections without TLS at once: if it is a coordinator that has certificates, give --tls or --ca, without --insecure: %v", c.address, c.err)
}

func (c closedEarly) Unwrap() error { return c.err }

// GRPCStatus keeps the sentence through gRPC.
func (c closedEarly) GRPCStatus() *status.Status {
	return statusOf(codes.Unavailable, pb.Reason_REASON_UNSPECIFIED, c.Error())
}

func statusOf(code codes.Code, reason pb.Reason, sentence string) *status.Status {
	s := status.New(code, sentence)
	if with, err := s.WithDetails(&pb.Refusal{Reason: reason, Sentence: sentence}); err == nil { // a Refusal always encodes
		s = with
	}
	return s
}

// Sentence is what a person should read of a failed RPC: the sentence of its
// Refusal, or the status' own message.
func Sentence(err error) string {
	s := status.Convert(err)
	for _, d := range s.Details() {
		if r, ok := d.(*pb.Refusal); ok && r.Sentence != "" {
			return r.Sentence
		}
	}
	return s.Message()
}

// Alerts of TLS (RFC 8446, section 6.2).
const (
	alertCertificateExpired  = 45
	alertUnknownCA           = 48
	alertCertificateRequired = 116
)

// ofCertificates are the alerts that speak of a certificate; 42 to 44 and 46 say little more than that.
var ofCertificates = []int{42, 43, 44, alertCertificateExpired, 46, alertUnknownCA, alertCertificateRequired}

// notANode is the error of a handshake with a server that has another role.
type notANode struct{ cert *x509.Certificate }

func (n notANode) Error() string { return "auth: " + bearerOf(n.cert) + " is not a coordinator" }

// Explain turns what TLS said about a connection to an address into a
// *Refused. Other errors are returned as they are.
func (c *Credentials) Explain(err error, address string) error {
	var known *Refused
	var record tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	var other notANode
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &record):
		return refused("what answers at %s does not speak TLS: check the address; a coordinator that runs with insecure: true is reached with --insecure", address)
	case errors.As(err, &other):
		return refused("the certificate of %s is that of %s: a coordinator was expected, check the address", address, bearerOf(other.cert))
	case errors.As(err, &unverified):
		return c.theirs(unverified, address)
	}
	return c.ours(err, address)
}

// theirs explains a server's certificate that was not accepted here.
func (c *Credentials) theirs(err *tls.CertificateVerificationError, address string) error {
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch now := c.now(); {
	case errors.As(err, &x509.UnknownAuthorityError{}):
		return refused("the certificate of %s is of an authority that is not in %s: use the ca.pem of its cluster, or check the address", address, c.files.CA)
	case errors.As(err, &host) && len(host.Certificate.DNSNames)+len(host.Certificate.IPAddresses) == 0:
		return refused("the certificate of %s is that of %s: a coordinator was expected, check the address", address, bearerOf(host.Certificate))
	case errors.As(err, &host):
		name := host.Certificate.Subject.CommonName
		all := hosts(host.Certificate)
		return refused("the certificate of node %s is for %s and not for %s: use one of these, or make one that has it with rlctl cluster certs --renew --nodes %s=%s,%s", name, join(all, "and"), host.Host, name, strings.Join(all, ","), host.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(invalid.Cert.NotBefore):
		return refused("the certificate of %s is valid from %s only, and here it is %s: set the clocks right", address, date(invalid.Cert.NotBefore), date(now))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refused("the certificate of %s expired on %s, and here it is %s: renew it with rlctl cluster certs --renew, or set the clocks right", address, date(invalid.Cert.NotAfter), date(now))
	}
	return refused("the certificate of %s is not good for a coordinator: make one with rlctl cluster certs --nodes: %v", address, err.Err)
}

// ours explains what a server says of the certificate that was given to it, or was not.
func (c *Credentials) ours(err error, address string) error {
	alert, b := alertOf(err), c.current()
	if !slices.Contains(ofCertificates, alert) {
		return err
	}
	if b.cert == nil || alert == alertCertificateRequired {
		return refused("%s takes connections with a certificate only: give one with --tls DIR", address)
	}
	mine := fmt.Sprintf("the certificate of %s (%s)", b.who, c.files.Cert)
	switch now, leaf := c.now(), b.cert.Leaf; alert {
	case alertCertificateExpired:
		advice := "renew it with rlctl cluster certs --renew"
		if now.Before(leaf.NotAfter) { // not by this clock, or not yet
			advice = "set the clocks right"
		}
		return refused("%s does not take %s at this time: it is valid from %s to %s, and here it is %s: %s", address, mine, date(leaf.NotBefore), date(leaf.NotAfter), date(now), advice)
	case alertUnknownCA:
		return refused("%s does not take %s: it is of another authority: use one of that cluster, or check the address", address, mine)
	}
	return refused("%s does not take %s: its role may not connect there: make another with rlctl cluster certs", address, mine)
}

// alertOf returns the number of an alert that the other side sent, or -1. The
// standard library has no exported type for it, but the number is its value.
func alertOf(err error) int {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" || op.Err == nil {
		return -1
	}
	if v := reflect.ValueOf(op.Err); v.Kind() == reflect.Uint8 {
		return int(v.Uint())
	}
	return -1
}

// Explained wraps a client's connection to an address: until the other side has
// sent something, errors are those of Explain. In TLS 1.3 a server's answer to
// the client's certificate comes after the handshake, with the first read.
func (c *Credentials) Explained(conn net.Conn, address string) net.Conn {
	return &explained{Conn: conn, explain: func(err error) error { return c.Explain(err, address) }}
}

type explained struct {
	net.Conn
	explain func(error) error
	heard   atomic.Bool // the other side has sent data
}

// lastWord is how long the reason for a broken connection is waited for; it is there already.
const lastWord = time.Second

// Read implements net.Conn.
func (e *explained) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if n > 0 && !e.heard.Load() {
		e.heard.Store(true)
	}
	if err != nil && !e.heard.Load() {
		err = e.explain(err)
	}
	return n, err
}

// Write implements net.Conn. A server that refuses closes the connection, so
// that the write may fail before the reason was read.
func (e *explained) Write(p []byte) (int, error) {
	n, err := e.Conn.Write(p)
	if err == nil || e.heard.Load() {
		return n, err
	}
	if e.Conn.SetReadDeadline(time.Now().Add(lastWord)) == nil {
		var refusal *Refused
		if _, why := e.Conn.Read(make([]byte, 1)); errors.As(e.explain(why), &refusal) {
			return n, refusal
		}
	}
	return n, e.explain(err)
}

func bearerOf(c *x509.Certificate) string {
	if who, err := identityOf(c); err == nil {
		return who.String()
	}
	return fmt.Sprintf("%q", c.Subject.CommonName)
}

func hosts(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
