package roles

import (
	"context"
	"errors"
	"fmt"
	"io"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// View reads committed records of the given kinds; run "" is every run.
func View(ctx context.Context, c pb.CoordinatorClient, run string, kinds ...pb.Kind) ([]*raftlog.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.View(ctx, &pb.ViewRequest{Run: run, Kinds: kinds})
	if err != nil {
		return nil, fmt.Errorf("roles: ask the coordinator: %w", err)
	}
	var out []*raftlog.Record
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("roles: ask the coordinator: %w", err)
		}
		out = append(out, m.Records...)
	}
}

// Runs returns what RunName looks at.
func Runs(ctx context.Context, c pb.CoordinatorClient) ([]*raftlog.Run, error) {
	records, err := View(ctx, c, "", pb.Kind_KIND_RUN)
	if err != nil {
		return nil, err
	}
	var out []*raftlog.Run
	for _, r := range records {
		if x := r.GetRun(); x != nil {
			out = append(out, x)
		}
	}
	return out, nil
}

// run returns the process's run.
func (p *Process) run(ctx context.Context) (*raftlog.Run, error) {
	records, err := View(ctx, p.Coordinator, p.Run, pb.Kind_KIND_RUN)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if x := r.GetRun(); x != nil {
			return x, nil
		}
	}
	return nil, fmt.Errorf("roles: there is no run %q", p.Run)
}

// version returns one policy version of the process's run.
func (p *Process) version(ctx context.Context, v int64) (*raftlog.PolicyVersion, error) {
	records, err := View(ctx, p.Coordinator, p.Run, pb.Kind_KIND_VERSION)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if x := r.GetVersion(); x != nil && x.Version == v {
			return x, nil
		}
	}
	return nil, fmt.Errorf("roles: run %s has no version %d", p.Run, v)
}
