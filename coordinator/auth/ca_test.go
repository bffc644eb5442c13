package auth

import (
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAuthorityOnDisk(t *testing.T) {
	dir := t.TempDir()
	_, err := LoadCA(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	ca := newCA(t)
	require.NoError(t, ca.Save(dir))
	info, err := os.Stat(filepath.Join(dir, "ca-key.pem"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	loaded, err := LoadCA(dir)
	require.NoError(t, err)
	require.Equal(t, ca.PEM(), loaded.PEM())
	require.Equal(t, ca.Expires(), loaded.Expires())

	before, err := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	require.NoError(t, err)
	err = newCA(t).Save(dir)
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, "not overwritten")
	after, err := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	// What the loaded one issues is accepted where the first is trusted.
	cert, _, err := loaded.Issue(Identity{Coordinator, "n1"}, []string{"n1.example", "10.0.0.1", "::1"}, year)
	require.NoError(t, err)
	all, err := certificates(cert)
	require.NoError(t, err)
	leaf := all[0]
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM())
	for _, host := range []string{"n1.example", "10.0.0.1", "::1"} {
		_, err = leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host})
		require.NoError(t, err)
	}
	require.Equal(t, "rlfleet://coordinator/n1", leaf.URIs[0].String())
	require.False(t, leaf.IsCA)
	require.True(t, leaf.NotBefore.Before(time.Now().Add(-2*time.Hour)))
}

func TestAuthorityThatCannotBeUsed(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	expired, err := NewCA("old", time.Nanosecond)
	require.NoError(t, err)
	saved := func(a *CA) string {
		dir := t.TempDir()
		require.NoError(t, a.Save(dir))
		return dir
	}
	noKey, noCert, mixed := saved(ca), saved(ca), saved(ca)
	require.NoError(t, os.Remove(filepath.Join(noKey, "ca-key.pem")))
	require.NoError(t, os.Remove(filepath.Join(noCert, "ca.pem")))
	write(t, filepath.Join(mixed, "ca.pem"), other.PEM())
	leafDir := t.TempDir()
	cert, key, err := ca.Issue(Identity{Worker, "w"}, nil, year)
	require.NoError(t, err)
	write(t, filepath.Join(leafDir, "ca.pem"), cert)
	write(t, filepath.Join(leafDir, "ca-key.pem"), key)
	for name, c := range map[string]struct{ dir, words string }{
		"no key":         {noKey, "issue certificates where its key is kept"},
		"no certificate": {noCert, "ca.pem"},
		"of two":         {mixed, "are not a pair"},
		"expired":        {saved(expired), "it expired on"},
		"not one":        {leafDir, "is not an authority's certificate"},
	} {
		_, err := LoadCA(c.dir)
		require.ErrorContains(t, err, c.words, name)
		require.NotErrorIs(t, err, fs.ErrNotExist, "%s: a new authority would be made in its place", name)
	}
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t)
	for name, c := range map[string]struct {
		who      Identity
		validity time.Duration
		words    string
	}{
		"a node without hosts": {Identity{Coordinator, "n1"}, year, "names or addresses"},
		"no time":              {Identity{Worker, "w"}, 0, "time to live"},
		"no such role":         {Identity{"boss", "w"}, year, "role is not known"},
		"a path":               {Identity{Worker, "../w"}, year, "letters, digits"},
	} {
		_, _, err := ca.Issue(c.who, nil, c.validity)
		require.ErrorContains(t, err, c.words, name)
	}
	_, err := NewCA("x", 0)
	require.ErrorContains(t, err, "time to live")
	cert, _, err := ca.Issue(Identity{Worker, "w"}, nil, 100*year)
	require.NoError(t, err)
	all, err := certificates(cert)
	require.NoError(t, err)
	require.Equal(t, ca.Expires(), all[0].NotAfter, "no certificate outlives its authority")
}

func TestIssueTo(t *testing.T) {
	ca := newCA(t)
	dir := filepath.Join(t.TempDir(), "n1")
	issued := func() []byte {
		require.NoError(t, ca.IssueTo(dir, Identity{Coordinator, "n1"}, []string{"h"}, year))
		_, err := FilesIn(dir).read()
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
		require.NoError(t, err)
		return text
	}
	first := issued()
	info, err := os.Stat(filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	both := append(ca.PEM(), newCA(t).PEM()...)
	write(t, filepath.Join(dir, "ca.pem"), both)
	require.NotEqual(t, first, issued())
	kept, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	require.Equal(t, both, kept)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "nothing half written stays")
	require.Error(t, ca.IssueTo(filepath.Join(dir, "key.pem"), Identity{Worker, "w"}, nil, year))
}
