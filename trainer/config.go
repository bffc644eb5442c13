package trainer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trainer/objective"
)

// Coordinator is what a trainer asks of the coordinator; coordinator/client has it.
type Coordinator interface {
	Node() *raftlog.NodeRef
	JoinGang(ctx context.Context, run string) (*raftlog.JoinGangResult, error)
	TakeBatch(ctx context.Context, run string, epoch, fence uint64) (*raftlog.TakeBatchResult, error)
	CommitStep(ctx context.Context, c *raftlog.CommitStep) (*raftlog.CommitStepResult, error)
	// Hold lists a lease in the heartbeats until Drop; lost is called once if it is lost.
	Hold(t lease.Token, lost func())
	Drop(resource string)
	Waits(resource, what string)
	// Changed returns a channel that is closed at the next change of what there is to do.
	Changed() <-chan struct{}
}

var _ Coordinator = (*client.Session)(nil)

// Config is what a Worker needs to know of its run.
type Config struct {
	Run         string
	LagMax      int64 // S: oldest version of a token at step n is n − S
	Advantage   objective.Estimator
	ContextOnly []bool        // by env: branches after the first are context and not trained on (agent.branches: context)
	Writer      string        // name and build of the program, for the ledger
	Recheck     time.Duration // longest wait for a change before looking again: a notice that was lost must not stop the run
}

// DefaultConfig returns the usual settings for a run.
func DefaultConfig(run string) Config {
	return Config{Run: run, Advantage: objective.Estimator{Kind: objective.KindGRPO, Std: true}, Writer: "rlfleet", Recheck: 5 * time.Second}
}

// Validate refuses settings that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Run == "":
		return errors.New("trainer: a trainer works for a named run")
	case c.LagMax < 0:
		return errors.New("trainer: lag.max must not be negative")
	case c.Recheck <= 0:
		return errors.New("trainer: the recheck period must be positive")
	}
	return c.Advantage.Validate()
}

func (c Config) contextOnly(env int32) bool {
	return int(env) < len(c.ContextOnly) && c.ContextOnly[env]
}

// Deps are the parts that a Worker works with.
type Deps struct {
	Coordinator Coordinator
	Store       store.ObjectStore
	Backend     Backend
	Log         *slog.Logger
	OnCommit    func(Commit) // called after each acknowledged commit; may be nil
}

// Commit is an acknowledged step.
type Commit struct {
	Step     int64
	Version  policy.Version // that it made
	Manifest policy.Digest
	Ledger   policy.Digest
	Groups   []uint64 // consumed, by id
	Metrics  map[string]float64
}
