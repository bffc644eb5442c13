package client

import (
	"context"
	"errors"
	"io"
	"time"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// View is a set of committed records of one moment.
type View struct {
	Index   uint64 // log index of the moment
	Stale   bool   // not checked with the leader
	Records []*raftlog.Record
	Alarms  []*raftlog.Alarm
}

// View reads records of a run, or of every run when it is empty; no kinds are
// all kinds. It sees every operation that was acknowledged before the call.
func (c *Client) View(ctx context.Context, run string, kinds ...pb.Kind) (*View, error) {
	return c.view(ctx, &pb.ViewRequest{Run: run, Kinds: kinds})
}

// StaleView is View from the answering node's own state, whoever leads.
func (c *Client) StaleView(ctx context.Context, run string, kinds ...pb.Kind) (*View, error) {
	return c.view(ctx, &pb.ViewRequest{Run: run, Kinds: kinds, Stale: true})
}

func (c *Client) view(ctx context.Context, req *pb.ViewRequest) (*View, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var v *View
	err := c.retry(ctx, "View", func(ctx context.Context, s pb.CoordinatorClient) error {
		v = &View{} // what an earlier try began is of another moment
		stream, err := s.View(ctx, req)
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
			v.Index, v.Stale = m.Index, m.Stale
			v.Records, v.Alarms = append(v.Records, m.Records...), append(v.Alarms, m.Alarms...)
		}
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Why says in one paragraph what a run waits for.
func (c *Client) Why(ctx context.Context, run string) (string, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var text string
	err := c.retry(ctx, "Why", func(ctx context.Context, s pb.CoordinatorClient) error {
		r, err := s.Why(ctx, &pb.WhyRequest{Run: run})
		text = r.GetText()
		return err
	})
	return text, err
}

// Status asks the node that is asked now about itself.
func (c *Client) Status(ctx context.Context) (*pb.StatusResponse, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	var out *pb.StatusResponse
	err := c.retry(ctx, "Status", func(ctx context.Context, s pb.CoordinatorClient) (err error) {
		out, err = s.Status(ctx, &pb.StatusRequest{})
		return err
	})
	return out, err
}

// Change is what there is to do in a run.
type Change struct {
	Revision uint64
	Run      string
	State    string // of the run; empty when there is no such run
	Episodes int    // to lease
	Jobs     int    // verify jobs to lease
	Batch    bool   // a batch can be taken
	Publish  bool   // a version waits to be published
}

// Watch returns a channel of changes of a run, or of all together when it is
// empty: the newest at once, then each that comes. A receiver that is slow gets
// the newest only. The channel closes when ctx ends or the client is closed;
// lost connections are made again, and the newest change is then repeated.
func (c *Client) Watch(ctx context.Context, run string) <-chan Change {
	out := make(chan Change, 1)
	c.work.Go(func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.stopping, cancel)()
		pause := firstPause
		for ctx.Err() == nil {
			service, number := c.peers.current()
			received, err := follow(ctx, service, run, out)
			if received {
				pause = firstPause
			}
			if v, detail, _ := judge(err); v == elsewhere || v == denied {
				c.peers.leave(number, detail.GetLeaderAddress())
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, lastPause)
		}
	})
	return out
}

// follow passes one stream on until it ends.
func follow(ctx context.Context, s pb.CoordinatorClient, run string, out chan Change) (received bool, err error) {
	stream, err := s.Changes(ctx, &pb.ChangesRequest{Run: run})
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return received, err
		}
		received = true
		replace(out, Change{
			Revision: m.Revision, Run: m.Run, State: m.State,
			Episodes: int(m.Work.GetEpisodes()), Jobs: int(m.Work.GetJobs()), Batch: m.Work.GetBatch(), Publish: m.Work.GetPublish(),
		})
	}
}

// replace puts a change into a channel of one place, of which it is the only sender.
func replace(out chan Change, c Change) {
	select {
	case <-out:
	default:
	}
	out <- c
}
