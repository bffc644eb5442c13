package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// LeaseEpisodes asks for up to count episodes of a run, or of any when run is empty.
func (s *Session) LeaseEpisodes(ctx context.Context, run string, count int) (*raftlog.LeaseEpisodesResult, error) {
	res, sent, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: s.Node(), Run: run, Count: int32(count)}}})
	for _, g := range res.GetLeaseEpisodes().GetGrants() {
		s.remember(lease.Episode(g.Run, g.Group, g.Index), g.Fence, sent)
	}
	return res.GetLeaseEpisodes(), err
}

// SealEpisodes hands recorded episodes over; the answer is item by item.
func (s *Session) SealEpisodes(ctx context.Context, run string, items []*raftlog.SealItem) (*raftlog.ItemsResult, error) {
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: s.Node(), Run: run, Items: items}}})
	return res.GetItems(), err
}

// FailEpisodes gives attempts back; the answer is item by item.
func (s *Session) FailEpisodes(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error) {
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: s.Node(), Run: run, Items: items}}})
	return res.GetItems(), err
}

// LeaseJobs asks for up to count episodes to judge.
func (s *Session) LeaseJobs(ctx context.Context, count int) (*raftlog.LeaseJobsResult, error) {
	res, sent, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: s.Node(), Count: int32(count)}}})
	for _, g := range res.GetLeaseJobs().GetGrants() {
		s.remember(lease.Verify(g.Run, g.Group, g.Index), g.Fence, sent)
	}
	return res.GetLeaseJobs(), err
}

// SettleJobs commits verdicts; the answer is item by item.
func (s *Session) SettleJobs(ctx context.Context, run string, items []*raftlog.SettleItem) (*raftlog.ItemsResult, error) {
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: s.Node(), Run: run, Items: items}}})
	return res.GetItems(), err
}

// FailJobs reports that no verdict could be reached; the answer is item by item.
func (s *Session) FailJobs(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error) {
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_FailJobs{FailJobs: &raftlog.FailJobs{Node: s.Node(), Run: run, Items: items}}})
	return res.GetItems(), err
}

// JoinGang claims the training gang of a run.
func (s *Session) JoinGang(ctx context.Context, run string) (*raftlog.JoinGangResult, error) {
	res, sent, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: s.Node(), Run: run}}})
	if g := res.GetJoinGang(); g != nil {
		s.remember(lease.Gang(run), g.Fence, sent)
	}
	return res.GetJoinGang(), err
}

// TakeBatch asks for the next batch of a gang.
func (s *Session) TakeBatch(ctx context.Context, run string, epoch, fence uint64) (*raftlog.TakeBatchResult, error) {
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: s.Node(), Run: run, Epoch: epoch, Fence: fence}}})
	return res.GetTakeBatch(), err
}

// CommitStep consumes the batch and makes the next version. The node is filled in.
func (s *Session) CommitStep(ctx context.Context, r *raftlog.CommitStep) (*raftlog.CommitStepResult, error) {
	r = proto.CloneOf(r)
	r.Node = s.Node()
	res, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: r}})
	return res.GetCommitStep(), err
}

// LeasePublish claims a publication, of a run or of any when run is empty.
func (s *Session) LeasePublish(ctx context.Context, run string) (*raftlog.LeasePublishResult, error) {
	res, sent, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: s.Node(), Run: run}}})
	if g := res.GetLeasePublish(); g.GetReady() {
		s.remember(lease.Publish(g.Run), g.Fence, sent)
	}
	return res.GetLeasePublish(), err
}

// FinishPublish says how a publication ended. The node is filled in.
func (s *Session) FinishPublish(ctx context.Context, r *raftlog.FinishPublish) error {
	r = proto.CloneOf(r)
	r.Node = s.Node()
	_, _, err := s.ask(ctx, &raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: r}})
	return err
}
