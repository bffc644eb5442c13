package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// skew is how far back a new certificate is valid: the clock of a machine that is this late still accepts it.
const skew = 3 * time.Hour

// The files of an authority.
const (
	caFile    = "ca.pem"
	caKeyFile = "ca-key.pem"
)

// CA issues the certificates of one cluster. Its key belongs where nodes and
// workers do not run; they need ca.pem only.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// NewCA makes an authority. The name is for people.
func NewCA(name string, validity time.Duration) (*CA, error) {
	if validity <= 0 {
		return nil, errors.New("auth: new authority: give it a time to live")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("auth: new authority: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-skew), NotAfter: now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true, // it issues no other authorities
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("auth: new authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("auth: new authority: %w", err)
	}
	return &CA{cert: cert, key: key, pem: block("CERTIFICATE", der)}, nil
}

// LoadCA reads the authority in a directory; the error is fs.ErrNotExist when there is none.
func LoadCA(dir string) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := os.ReadFile(keyPath)
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return nil, fmt.Errorf("auth: authority in %s: %w", dir, fs.ErrNotExist)
	case errors.Is(certErr, fs.ErrNotExist):
		return nil, fmt.Errorf("auth: authority in %s: %s is here and %s is not: put it back, or use another directory", dir, caKeyFile, caFile)
	case certErr == nil && errors.Is(keyErr, fs.ErrNotExist):
		return nil, fmt.Errorf("auth: authority in %s: %s is here and %s is not: issue certificates where its key is kept", dir, caFile, caKeyFile)
	case certErr != nil || keyErr != nil:
		return nil, fmt.Errorf("auth: authority in %s: %w", dir, errors.Join(certErr, keyErr))
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("auth: authority in %s: %s and %s are not a pair: restore both from one copy: %w", dir, caFile, caKeyFile, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("auth: authority in %s: %s is not an authority's certificate", dir, caFile)
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("auth: authority in %s: it expired on %s: make a new one in another directory and put both into each node's ca.pem while you replace certificates", dir, date(pair.Leaf.NotAfter))
	}
	return &CA{cert: pair.Leaf, key: key, pem: certPEM}, nil
}

// Save writes the authority into a directory that has none.
func (a *CA) Save(dir string) error {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("auth: save authority: %w", err)
	}
	// The key goes first: without it the certificate would be of no use, and without the certificate nothing was issued.
	if err := create(filepath.Join(dir, caKeyFile), block("PRIVATE KEY", der), 0o600); err != nil {
		return err
	}
	return create(filepath.Join(dir, caFile), a.pem, 0o644)
}

// PEM returns the authority's certificate: what everyone may have.
func (a *CA) PEM() []byte { return a.pem }

// Expires returns when the authority's own certificate ends, and with it all others.
func (a *CA) Expires() time.Time { return a.cert.NotAfter }

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	b[0] |= 1 // positive
	return new(big.Int).SetBytes(b[:])
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// create writes a file that must not exist, whole or not at all.
func create(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("auth: write %s: it exists and is not overwritten: move it away or choose another directory: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("auth: write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("auth: write %s: %w", path, errors.Join(err, os.Remove(path)))
	}
	return nil
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }
