package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	lookAgain = time.Second        // between two looks at the files
	nearEnd   = 7 * 24 * time.Hour // before the end of a certificate it is time to say so
	sayAgain  = 24 * time.Hour     // between two such warnings
)

// Files are the PEM files of one bearer. CA may hold several authorities while
// one replaces another. Without Cert and Key the bearer proves itself by a token.
type Files struct {
	CA, Cert, Key string
}

// FilesIn are those that rlctl cluster certs puts into a bearer's directory.
func FilesIn(dir string) Files {
	return Files{CA: filepath.Join(dir, caFile), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
}

// Validate returns one error for what cannot work.
func (f Files) Validate() error {
	switch {
	case f.CA == "":
		return errors.New("auth: files: the authority's certificate (ca.pem) is missing: nobody could be recognized")
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("auth: files: a certificate and its key belong together: give both or neither")
	}
	return nil
}

// Credentials are files that are read again when they change. They are safe for concurrent use.
type Credentials struct {
	files Files
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex // guards what follows
	bundle  *bundle
	seen    string    // what the files looked like when they were read last
	looked  time.Time // when
	failure string    // of the last reading, said already
	warned  time.Time // that the end is near
}

// bundle is what the files held at one moment.
type bundle struct {
	pool    *x509.CertPool
	cert    *tls.Certificate // nil without one
	who     Identity
	expires time.Time // of the certificate or its authority, whichever ends first; zero without one
}

// Load reads the files. The logger hears of files that cannot be read again and of the end of the certificate.
func (f Files) Load(log *slog.Logger) (*Credentials, error) {
	return f.load(log, time.Now)
}

func (f Files) load(log *slog.Logger, now func() time.Time) (*Credentials, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	c := &Credentials{files: f, log: log, now: now}
	c.seen, c.looked = f.look(), now()
	b, err := f.read()
	if err != nil {
		return nil, err
	}
	c.bundle = b
	c.current() // says at once when the end is near
	return c, nil
}

// look returns what changes when a file does.
func (f Files) look() string {
	text := ""
	for _, path := range []string{f.CA, f.Cert, f.Key} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			text += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
		} else {
			text += "none;"
		}
	}
	return text
}

func (f Files) read() (*bundle, error) {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("auth: read the authority's certificate: %w", err)
	}
	b := &bundle{pool: x509.NewCertPool()}
	authorities, err := certificates(ca)
	if err != nil {
		return nil, fmt.Errorf("auth: %s: %w: use the ca.pem that rlctl cluster certs made", f.CA, err)
	}
	for _, a := range authorities {
		b.pool.AddCert(a)
	}
	if f.Cert == "" {
		return b, nil
	}
	certPEM, certErr := os.ReadFile(f.Cert)
	keyPEM, keyErr := os.ReadFile(f.Key)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("auth: read the certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("auth: %s and %s are not a certificate and its key: copy both from one place: %w", f.Cert, f.Key, err)
	}
	if b.who, err = identityOf(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%w (%s)", err, f.Cert)
	}
	// Whether it is valid now is the other side's to say: a clock that is wrong here must not keep a node from starting.
	chains, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: b.pool, CurrentTime: pair.Leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil, fmt.Errorf("auth: %s was not issued by the authority in %s: copy both from one place: %w", f.Cert, f.CA, err)
	}
	b.cert = &pair
	for _, chain := range chains { // of several authorities the last to end counts
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(b.expires) {
			b.expires = end
		}
	}
	return b, nil
}

// certificates reads a PEM file of certificates.
func certificates(text []byte) (out []*x509.Certificate, err error) {
	for {
		var p *pem.Block
		if p, text = pem.Decode(text); p == nil {
			break
		}
		if p.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(bytes.TrimSpace(text)) > 0 || len(out) == 0 { // cut, or of another kind
		return nil, errors.New("it is not a PEM file of certificates")
	}
	return out, nil
}

// current returns what the files hold, or held when they could last be read.
func (c *Credentials) current() *bundle {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if past := now.Sub(c.looked); past >= lookAgain || past < 0 { // the clock may have been set back
		c.looked = now
		if seen := c.files.look(); seen != c.seen {
			c.seen = seen
			c.readLocked()
		}
	}
	b := c.bundle
	if left := b.expires.Sub(now); b.cert != nil && left < nearEnd && (c.warned.IsZero() || now.Sub(c.warned) >= sayAgain || now.Before(c.warned)) {
		c.warned = now
		c.log.Warn("the certificate ends soon, or has ended: put a new one in its place with rlctl cluster certs --renew, no restart is needed",
			"file", c.files.Cert, "identity", b.who.String(), "expires", b.expires, "left", left.Round(time.Minute))
	}
	return b
}

// readLocked takes what the files hold now. Two files are never replaced at one
// moment, so that what does not fit together is not yet an accident: the old
// ones serve on, and the next change is looked at again.
func (c *Credentials) readLocked() {
	b, err := c.files.read()
	if err != nil {
		if c.failure != err.Error() {
			c.failure = err.Error()
			c.log.Warn("the certificate files cannot be used; those read before serve on", "error", err)
		}
		return
	}
	c.bundle, c.failure, c.warned = b, "", time.Time{}
	c.log.Info("the certificate files were read again", "file", c.files.Cert, "identity", b.who.String(), "expires", b.expires)
}

// Identity returns who the certificate says this is; it is empty without one.
func (c *Credentials) Identity() Identity { return c.current().who }

// Expires returns when the certificate, or its authority, ends; it is zero without one.
func (c *Credentials) Expires() time.Time { return c.current().expires }
