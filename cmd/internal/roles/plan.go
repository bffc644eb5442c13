// Package roles wires the parts of rlfleet into processes: what rlctl runs in one and rlfleetd runs apart.
package roles

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/rollout/agent"
	"github.com/rlfleet/rlfleet/task"
)

// Plan is an experiment with its tasks loaded.
type Plan struct {
	Experiment *experiment.Experiment
	Envs       []EnvPlan
	Suites     []SuitePlan
}

// EnvPlan is one environment with its training tasks.
type EnvPlan struct {
	Spec  experiment.Env
	Tasks []*task.Task
	all   map[policy.Digest]*task.Task // and those of the suites that use it
}

// SuitePlan is one evaluation suite with its tasks.
type SuitePlan struct {
	Spec  experiment.Suite
	Env   int // index into Envs
	Tasks []*task.Task
}

// Task returns a task of the env or of its suites by digest, or nil.
func (e *EnvPlan) Task(d policy.Digest) *task.Task { return e.all[d] }

// NewPlan loads the tasks of an experiment and refuses those that overlap with an evaluation suite.
func NewPlan(x *experiment.Experiment) (*Plan, error) {
	p := &Plan{Experiment: x}
	index := map[string]int{}
	for i, e := range x.Spec.Envs {
		tasks, err := task.LoadSet(x.ResolvePath(e.Tasks.Source), e.Tasks.Split)
		if err != nil {
			return nil, err
		}
		env := EnvPlan{Spec: e, Tasks: tasks, all: map[policy.Digest]*task.Task{}}
		for _, t := range tasks {
			env.all[t.Digest] = t
		}
		index[e.Name] = i
		p.Envs = append(p.Envs, env)
	}
	for i, s := range x.Spec.Eval.Suites {
		env := index[s.Env]
		tasks, err := task.LoadSet(x.ResolvePath(s.Tasks.Source), s.Tasks.Split)
		if err != nil {
			return nil, err
		}
		if err := x.CheckOverlap(i, digests(p.Envs[env].Tasks), digests(tasks)); err != nil {
			return nil, err
		}
		for _, t := range tasks {
			p.Envs[env].all[t.Digest] = t
		}
		p.Suites = append(p.Suites, SuitePlan{Spec: s, Env: env, Tasks: tasks})
	}
	return p, nil
}

func digests(tasks []*task.Task) []policy.Digest {
	out := make([]policy.Digest, len(tasks))
	for i, t := range tasks {
		out[i] = t.Digest
	}
	return out
}

func refs(tasks []*task.Task) []*raftlog.TaskRef {
	out := make([]*raftlog.TaskRef, len(tasks))
	for i, t := range tasks {
		out[i] = &raftlog.TaskRef{Id: t.ID, Digest: string(t.Digest)}
	}
	return out
}

// RunConfig is what the coordinator needs of the experiment.
func (p *Plan) RunConfig() *raftlog.RunConfig {
	s := &p.Experiment.Spec
	c := &raftlog.RunConfig{
		Seed: s.Seed, Steps: int64(s.Steps), LagMax: int32(s.Lag.Max), GroupsPerStep: int32(s.Trainer.GroupsPerStep),
		PublishEvery: int32(s.Policy.Publish.Every), Concurrency: int32(s.Rollout.Concurrency),
		BatchDeadlineNs: nanos(s.Deadlines.Batch), NoProgressNs: nanos(s.Deadlines.NoProgress),
		PublishDeadlineNs: nanos(s.Deadlines.Publish), EpisodeDeadlineNs: nanos(s.Deadlines.Episode),
		TtlNs: nanos(s.Lag.TTL), MaxRequeues: int32(s.Lag.MaxRequeues), RequeueStale: s.Lag.OnStale == "requeue",
	}
	if p := p.Experiment.Metadata.Project; p != "default" {
		c.Project = p
	}
	if b := s.Budget; b != nil {
		c.BudgetTokens, c.BudgetSandboxNs = b.Tokens, int64(b.SandboxHours*float64(time.Hour))
	}
	if s.StopWhen != nil {
		c.StopEvalReward = &s.StopWhen.EvalReward
	}
	for _, e := range p.Envs {
		on := map[string]string{}
		for reason, d := range e.Spec.Limits.On.ByReason() {
			on[string(reason)] = string(d)
		}
		c.Envs = append(c.Envs, &raftlog.EnvConfig{
			Name: e.Spec.Name, Weight: e.Spec.Weight, GroupSize: int32(e.Spec.GroupSize), Tasks: refs(e.Tasks),
			Shuffle: e.Spec.Tasks.Order == "shuffle", MaxAttempts: int32(e.Spec.Tasks.MaxAttempts),
			ShortGroup: e.Spec.ShortGroup.Kind, KeepMin: int32(e.Spec.ShortGroup.Min),
			VerifyRetries: int32(e.Spec.Rewards[0].Verifier.Retries), LimitsOn: on, MaxMasked: e.Spec.MaxMasked,
		})
	}
	for _, t := range p.Suites {
		c.Evals = append(c.Evals, &raftlog.EvalConfig{
			Suite: t.Spec.Name, Env: int32(t.Env), Tasks: refs(t.Tasks), Samples: int32(t.Spec.Samples),
			Episodes: int32(t.Spec.Episodes), Every: int64(s.Eval.Every),
		})
	}
	return c
}

func nanos(d experiment.Duration) int64 { return d.Duration.Nanoseconds() }

// sampling converts the spec's words into an engine's.
func sampling(s experiment.Sampling) engine.Sampling {
	return engine.Sampling{Temperature: float32(s.Temperature), TopP: float32(s.TopP), TopK: int32(s.TopK)}
}

// AgentConfig is how episodes of the env are played.
func (e *EnvPlan) AgentConfig() agent.Config {
	a := e.Spec.Agent
	return agent.Config{
		MaxTurns: a.MaxTurns, MaxTokens: a.MaxTokens, MaxTurnTokens: a.TurnTokens(), MaxContext: a.MaxContext,
		Timeout: a.Timeout.Duration, Sampling: sampling(a.Sampling), Output: int64(e.Spec.Environment.Limits.Output),
	}
}

// SandboxLimits are the limits of the env's sandboxes.
func (e *EnvPlan) SandboxLimits() envpool.Limits {
	l := e.Spec.Environment.Limits
	return envpool.Limits{
		CPU: l.CPU.Cores(), Memory: int64(l.Memory), Pids: l.PIDs, Disk: int64(l.Disk), Inodes: int64(l.Inodes),
		OpenFiles: l.OpenFiles, Output: int64(l.Output), Wall: e.Spec.Agent.Timeout.Duration,
	}
}

// SuiteSampling returns the sampling of the suites that use env i, by name.
func (p *Plan) SuiteSampling(i int) map[string]engine.Sampling {
	out := map[string]engine.Sampling{}
	for _, s := range p.Suites {
		if s.Env == i {
			out[s.Spec.Name] = sampling(s.Spec.Sampling)
		}
	}
	return out
}

// Harness is the digest of the agent's settings.
func (e *EnvPlan) Harness() (policy.Digest, error) {
	b, err := json.Marshal(e.Spec.Agent)
	if err != nil {
		return "", fmt.Errorf("roles: digest of the agent's settings: %w", err)
	}
	return policy.DigestOf(b), nil
}

// Instructions returns the instructions of all training tasks.
func (p *Plan) Instructions() []string {
	var out []string
	for _, e := range p.Envs {
		for _, t := range e.Tasks {
			out = append(out, t.Instruction)
		}
	}
	return out
}
