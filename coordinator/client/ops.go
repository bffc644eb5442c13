package client

import (
	"context"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// CreateRun creates a run, or finds the one that was created from the same spec.
func (c *Client) CreateRun(ctx context.Context, r *raftlog.CreateRun) (*raftlog.CreateRunResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: r}})
	return res.GetCreateRun(), err
}

// ControlRun changes a run's state: pause, resume, cancel, fail or remove.
func (c *Client) ControlRun(ctx context.Context, id, action, reason string) error {
	_, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: id, Action: action, Reason: reason}}})
	return err
}

// Register lets a node in; Session does it for those that also hold leases.
func (c *Client) Register(ctx context.Context, r *raftlog.Register) (*raftlog.RegisterResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_Register{Register: r}})
	return res.GetRegister(), err
}

// Deregister ends a node in order: its leases end at once.
func (c *Client) Deregister(ctx context.Context, node *raftlog.NodeRef) error {
	_, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: node}}})
	return err
}

// Heartbeat renews a node and the leases it lists.
func (c *Client) Heartbeat(ctx context.Context, h *raftlog.Heartbeat) (*raftlog.HeartbeatResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}})
	return res.GetHeartbeat(), err
}

// LeaseEpisodes asks for episodes to play; fewer, or none, may be granted.
func (c *Client) LeaseEpisodes(ctx context.Context, r *raftlog.LeaseEpisodes) (*raftlog.LeaseEpisodesResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: r}})
	return res.GetLeaseEpisodes(), err
}

// LeaseJobs asks for episodes to judge.
func (c *Client) LeaseJobs(ctx context.Context, r *raftlog.LeaseJobs) (*raftlog.LeaseJobsResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: r}})
	return res.GetLeaseJobs(), err
}

// LeasePublish claims the publication of a version that waits for it.
func (c *Client) LeasePublish(ctx context.Context, r *raftlog.LeasePublish) (*raftlog.LeasePublishResult, error) {
	res, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: r}})
	return res.GetLeasePublish(), err
}

// FinishPublish says how a publication ended.
func (c *Client) FinishPublish(ctx context.Context, r *raftlog.FinishPublish) error {
	_, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: r}})
	return err
}
