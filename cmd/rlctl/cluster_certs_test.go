package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/auth"
)

func TestCertsCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	out, err := execute(t, certsCommand(), "--dir", dir, "--nodes", "n1=127.0.0.1,n1.example:7000", "--nodes", "n2=10.0.0.2,n3=[::1]:7000 n4=n4", "--clients", "admin/alice,worker/w1", "--days", "30")
	require.NoError(t, err)
	require.Contains(t, out, "authority: new")
	require.Contains(t, out, "coordinator/n1 at 127.0.0.1, n1.example: until "+time.Now().Add(30*day).Format(time.DateOnly))
	require.Contains(t, out, "worker/w1: until")
	load := func(name string) *auth.Credentials {
		c, err := auth.FilesIn(filepath.Join(dir, name)).Load(slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return c
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		require.Equal(t, "coordinator/"+name, load(name).Identity().String())
	}
	require.Equal(t, "admin/alice", load("alice").Identity().String())
	require.WithinDuration(t, time.Now().Add(30*day), load("w1").Expires(), time.Minute)
	info, err := os.Stat(filepath.Join(dir, "ca-key.pem"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	// A second call adds to the authority, and replaces nothing that it was not told to.
	key, first := readFile(t, filepath.Join(dir, "ca-key.pem")), readFile(t, filepath.Join(dir, "n1", "cert.pem"))
	out, err = execute(t, certsCommand(), "--dir", dir, "--clients", "operator/o")
	require.NoError(t, err)
	require.NotContains(t, out, "authority: new")
	require.Equal(t, key, readFile(t, filepath.Join(dir, "ca-key.pem")))
	require.Equal(t, auth.Operator, load("o").Identity().Role)
	_, err = execute(t, certsCommand(), "--dir", dir, "--nodes", "n9=h,n1=127.0.0.1")
	require.ErrorContains(t, err, "add --renew")
	require.Equal(t, 2, exitCode(err))
	require.NoDirExists(t, filepath.Join(dir, "n9"), "nothing is done by halves")
	_, err = execute(t, certsCommand(), "--dir", dir, "--nodes", "n1=127.0.0.1", "--renew")
	require.NoError(t, err)
	require.NotEqual(t, first, readFile(t, filepath.Join(dir, "n1", "cert.pem")))
}

func TestCertsCommandRefuses(t *testing.T) {
	has := t.TempDir()
	_, err := execute(t, certsCommand(), "--dir", has)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "new")
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"give --dir", []string{"--nodes", "n1=h"}},
		{"nothing to issue", []string{"--dir", has}},
		{"a node is NAME=HOST", []string{"--dir", dir, "--nodes", "n1"}},
		{`"" is neither`, []string{"--dir", dir, "--nodes", "n1="}},
		{`"a_b/c" is neither`, []string{"--dir", dir, "--nodes", "n1=a_b/c"}},
		{"use ROLE/NAME", []string{"--dir", dir, "--nodes", "../n1=h"}},
		{"two are called n1", []string{"--dir", dir, "--nodes", "n1=h,n1=g"}},
		{"two are called x", []string{"--dir", dir, "--nodes", "x=h", "--clients", "worker/x"}},
		{"the role is not known", []string{"--dir", dir, "--clients", "boss/x"}},
		{"use ROLE/NAME with a name", []string{"--dir", dir, "--clients", "admin/a/b"}},
		{"go to --nodes", []string{"--dir", dir, "--clients", "coordinator/n1"}},
		{"--days", []string{"--dir", dir, "--clients", "admin/a", "--days", "0"}},
	} {
		_, err := execute(t, certsCommand(), c.args...)
		require.ErrorContains(t, err, c.words, "%v", c.args)
		require.Equal(t, 2, exitCode(err), "%v", c.args)
		require.NoDirExists(t, dir)
	}
}
