package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// BenchmarkGuard measures what recognizing a caller adds to an RPC.
func BenchmarkGuard(b *testing.B) {
	ca, err := NewCA("bench", year)
	if err != nil {
		b.Fatal(err)
	}
	cert, _, err := ca.Issue(Identity{Worker, "w1"}, nil, year)
	if err != nil {
		b.Fatal(err)
	}
	chain, err := certificates(cert)
	if err != nil {
		b.Fatal(err)
	}
	id, secret, sum := GenerateToken()
	known := &raftlog.Token{Id: id, Sum: sum[:], Role: "worker"}
	g, err := NewGuard(Config{Token: func(string) *raftlog.Token { return known }, Now: func() int64 { return 1 }})
	if err != nil {
		b.Fatal(err)
	}
	info := &grpc.UnaryServerInfo{FullMethod: pb.Coordinator_Propose_FullMethodName}
	proposal := &raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{}}}}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	state := func(s tls.ConnectionState) context.Context {
		return peer.NewContext(b.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: s}})
	}
	for name, ctx := range map[string]context.Context{
		"certificate": state(tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{chain}}),
		"token":       metadata.NewIncomingContext(state(tls.ConnectionState{}), metadata.Pairs(authorization, scheming+TokenText(id, secret))),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := g.Unary(ctx, proposal, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
