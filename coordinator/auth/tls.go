package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// ServerTLS is for the RPC port: a certificate is checked when one is given;
// who gives none needs a token. Later changes of the files count.
func (c *Credentials) ServerTLS() (*tls.Config, error) {
	if err := c.serves(); err != nil {
		return nil, err
	}
	return c.server(tls.VerifyClientCertIfGiven, nil), nil
}

// ClientTLS is for one connection to a node of the coordinator, with the files
// as they are now. The caller sets the server name; the node's certificate must
// be for that name and for a coordinator.
func (c *Credentials) ClientTLS() *tls.Config {
	b := c.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: b.pool, Time: c.now,
		VerifyConnection: func(s tls.ConnectionState) error {
			if who, err := identityOf(s.PeerCertificates[0]); err != nil || who.Role != Coordinator { // a server always gives one
				return notANode{s.PeerCertificates[0]}
			}
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			// It is given even where the server knows another authority: "foreign certificate" is a better answer than "none".
			if b := c.current(); b.cert != nil {
				return b.cert, nil
			}
			return &tls.Certificate{}, nil
		},
	}
}

// PeerTLS is for both sides of connections between two nodes: each must be a
// coordinator. Who dials takes a new one for each connection, as of ClientTLS;
// who listens may keep one.
func (c *Credentials) PeerTLS() (*tls.Config, error) {
	if err := c.serves(); err != nil {
		return nil, err
	}
	if who := c.Identity(); who.Role != Coordinator {
		return nil, fmt.Errorf("auth: %s is the certificate of %s: a node needs one with the role %s", c.files.Cert, who, Coordinator)
	}
	both := c.ClientTLS()
	both.GetConfigForClient = c.server(tls.RequireAndVerifyClientCert, func(s tls.ConnectionState) error {
		who, err := identityOf(s.PeerCertificates[0]) // required, so there is one
		if err == nil && who.Role != Coordinator {
			err = fmt.Errorf("auth: %s wants to be a node: only the role %s may", who, Coordinator)
		}
		return err
	}).GetConfigForClient
	return both, nil
}

func (c *Credentials) serves() error {
	if c.current().cert == nil {
		return errors.New("auth: a server needs a certificate and its key: make them with rlctl cluster certs")
	}
	return nil
}

// server reads the files at every handshake. There are no session tickets: they
// would let a client in that the files no longer do.
func (c *Credentials) server(ask tls.ClientAuthType, verify func(tls.ConnectionState) error) *tls.Config {
	config := func() *tls.Config {
		b := c.current()
		return &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*b.cert}, Time: c.now,
			ClientCAs: b.pool, ClientAuth: ask, VerifyConnection: verify, SessionTicketsDisabled: true,
		}
	}
	first := config()
	first.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(), nil }
	return first
}
