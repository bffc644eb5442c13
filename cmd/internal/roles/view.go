package roles

import (
	"context"
	"fmt"

	"github.com/rlfleet/rlfleet/coordinator/client"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Runs returns all runs.
func Runs(ctx context.Context, c *client.Client) ([]*raftlog.Run, error) {
	v, err := c.View(ctx, "", pb.Kind_KIND_RUN)
	if err != nil {
		return nil, err
	}
	var out []*raftlog.Run
	for _, r := range v.Records {
		if x := r.GetRun(); x != nil {
			out = append(out, x)
		}
	}
	return out, nil
}

// Run returns one run.
func Run(ctx context.Context, c *client.Client, id string) (*raftlog.Run, error) {
	v, err := c.View(ctx, id, pb.Kind_KIND_RUN)
	if err != nil {
		return nil, err
	}
	for _, r := range v.Records {
		if x := r.GetRun(); x != nil {
			return x, nil
		}
	}
	return nil, fmt.Errorf("roles: there is no run %q", id)
}

// Version returns one policy version of a run.
func Version(ctx context.Context, c *client.Client, run string, version int64) (*raftlog.PolicyVersion, error) {
	v, err := c.View(ctx, run, pb.Kind_KIND_VERSION)
	if err != nil {
		return nil, err
	}
	for _, r := range v.Records {
		if x := r.GetVersion(); x != nil && x.Version == version {
			return x, nil
		}
	}
	return nil, fmt.Errorf("roles: run %s has no version %d", run, version)
}
