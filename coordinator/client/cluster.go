package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// service is everything that a node answers.
type service struct {
	pb.CoordinatorClient
	pb.ClusterClient
}

func newService(conn grpc.ClientConnInterface) service {
	return service{pb.NewCoordinatorClient(conn), pb.NewClusterClient(conn)}
}

// manage is retry for the cluster's own management. It may take long, so that a
// try ends with ctx only.
func (c *Client) manage(ctx context.Context, op string, call func(context.Context, pb.ClusterClient) error) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	return c.retry(ctx, op, func(_ context.Context, s pb.CoordinatorClient) error {
		return call(ctx, s.(service)) //nolint:forcetypeassert // every service is one
	})
}

// Init makes the node that is asked, which must be new, the first of a cluster and returns the cluster's id.
func (c *Client) Init(ctx context.Context) (cluster string, err error) {
	err = c.manage(ctx, "Init", func(ctx context.Context, s pb.ClusterClient) error {
		r, err := s.Init(ctx, &pb.InitRequest{})
		cluster = r.GetCluster()
		return err
	})
	return cluster, err
}

// Join adds the node whose RPCs are at address, and returns its id when it votes.
func (c *Client) Join(ctx context.Context, address string) (node string, err error) {
	err = c.manage(ctx, "Join", func(ctx context.Context, s pb.ClusterClient) error {
		r, err := s.Join(ctx, &pb.JoinRequest{Address: address})
		node = r.GetNode()
		return err
	})
	return node, err
}

// Remove takes a node out of the cluster.
func (c *Client) Remove(ctx context.Context, node string) error {
	return c.manage(ctx, "Remove", func(ctx context.Context, s pb.ClusterClient) error {
		_, err := s.Remove(ctx, &pb.RemoveRequest{Node: node})
		return err
	})
}

// Transfer hands leadership to a node, or to the most advanced one for "".
func (c *Client) Transfer(ctx context.Context, node string) error {
	return c.manage(ctx, "Transfer", func(ctx context.Context, s pb.ClusterClient) error {
		_, err := s.Transfer(ctx, &pb.TransferRequest{Node: node})
		return err
	})
}

// Members lists the nodes as the leader sees them.
func (c *Client) Members(ctx context.Context) (out *pb.MembersResponse, err error) {
	err = c.manage(ctx, "Members", func(ctx context.Context, s pb.ClusterClient) (err error) {
		out, err = s.Members(ctx, &pb.MembersRequest{})
		return err
	})
	return out, err
}

// SaveSnapshot writes the whole state to w. After a failed try w begins again: reset is called first.
func (c *Client) SaveSnapshot(ctx context.Context, w io.Writer, reset func() error) error {
	return c.manage(ctx, "SaveSnapshot", func(ctx context.Context, s pb.ClusterClient) error {
		if err := reset(); err != nil {
			return err
		}
		stream, err := s.SaveSnapshot(ctx, &pb.SaveSnapshotRequest{})
		if err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if _, err := w.Write(m.Data); err != nil {
				return fmt.Errorf("client: SaveSnapshot: %w", err)
			}
		}
	})
}

// chunk is how many bytes of a snapshot go into one message.
const chunk = 256 << 10

// RestoreSnapshot replaces the whole state by the snapshot in r; see the
// coordinator's Restore. foreign allows that of another cluster.
func (c *Client) RestoreSnapshot(ctx context.Context, r io.ReadSeeker, foreign bool) (out *pb.RestoreSnapshotResponse, err error) {
	if _, err := c.Members(ctx); err != nil { // the leader is asked next, and asked once
		return nil, err
	}
	err = c.manage(ctx, "RestoreSnapshot", func(ctx context.Context, s pb.ClusterClient) error {
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		stream, err := s.RestoreSnapshot(ctx)
		if err != nil {
			return err
		}
		buf := make([]byte, chunk)
		for {
			n, err := io.ReadFull(r, buf)
			if n > 0 || err == nil {
				if serr := stream.Send(&pb.Chunk{Data: buf[:n], Foreign: foreign}); serr != nil {
					break // the answer says why
				}
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("client: RestoreSnapshot: %w", err)
			}
		}
		out, err = stream.CloseAndRecv()
		return once(err)
	})
	return out, err
}

// once keeps a restore that may have happened from being repeated: what was
// acknowledged since would be gone.
func once(err error) error {
	if err == nil {
		return nil
	}
	if _, detail, _ := judge(err); detail != nil && detail.Reason != pb.Reason_REASON_UNKNOWN_OUTCOME && detail.Reason != pb.Reason_REASON_UNSPECIFIED {
		return err // it did not happen
	}
	s := status.New(codes.Aborted, "coordinator: restore: it is not known whether it happened: rlctl cluster status shows the epoch, which is higher if it did: "+status.Convert(err).Message())
	if with, derr := s.WithDetails(&pb.Refusal{Reason: pb.Reason_REASON_INVALID}); derr == nil { // it always encodes
		s = with
	}
	return s.Err()
}
