package auth

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// secure starts a server with certificates, and credentials that know its authority only.
func secure(t *testing.T) (*cluster, *Credentials, *CA) {
	t.Helper()
	ca := newCA(t)
	real := &clock{}
	c := serve(t, real.load(issue(t, ca, "coordinator/n1", year, "127.0.0.1")), false)
	return c, real.load(Files{CA: issue(t, ca, "worker/unused", year).CA}), ca
}

func TestTokens(t *testing.T) {
	c, creds, _ := secure(t)
	id, text := c.tokens.add("operator", 100)
	who, err := whoami(t, c.dial(t, options(t, creds, text)...))
	require.NoError(t, err)
	require.Equal(t, "operator/"+id, who)

	_, wrong, _ := GenerateToken()
	_, unknownErr := whoami(t, c.dial(t, options(t, creds, TokenText("aaaaaaaaaaaaa", wrong))...))
	_, wrongErr := whoami(t, c.dial(t, options(t, creds, TokenText(id, wrong))...))
	denied(t, unknownErr, "rlctl cluster token create")
	require.Equal(t, Sentence(unknownErr), Sentence(wrongErr), "which ids exist is not told")
	_, err = whoami(t, c.dial(t, options(t, creds, text+"x")...))
	require.Equal(t, Sentence(unknownErr), Sentence(err))

	c.tokens.change(func() { c.tokens.at = 99 })
	_, err = whoami(t, c.dial(t, options(t, creds, text)...))
	require.NoError(t, err)
	c.tokens.change(func() { c.tokens.at = 100 })
	_, err = whoami(t, c.dial(t, options(t, creds, text)...))
	denied(t, err, "expired", id, "new one")
	_, err = whoami(t, c.dial(t, options(t, creds, TokenText(id, wrong))...))
	require.Equal(t, Sentence(unknownErr), Sentence(err), "who has no secret does not hear that it expired")

	_, node := c.tokens.add("coordinator", 0)
	_, err = whoami(t, c.dial(t, options(t, creds, node)...))
	denied(t, err, `role "coordinator" is not one for tokens`)
	broken, text := c.tokens.add("admin", 0)
	c.tokens.change(func() { c.tokens.all[broken].Sum = nil })
	_, err = whoami(t, c.dial(t, options(t, creds, text)...))
	denied(t, err, "not known")

	for _, bad := range []string{"secret", "rlf_", "rlf_x", "rlf__y", "rlf_x_", "rlf_x_" + strings.Repeat("y", 300), "Bearer rlf_x_y"} {
		_, err := DialOptions(creds, bad)
		require.ErrorContains(t, err, "does not look like one", bad)
	}
}

func TestGeneratedTokensAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id, secret, _ := GenerateToken()
		require.False(t, seen[id] || seen[secret])
		seen[id], seen[secret] = true, true
		require.GreaterOrEqual(t, len(secret), 52, "256 bits")
		require.NoError(t, CheckToken(TokenText(id, secret)))
	}
}

// A certificate counts before a token.
func TestCertificateBeforeToken(t *testing.T) {
	c, _, ca := secure(t)
	_, text := c.tokens.add("admin", 0)
	real := &clock{}
	who, err := whoami(t, c.dial(t, options(t, real.load(issue(t, ca, "viewer/v", year)), text)...))
	require.NoError(t, err)
	require.Equal(t, "viewer/v", who)
}

// Metadata that no client of ours sends.
func TestOddAuthorization(t *testing.T) {
	c, creds, _ := secure(t)
	id, text := c.tokens.add("viewer", 0)
	conn := c.dial(t, options(t, creds, "")...)
	ask := func(values ...string) (string, error) {
		ctx := t.Context()
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
		}
		r, err := pb.NewCoordinatorClient(conn).Status(ctx, &pb.StatusRequest{})
		return r.GetNode(), err
	}
	who, err := ask("bearer " + text)
	require.NoError(t, err)
	require.Equal(t, "viewer/"+id, who)
	for _, v := range []string{"", "Bearer", "Bearer ", text, "Basic " + text, "Bearer " + text + " ", "Bearer rlf_" + id + "_", "Bearer " + strings.Repeat("x", 4000)} {
		_, err := ask(v)
		denied(t, err, "token")
	}
	_, err = ask("Bearer x", "Bearer "+text)
	denied(t, err)
}

// A token is not accepted without TLS, and is not sent without it.
func TestTokensNeedTLS(t *testing.T) {
	c := serve(t, nil, false) // a server that asks who calls, without TLS
	_, text := c.tokens.add("admin", 0)
	_, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(text)))
	require.Error(t, err)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+text)
	_, err = pb.NewCoordinatorClient(c.dial(t, Insecure())).Status(ctx, &pb.StatusRequest{})
	denied(t, err, "who calls is not known")
}

func TestInsecureLetsEveryoneIn(t *testing.T) {
	c := serve(t, nil, true)
	conn := c.dial(t, Insecure())
	who, err := whoami(t, conn)
	require.NoError(t, err)
	require.Equal(t, "coordinator/insecure", who)
	_, err = pb.NewCoordinatorClient(conn).Propose(t.Context(), &raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_SetMember{}}})
	require.NoError(t, err)
	stream, err := pb.NewCoordinatorClient(conn).Changes(t.Context(), &pb.ChangesRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
}

func TestRolesOverARealConnection(t *testing.T) {
	c, creds, _ := secure(t)
	forbidden := func(err error, words ...string) {
		t.Helper()
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
		details := status.Convert(err).Details()
		require.Len(t, details, 1)
		require.Equal(t, pb.Reason_REASON_FORBIDDEN, details[0].(*pb.Refusal).Reason)
		for _, w := range words {
			require.ErrorContains(t, err, w)
		}
	}
	id, text := c.tokens.add("viewer", 0)
	viewer := c.dial(t, options(t, creds, text)...)
	create := &raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{}}}}
	_, err := pb.NewCoordinatorClient(viewer).Propose(t.Context(), create)
	forbidden(err, "Propose CreateRun", "viewer/"+id, "operator")
	_, err = pb.NewClusterClient(viewer).Remove(t.Context(), &pb.RemoveRequest{})
	forbidden(err, "Remove", "admin")
	_, text = c.tokens.add("operator", 0)
	operator := c.dial(t, options(t, creds, text)...)
	_, err = pb.NewCoordinatorClient(operator).Propose(t.Context(), create)
	require.NoError(t, err)
	restore, err := pb.NewClusterClient(operator).RestoreSnapshot(t.Context())
	require.NoError(t, err)
	_, err = restore.CloseAndRecv()
	forbidden(err, "RestoreSnapshot")
}

// A token that is removed ends the streams that it opened.
func TestRemovedTokenEndsStreams(t *testing.T) {
	c, creds, _ := secure(t)
	id, text := c.tokens.add("viewer", 0)
	conn := c.dial(t, options(t, creds, text)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := pb.NewCoordinatorClient(conn).Changes(ctx, &pb.ChangesRequest{})
	require.NoError(t, err)
	for range 3 {
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "viewer/"+id, m.Run)
		c.next <- struct{}{}
	}
	_, err = stream.Recv() // on its way already
	require.NoError(t, err)
	c.tokens.change(func() { delete(c.tokens.all, id) })
	c.next <- struct{}{}
	_, err = stream.Recv()
	denied(t, err, "removed")
	_, err = whoami(t, conn)
	denied(t, err, "removed")
}

func TestGuardConfig(t *testing.T) {
	_, err := NewGuard(Config{})
	require.ErrorContains(t, err, "tokens cannot be checked")
	_, err = NewGuard(Config{Insecure: true})
	require.NoError(t, err)
	_, ok := FromContext(t.Context())
	require.False(t, ok)
}
