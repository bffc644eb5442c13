package roles

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/policy/publish"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
	"github.com/rlfleet/rlfleet/rollout"
	"github.com/rlfleet/rlfleet/trainer"
	tinytrainer "github.com/rlfleet/rlfleet/trainer/tiny"
	"github.com/rlfleet/rlfleet/trajectory"
	"github.com/rlfleet/rlfleet/verifier"
)

// artifactLimit is the most that is copied out of one sandbox for its verifier, in bytes.
const artifactLimit = 16 << 20

// session registers a worker of this process.
func (p *Process) session(ctx context.Context, role, name string) (*client.Session, error) {
	return p.Client.NewSession(ctx, client.SessionConfig{Role: role, Name: name, Run: p.Run, Logger: p.Log})
}

// renderer turns conversations of env i into tokens.
func (p *Process) renderer(i int) *model.Renderer {
	return model.NewRenderer(p.tokenizer, p.Plan.Envs[i].Spec.Agent.MaxObservation)
}

// rolloutRun is what a rollout worker knows of the run.
func (p *Process) rolloutRun() (rollout.Run, error) {
	tok := policy.DigestOf(p.files[model.TokenizerFile])
	r := rollout.Run{
		ID: p.Run, Experiment: p.Plan.Experiment.Digest(), BaseModel: p.base, Tokenizer: tok,
		Engine: trajectory.Engine{Name: "tiny", Version: p.Build, Dtype: "float32", TP: 1, KVDtype: "float32", PrefixCache: true, PolicyID: "actor"},
	}
	for i := range p.Plan.Envs {
		e := &p.Plan.Envs[i]
		h, err := e.Harness()
		if err != nil {
			return r, err
		}
		r.Envs = append(r.Envs, rollout.Env{
			Name: e.Spec.Name, Tier: e.Spec.Environment.Runtime, Agent: e.AgentConfig(), Limits: e.SandboxLimits(),
			Eval: p.Plan.SuiteSampling(i), Task: e.Task, Harness: h, Artifact: artifactLimit, Renderer: p.renderer(i),
		})
	}
	return r, nil
}

// RunRollout plays episodes until ctx ends.
func (p *Process) RunRollout(ctx context.Context, index, of int) error {
	run, err := p.rolloutRun()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s-rollout-%d", p.Name, index)
	s, err := p.session(ctx, "rollout", name)
	if err != nil {
		return err
	}
	cfg := rollout.DefaultConfig()
	cfg.Concurrency = max(1, p.Plan.Experiment.Spec.Rollout.Concurrency/max(1, of))
	w, err := rollout.NewWorker(run, rollout.Deps{
		Coordinator: s, Store: p.Store, Host: p.host, Engine: p.router(), Replica: "engine", Journal: p.Journal,
		Log: p.Log, Build: p.Build, Metrics: p.rolloutMetrics(),
	}, cfg)
	if err != nil {
		return errors.Join(err, closeSession(ctx, s))
	}
	return errors.Join(w.Run(ctx), closeSession(ctx, s))
}

// RunVerifier judges episodes until ctx ends.
func (p *Process) RunVerifier(ctx context.Context) error {
	run := verifier.Run{ID: p.Run}
	for i := range p.Plan.Envs {
		e := &p.Plan.Envs[i]
		r := e.Spec.Rewards[0]
		limits := e.SandboxLimits()
		limits.Wall = r.Verifier.Timeout.Duration
		run.Envs = append(run.Envs, verifier.Env{
			Reward: r.Name, Weight: r.Weight, Timeout: r.Verifier.Timeout.Duration, Limits: limits, Task: e.Task,
		})
	}
	s, err := p.session(ctx, "verifier", p.Name+"-verifier")
	if err != nil {
		return err
	}
	w, err := verifier.NewWorker(run, verifier.Deps{
		Coordinator: s, Store: p.Store, Host: p.host, Journal: p.Journal, Log: p.Log, Build: p.Build,
	}, verifier.DefaultConfig())
	if err != nil {
		return errors.Join(err, closeSession(ctx, s))
	}
	return errors.Join(w.Run(ctx), closeSession(ctx, s))
}

// RunTrainer trains until the run needs no more steps or ctx ends.
func (p *Process) RunTrainer(ctx context.Context) error {
	spec := p.Plan.Experiment.Spec
	b, err := tinytrainer.New(trainerConfig(&spec))
	if err != nil {
		return err
	}
	cfg := workerConfig(p.Run, &spec)
	cfg.Writer = p.Build
	keep := &trainer.Retention{
		Keep: int64(spec.Trainer.Checkpoint.Keep), PinEvery: int64(spec.Trainer.Checkpoint.PinEvery), EvalEvery: int64(spec.Eval.Every),
	}
	s, err := p.session(ctx, "trainer", p.Name+"-trainer")
	if err != nil {
		return err
	}
	w, err := trainer.NewWorker(cfg, trainer.Deps{
		Coordinator: s, Store: p.Store, Backend: b, Log: p.Log,
		OnCommit: func(c trainer.Commit) {
			if err := p.Journal.Committed(p.Run, c.Step, c.Manifest, c.Ledger); err != nil {
				p.Log.Error("journal", "err", err)
			}
			if err := p.retain(ctx, keep); err != nil && ctx.Err() == nil {
				p.Log.Warn("delete old versions", "err", err)
			}
		},
	})
	if err != nil {
		return errors.Join(err, closeSession(ctx, s))
	}
	err = w.Run(ctx)
	if err == nil {
		<-ctx.Done() // a run without steps left still shows a trainer
	}
	return errors.Join(err, closeSession(ctx, s))
}

// retain deletes the files of versions that the experiment does not keep.
func (p *Process) retain(ctx context.Context, keep *trainer.Retention) error {
	v, err := p.Client.StaleView(ctx, p.Run, pb.Kind_KIND_RUN, pb.Kind_KIND_VERSION)
	if err != nil {
		return err
	}
	var run *raftlog.Run
	var versions []*raftlog.PolicyVersion
	for _, r := range v.Records {
		if x := r.GetRun(); x != nil {
			run = x
		}
		if x := r.GetVersion(); x != nil {
			versions = append(versions, x)
		}
	}
	if run == nil {
		return nil
	}
	return keep.Apply(ctx, p.Store, run, versions)
}

// RunPublisher brings new versions to the engines until ctx ends.
func (p *Process) RunPublisher(ctx context.Context) error {
	spec := p.Plan.Experiment.Spec.Policy.Publish
	cfg := publish.DefaultConfig()
	cfg.Run, cfg.MaxMeanDiff, cfg.Probes = p.Run, spec.Probe.MaxMeanDiff, p.probes(spec.Probe.Prompts)
	// Together they end before the coordinator takes the version back.
	all := p.Plan.Experiment.Spec.Deadlines.Publish.Duration
	cfg.Stage, cfg.Score, cfg.Flip = all/2, all/4, all/8
	s, err := p.session(ctx, "publisher", p.Name+"-publisher")
	if err != nil {
		return err
	}
	w, err := publish.New(cfg, publish.Deps{
		Coordinator: s, Log: p.Log,
		Engine: func(n *raftlog.Node) (engine.Engine, error) { return p.engine(n.Name, n.Address) },
	})
	if err != nil {
		return errors.Join(err, closeSession(ctx, s))
	}
	return errors.Join(w.Run(ctx), closeSession(ctx, s))
}

// probes are the openings of the first tasks, on which every version is scored.
func (p *Process) probes(n int) [][]int32 {
	var out [][]int32
	seen := map[string]bool{}
	for i := range p.Plan.Envs {
		r := p.renderer(i)
		for _, t := range p.Plan.Envs[i].Tasks {
			text := strings.TrimSpace(t.Instruction)
			if len(out) == n || seen[text] {
				continue
			}
			seen[text] = true
			if ids := append(r.Start(t.Instruction), r.Open()...); len(ids) >= 2 {
				out = append(out, ids)
			}
		}
	}
	return out
}

// RunCoordinator opens the run's coordinator in this process and serves it
// until ctx ends. ready is called with the node once it leads.
func RunCoordinator(ctx context.Context, c CoordinatorConfig, ready func()) error {
	n, err := OpenCoordinator(ctx, c)
	if err != nil {
		return err
	}
	ready()
	select {
	case <-ctx.Done():
	case <-n.Done():
	}
	closed := n.Close()
	return errors.Join(n.Err(), closed) // why it ended by itself comes first
}

// hostDir is where a host of this storage keeps its templates and work directories.
func hostDir(storage, name string) string { return filepath.Join(storage, "host", name) }
