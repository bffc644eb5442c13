package coordinator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// chunk is how many bytes of a snapshot go into one message.
const chunk = 256 << 10

type clusterService struct {
	pb.UnimplementedClusterServer
	node *Node
}

// Init implements the RPC.
func (s clusterService) Init(ctx context.Context, _ *pb.InitRequest) (*pb.InitResponse, error) {
	id, err := s.node.Init(ctx)
	if err != nil {
		return nil, s.node.refuse(err)
	}
	return &pb.InitResponse{Cluster: id}, nil
}

// Adopt implements the RPC.
func (s clusterService) Adopt(_ context.Context, r *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	if err := s.node.Adopt(r.Cluster, r.Node); err != nil {
		return nil, s.node.refuse(err)
	}
	return &pb.AdoptResponse{}, nil
}

// Join implements the RPC.
func (s clusterService) Join(ctx context.Context, r *pb.JoinRequest) (*pb.JoinResponse, error) {
	node, err := s.node.Join(ctx, r.Address)
	if err != nil {
		return nil, s.node.refuse(err)
	}
	return &pb.JoinResponse{Node: node}, nil
}

// Remove implements the RPC.
func (s clusterService) Remove(ctx context.Context, r *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	if err := s.node.Remove(ctx, r.Node); err != nil {
		return nil, s.node.refuse(err)
	}
	return &pb.RemoveResponse{}, nil
}

// Transfer implements the RPC.
func (s clusterService) Transfer(ctx context.Context, r *pb.TransferRequest) (*pb.TransferResponse, error) {
	if err := s.node.Transfer(ctx, r.Node); err != nil {
		return nil, s.node.refuse(err)
	}
	_, leader := s.node.raft.LeaderWithID()
	return &pb.TransferResponse{Leader: string(leader)}, nil
}

// Members implements the RPC.
func (s clusterService) Members(ctx context.Context, _ *pb.MembersRequest) (*pb.MembersResponse, error) {
	r, err := s.node.Members(ctx)
	if err != nil {
		return nil, s.node.refuse(err)
	}
	return r, nil
}

// SaveSnapshot implements the RPC.
func (s clusterService) SaveSnapshot(_ *pb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[pb.Chunk]) error {
	w := bufio.NewWriterSize(chunkWriter{stream}, chunk)
	err := s.node.Save(stream.Context(), w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return s.node.refuse(err)
	}
	return nil
}

type chunkWriter struct {
	stream grpc.ServerStreamingServer[pb.Chunk]
}

func (w chunkWriter) Write(b []byte) (int, error) {
	if err := w.stream.Send(&pb.Chunk{Data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}

// RestoreSnapshot implements the RPC.
func (s clusterService) RestoreSnapshot(stream grpc.ClientStreamingServer[pb.Chunk, pb.RestoreSnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return s.node.refuse(fmt.Errorf("coordinator: restore: the snapshot did not arrive: %w: %w", err, ErrInvalid))
	}
	st, err := s.node.Restore(stream.Context(), &chunkReader{stream: stream, rest: first.Data}, first.Foreign)
	if err != nil {
		return s.node.refuse(err)
	}
	return stream.SendAndClose(&pb.RestoreSnapshotResponse{Epoch: st.Clock().Epoch, Runs: int32(len(st.Runs()))})
}

type chunkReader struct {
	stream grpc.ClientStreamingServer[pb.Chunk, pb.RestoreSnapshotResponse]
	rest   []byte
}

func (r *chunkReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		c, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, fmt.Errorf("coordinator: restore: the snapshot did not arrive whole: %w: %w", err, ErrInvalid)
		}
		r.rest = c.Data
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
