package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Issue makes a certificate and its key, both PEM. With hosts, names or IP
// addresses, it is good for a server at those too; a coordinator needs some.
func (a *CA) Issue(who Identity, hosts []string, validity time.Duration) (cert, key []byte, err error) {
	fail := func(err error) ([]byte, []byte, error) {
		return nil, nil, fmt.Errorf("auth: certificate of %s: %w", who, err)
	}
	if _, err := ParseIdentity(who.String()); err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: who.Name, OrganizationalUnit: []string{string(who.Role)}},
		NotBefore: now.Add(-skew), NotAfter: now.Add(validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: scheme, Host: string(who.Role), Path: "/" + who.Name}},
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	if template.NotBefore.Before(a.cert.NotBefore) {
		template.NotBefore = a.cert.NotBefore
	}
	switch {
	case validity <= 0:
		return fail(errors.New("give it a time to live"))
	case who.Role == Coordinator && len(hosts) == 0:
		return fail(errors.New("a node needs the names or addresses that others reach it by"))
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return fail(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fail(err)
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", keyDER), nil
}

// IssueTo is Issue into a bearer's directory: ca.pem, cert.pem and key.pem, the
// files of FilesIn. Files that are there are replaced, each at once, except
// ca.pem, which may have been given a second authority.
func (a *CA) IssueTo(dir string, who Identity, hosts []string, validity time.Duration) error {
	cert, key, err := a.Issue(who, hosts, validity)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("auth: certificate of %s: %w", who, err)
	}
	files := FilesIn(dir)
	if err := create(files.CA, a.pem, 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := replace(files.Key, key, 0o600); err != nil {
		return err
	}
	return replace(files.Cert, cert, 0o644)
}

// replace writes a file whole or not at all.
func replace(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("auth: write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("auth: write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
