package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// execute runs one command and returns what it wrote to standard output.
func execute(t *testing.T, c *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&bytes.Buffer{})
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// keeper keeps tokens as the coordinator's state does.
type keeper struct {
	pb.UnimplementedCoordinatorServer
	mu  sync.Mutex // guards what follows
	all map[string]*raftlog.Token
	now int64
}

func (k *keeper) token(id string) *raftlog.Token {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[id]
}

func (k *keeper) time() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *keeper) Propose(_ context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := p.Op.GetSetToken().GetToken(); t != nil {
		t.CreatedNs = k.now
		k.all[t.Id] = t
		return &raftlog.Result{}, nil
	}
	id := p.Op.GetRemoveToken().GetId()
	if k.all[id] == nil {
		return &raftlog.Result{Code: raftlog.Code_CODE_NOT_FOUND, Message: "no token " + id}, nil
	}
	delete(k.all, id)
	return &raftlog.Result{}, nil
}

func (k *keeper) View(_ *pb.ViewRequest, stream grpc.ServerStreamingServer[pb.ViewResponse]) error {
	k.mu.Lock()
	r := &pb.ViewResponse{}
	for _, t := range k.all {
		r.Records = append(r.Records, &raftlog.Record{Record: &raftlog.Record_Token{Token: t}})
	}
	k.mu.Unlock()
	return stream.Send(r)
}

func (k *keeper) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{NowNs: k.time()}, nil
}

// newKeeper starts one with certificates that the command itself made.
func newKeeper(t *testing.T) (k *keeper, address, dir string) {
	t.Helper()
	for _, name := range []string{envCoordinator, envTLS, envToken} {
		t.Setenv(name, "")
	}
	dir = t.TempDir()
	_, err := execute(t, certsCommand(), "--dir", dir, "--nodes", "n1=127.0.0.1", "--clients", "admin/alice,viewer/bob")
	require.NoError(t, err)
	creds, err := auth.FilesIn(filepath.Join(dir, "n1")).Load(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	k = &keeper{all: map[string]*raftlog.Token{}, now: 1000}
	guard, err := auth.NewGuard(auth.Config{Token: k.token, Now: k.time})
	require.NoError(t, err)
	options, err := auth.ServerOptions(creds, guard)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := grpc.NewServer(options...)
	pb.RegisterCoordinatorServer(g, k)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); require.NoError(t, <-served) })
	return k, l.Addr().String(), dir
}

// A token's life, by the commands, over TLS: made by an admin's certificate, used, listed, revoked.
func TestTokenCommands(t *testing.T) {
	k, address, dir := newKeeper(t)
	alice := []string{"--coordinator", address, "--tls", filepath.Join(dir, "alice")}
	with := func(args ...string) []string { return append(args, alice...) }

	out, err := execute(t, tokenCommand(), with("create", "--role", "admin", "--note", "night shift", "--ttl", "2h")...)
	require.NoError(t, err)
	token := strings.TrimSuffix(out, "\n")
	require.NoError(t, auth.CheckToken(token))
	require.Len(t, k.all, 1)
	for id, kept := range k.all {
		require.Equal(t, 1000+int64(2*time.Hour), kept.ExpiresNs, "by the coordinator's time")
		require.NotContains(t, kept.String(), strings.TrimPrefix(token, "rlf_"+id+"_"))
	}

	// The token works, from the environment, with the authority alone.
	t.Setenv(envToken, token)
	t.Setenv(envCoordinator, address)
	list := []string{"list", "-o", "json", "--ca", filepath.Join(dir, "ca.pem")}
	out, err = execute(t, tokenCommand(), list...)
	require.NoError(t, err)
	var rows []tokenRow
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 1)
	require.Equal(t, "night shift", rows[0].Note)
	expires, err := time.Parse(time.RFC3339, rows[0].Expires)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), expires, time.Minute)
	out, err = execute(t, tokenCommand(), "list", "--tls", dir) // ca.pem is there, and no certificate
	require.NoError(t, err)
	require.Contains(t, out, "night shift")
	require.NotContains(t, out, token[len(token)-20:])

	out, err = execute(t, tokenCommand(), with("revoke", token)...) // the whole of it is taken for its id
	require.NoError(t, err)
	require.Contains(t, out, ": revoked")
	require.NotContains(t, out, token[len(token)-20:])
	_, err = execute(t, tokenCommand(), list...)
	require.ErrorIs(t, err, client.ErrDenied)
	require.ErrorContains(t, err, "rlctl cluster token create")
	_, err = execute(t, tokenCommand(), with("revoke", "nobody", "noone")...)
	require.ErrorIs(t, err, client.ErrNotFound)
	require.ErrorContains(t, err, "noone")

	_, err = execute(t, tokenCommand(), "create", "--role", "viewer", "--coordinator", address, "--tls", filepath.Join(dir, "bob"))
	require.ErrorIs(t, err, client.ErrForbidden)
	require.ErrorContains(t, err, "viewer/bob")
	out, err = execute(t, tokenCommand(), with("create", "--role", "viewer", "--ttl", "0")...)
	require.NoError(t, err)
	id, _, _ := strings.Cut(strings.TrimPrefix(out, "rlf_"), "_")
	require.Zero(t, k.token(id).ExpiresNs)
}

func TestTokenCreateRefuses(t *testing.T) {
	for _, c := range []struct {
		words string
		args  []string
	}{
		{`--role "" is not known`, nil},
		{`--role "coordinator" is not known`, []string{"--role", "coordinator"}},
		{"is in the past", []string{"--role", "viewer", "--ttl", "-1h"}},
		{"--note is one line", []string{"--role", "viewer", "--note", "a\tb"}},
		{"--note is one line", []string{"--role", "viewer", "--note", strings.Repeat("x", 201)}},
	} {
		_, err := execute(t, tokenCommand(), append([]string{"create"}, c.args...)...)
		require.ErrorContains(t, err, c.words)
		require.Equal(t, 2, exitCode(err))
	}
}

func TestReach(t *testing.T) {
	k, address, dir := newKeeper(t)
	require.NotNil(t, k)
	ca := filepath.Join(dir, "ca.pem")
	_, someone := someToken(t)
	for name, c := range map[string]struct {
		flags reachFlags
		words string
	}{
		"no address":              {reachFlags{}, "which coordinator"},
		"only commas":             {reachFlags{coordinator: " , "}, "which coordinator"},
		"no port":                 {reachFlags{coordinator: "10.0.0.1"}, "an address is HOST:PORT"},
		"nothing to show":         {reachFlags{coordinator: address}, "who are you"},
		"the authority alone":     {reachFlags{coordinator: address, ca: ca}, "not who you are"},
		"a token alone":           {reachFlags{coordinator: address, token: someone}, "how it is recognized"},
		"not a token":             {reachFlags{coordinator: address, ca: ca, token: "hunter2"}, "does not look like one"},
		"no such directory":       {reachFlags{coordinator: address, tls: dir + "x"}, "no such file"},
		"insecure, far away":      {reachFlags{coordinator: "127.0.0.1:1,10.0.0.1:1", insecure: true}, "10.0.0.1:1 is not a loopback address"},
		"insecure and a token":    {reachFlags{coordinator: address, insecure: true, token: someone}, "goes without"},
		"insecure and TLS":        {reachFlags{coordinator: address, insecure: true, tls: dir}, "goes without"},
		"a directory without any": {reachFlags{coordinator: address, tls: t.TempDir(), token: someone}, "no such file"},
	} {
		_, _, err := c.flags.dial()
		require.ErrorContains(t, err, c.words, name)
		require.NotContains(t, err.Error(), someone[len(someone)-20:], name)
	}
	t.Setenv(envToken, someone) // in the environment it does no harm, and is not sent
	addresses, options, err := (&reachFlags{coordinator: " 127.0.0.1:1, unix:/x ,", insecure: true}).dial()
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1", "unix:/x"}, addresses)
	require.Empty(t, options)

	// What a person sees who forgets the certificate, or takes the wrong one.
	other := t.TempDir()
	_, err = execute(t, certsCommand(), "--dir", other, "--clients", "admin/eve")
	require.NoError(t, err)
	t.Setenv(envToken, "")
	_, err = execute(t, tokenCommand(), "list", "--coordinator", address, "--tls", filepath.Join(other, "eve"))
	require.ErrorIs(t, err, client.ErrDenied)
	require.ErrorContains(t, err, "an authority that is not in "+filepath.Join(other, "eve", "ca.pem"))
	own, err := os.ReadFile(ca)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(other, "eve", "ca.pem"), append(own, readFile(t, filepath.Join(other, "ca.pem"))...), 0o600))
	_, err = execute(t, tokenCommand(), "list", "--coordinator", address, "--tls", filepath.Join(other, "eve"))
	require.ErrorIs(t, err, client.ErrDenied)
	require.ErrorContains(t, err, "another authority")
}

func someToken(t *testing.T) (id, text string) {
	t.Helper()
	id, secret, _ := auth.GenerateToken()
	return id, auth.TokenText(id, secret)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}
