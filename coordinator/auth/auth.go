// Package auth says who calls the coordinator and what each may do.
//
// Programs come with certificates of the cluster's own authority, people with
// tokens over TLS. A certificate names its bearer as rlfleet://ROLE/NAME; a
// token's role is in the replicated state, with the sum of its secret. One
// table gives every RPC and every operation the roles that may ask for it.
//
// Certificates are checked when a connection is made and not again: one that
// runs out, or a clock that jumps, cuts no connection that works. Tokens are
// looked up at every call, so that a removed one is refused at once. A
// certificate cannot be taken back but by a new authority; give it a short life.
package auth

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
)

// Role is what a caller is to the coordinator.
type Role string

// The roles. Coordinator is that of nodes and comes with certificates only.
const (
	Coordinator Role = "coordinator"
	Admin       Role = "admin"
	Operator    Role = "operator"
	Viewer      Role = "viewer"
	Worker      Role = "worker"
)

// Roles returns all of them.
func Roles() []Role { return []Role{Coordinator, Admin, Operator, Viewer, Worker} }

func known(r Role) bool {
	switch r {
	case Coordinator, Admin, Operator, Viewer, Worker:
		return true
	}
	return false
}

// Identity is who calls.
type Identity struct {
	Role Role
	Name string // of the certificate, or the token's id
}

// String returns the form that commands and certificates use: role/name.
func (i Identity) String() string { return string(i.Role) + "/" + i.Name }

// isName accepts what is safe in a file's name and in a URI. It runs at every RPC.
func isName(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// ParseIdentity reads ROLE/NAME.
func ParseIdentity(s string) (Identity, error) {
	role, name, _ := strings.Cut(s, "/")
	i := Identity{Role: Role(role), Name: name}
	if !known(i.Role) {
		return Identity{}, fmt.Errorf("auth: identity %q: the role is not known: use ROLE/NAME with a role of %s", s, list(Roles()))
	}
	if !isName(name) {
		return Identity{}, fmt.Errorf("auth: identity %q: use ROLE/NAME with a name of up to 63 letters, digits, '-', '_' and '.', the first a letter or a digit", s)
	}
	return i, nil
}

// scheme is that of the URI in a certificate.
const scheme = "rlfleet"

// identityOf reads a certificate; it does not check who issued it.
func identityOf(c *x509.Certificate) (Identity, error) {
	for _, u := range c.URIs {
		if u.Scheme == scheme {
			return ParseIdentity(u.Host + u.Path)
		}
	}
	return Identity{}, fmt.Errorf("auth: certificate of %q: it names no rlfleet identity: make one with rlctl cluster certs", c.Subject.CommonName)
}

type contextKey struct{}

// FromContext returns the caller of an RPC that a Guard let in.
func FromContext(ctx context.Context) (Identity, bool) {
	i, ok := ctx.Value(contextKey{}).(Identity)
	return i, ok
}

func withIdentity(ctx context.Context, i Identity) context.Context {
	return context.WithValue(ctx, contextKey{}, i)
}

// Loopback reports whether an address, "unix:PATH" or "host:port", cannot be reached from another machine.
func Loopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func list(roles []Role) string {
	text := make([]string, len(roles))
	for i, r := range roles {
		text[i] = string(r)
	}
	return join(text, "or")
}

func join(text []string, and string) string {
	if len(text) < 2 {
		return strings.Join(text, "")
	}
	return strings.Join(text[:len(text)-1], ", ") + " " + and + " " + text[len(text)-1]
}
