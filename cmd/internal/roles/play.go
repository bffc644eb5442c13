package roles

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	tinyengine "github.com/rlfleet/rlfleet/policy/engine/tiny"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/rollout/agent"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/trajectory"
	"github.com/rlfleet/rlfleet/verifier"
)

// Player plays single episodes without a run: nothing is recorded or trained.
type Player struct {
	plan   *Plan
	host   envpool.Host
	engine *tinyengine.Engine
	tok    *model.Tokenizer
	fence  lease.Fence
	mu     sync.Mutex // guards fence
}

// NewPlayer serves the policy's files as version 0 on the host.
func NewPlayer(ctx context.Context, plan *Plan, files map[string][]byte, host envpool.Host) (*Player, error) {
	longest := 0
	for _, e := range plan.Envs {
		longest = max(longest, e.Spec.Agent.MaxContext)
	}
	tok, err := model.OpenTokenizer(files, longest)
	if err != nil {
		return nil, err
	}
	e, err := tinyengine.New(tinyengine.DefaultConfig(),
		func(context.Context, policy.Version, policy.Digest) (map[string][]byte, error) { return files, nil },
		func(context.Context, policy.Version) (policy.Digest, error) { return policy.DigestOf(nil), nil })
	if err != nil {
		return nil, err
	}
	if err := errors.Join(e.Stage(ctx, 0, policy.DigestOf(nil)), e.Flip(ctx, 0)); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &Player{plan: plan, host: host, engine: e, tok: tok}, nil
}

// Close ends the engine; the host is the caller's.
func (p *Player) Close() error { return p.engine.Close() }

// Played is one episode with its judgement.
type Played struct {
	Task      *task.Task
	Steps     []trajectory.Step
	End       outcome.EndReason
	Judgement verifier.Judgement
}

func (p *Player) mint(resource string) lease.Token {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fence++
	return lease.Token{Resource: resource, Holder: "player", Incarnation: 1, Fence: p.fence, TTL: time.Hour}
}

// Play plays one episode of a task in env and judges it.
func (p *Player) Play(ctx context.Context, env int, t *task.Task, sampling *engine.Sampling, seed uint64) (Played, error) {
	e := &p.plan.Envs[env]
	out := Played{Task: t}
	name := fmt.Sprintf("play/%s/%d", t.ID, seed)
	files, res, err := p.act(ctx, e, t, sampling, seed, name)
	if err != nil {
		return out, err
	}
	out.Steps, out.End = res.Steps, res.End
	limits := e.SandboxLimits()
	limits.Wall = e.Spec.Rewards[0].Verifier.Timeout.Duration
	out.Judgement, err = verifier.Judge(ctx, p.host, verifier.Job{
		Run: "play", Attempt: 1, Task: t, Artifacts: files, EndReason: res.End,
		Timeout: e.Spec.Rewards[0].Verifier.Timeout.Duration, Retries: e.Spec.Rewards[0].Verifier.Retries,
		Limits: limits, Lease: p.mint(name + "/verify"),
	})
	return out, err
}

func (p *Player) act(ctx context.Context, e *EnvPlan, t *task.Task, sampling *engine.Sampling, seed uint64, name string) ([]envpool.File, *agent.Result, error) {
	tmpl := t.AgentTemplate()
	snap, err := p.host.Prepare(ctx, envpool.TaskTemplate(tmpl))
	if err != nil {
		return nil, nil, err
	}
	h, err := p.host.Claim(ctx, envpool.Claim{Lease: p.mint(name), Snapshot: snap, Quota: envpool.QuotaAgent, Limits: e.SandboxLimits().Over(t.Limits), Entropy: seed})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = p.host.Release(rctx, h) // an error here has ended the sandbox too
	}()
	cfg := e.AgentConfig()
	if sampling != nil {
		cfg.Sampling = *sampling
	}
	cfg.AnswerPath = path.Join(tmpl.Workdir, "answer.txt")
	res, err := agent.Run(ctx, agent.Deps{
		Engine: p.engine, Replica: "player", Renderer: model.NewRenderer(p.tok, e.Spec.Agent.MaxObservation),
		Sandbox: envpool.Sandbox{Host: p.host, Handle: h}, Waits: func(string) {}, Now: time.Now,
	}, cfg, agent.Episode{ID: name, Instruction: t.Instruction, Seed: seed})
	if err != nil {
		return nil, nil, err
	}
	if res.Failure != nil {
		return nil, nil, res.Failure
	}
	files, err := p.host.Collect(ctx, h, t.Artifacts, artifactLimit)
	return files, res, err
}
