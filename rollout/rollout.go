// Package rollout is the worker that plays episodes: lease, act, record, seal.
//
// A worker holds nothing that cannot be lost: until an episode is sealed its
// lease brings it back, and from then on the coordinator has it.
package rollout

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/rollout/agent"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/trajectory"
)

// Coordinator is what a worker asks of the coordinator; coordinator/client has it.
type Coordinator interface {
	Node() *raftlog.NodeRef
	LeaseEpisodes(ctx context.Context, run string, count int) (*raftlog.LeaseEpisodesResult, error)
	SealEpisodes(ctx context.Context, run string, items []*raftlog.SealItem) (*raftlog.ItemsResult, error)
	FailEpisodes(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error)
	// Hold lists a lease in the heartbeats until Drop; lost is called once if it is lost.
	Hold(t lease.Token, lost func())
	Drop(resource string)
	Waits(resource, what string)
	// Changed returns a channel that is closed at the next change of what there is to do.
	Changed() <-chan struct{}
}

// Run is what a worker knows of the run it works for.
type Run struct {
	ID         string
	Experiment policy.Digest
	BaseModel  policy.Digest
	Tokenizer  policy.Digest
	Engine     trajectory.Engine
	Envs       []Env
}

// Env is one environment of the run.
type Env struct {
	Name     string
	Tier     string
	Agent    agent.Config
	Limits   envpool.Limits
	Eval     map[string]engine.Sampling // by suite
	Task     func(d policy.Digest) *task.Task
	Harness  policy.Digest // of the agent's settings
	Artifact int64         // most bytes copied out of a sandbox
	Renderer agent.Renderer
}

// Deps are the parts that a worker works with.
type Deps struct {
	Coordinator Coordinator
	Store       store.ObjectStore
	Host        func(name, address string) (envpool.Host, error)
	Engine      engine.Generator
	Replica     string // name of the engine, for the record
	Journal     *trajectory.AckJournal
	Log         *slog.Logger
	Build       string
	Metrics     *Metrics
}

// Config sizes a worker.
type Config struct {
	Concurrency int           // most episodes at once
	Flush       time.Duration // longest that a finished episode waits to be sealed
	ShardBytes  int           // a shard closes at this size
	Every       time.Duration // least time between two requests for work: slots that end together are filled together
	Drain       time.Duration // how long running episodes may go on when the worker stops
}

// DefaultConfig returns the usual sizes.
func DefaultConfig() Config {
	return Config{Concurrency: 64, Flush: time.Second, ShardBytes: 64 << 20, Every: 20 * time.Millisecond, Drain: 20 * time.Second}
}

// Validate refuses sizes that cannot work.
func (c Config) Validate() error {
	if c.Concurrency < 1 || c.Flush <= 0 || c.ShardBytes < 1 {
		return errors.New("rollout: concurrency, flush period and shard size must be positive")
	}
	return nil
}
