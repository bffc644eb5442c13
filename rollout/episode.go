package rollout

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/rollout/agent"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/trajectory"
)

// artifactKind is the suffix of the objects that verifiers judge.
const artifactKind = "artifacts.tar"

// finished is an episode that waits to be sealed.
type finished struct {
	grant *raftlog.EpisodeGrant
	row   trajectory.Episode
	steps []trajectory.Step
	item  *raftlog.SealItem
}

// play carries one grant to its end: to the recorder, or reported as lost, or
// dropped without a word when the lease is gone.
func (w *Worker) play(ctx context.Context, g *raftlog.EpisodeGrant, token lease.Token) {
	if int(g.Env) >= len(w.run.Envs) {
		w.fail(ctx, g, string(outcome.TaskSetupFailed), fmt.Errorf("env %d is not in the experiment", g.Env))
		return
	}
	env := &w.run.Envs[g.Env]
	t := env.Task(policy.Digest(g.TaskRef.GetDigest()))
	if t == nil {
		w.fail(ctx, g, string(outcome.TaskSetupFailed), fmt.Errorf("task %s with digest %s is not in the source", g.TaskRef.GetId(), g.TaskRef.GetDigest()))
		return
	}
	host, err := w.deps.Host(g.Host, g.HostAddress)
	if err != nil {
		w.fail(ctx, g, string(outcome.HostLost), err)
		return
	}
	f, reason, err := w.act(ctx, g, token, env, t, host)
	switch {
	case err == nil:
		w.rec.add(f)
	case ctx.Err() != nil || errors.Is(err, lease.ErrFenced):
		w.deps.Coordinator.Drop(token.Resource)
	default:
		w.fail(ctx, g, string(reason), err)
	}
}

// act claims the sandbox, lets the agent play and takes its artifacts.
func (w *Worker) act(ctx context.Context, g *raftlog.EpisodeGrant, token lease.Token, env *Env, t *task.Task, host envpool.Host) (*finished, outcome.EndReason, error) {
	began := time.Now()
	waits := func(what string) { w.deps.Coordinator.Waits(token.Resource, what) }
	waits("environment")
	tmpl := t.AgentTemplate()
	snap, err := host.Prepare(ctx, envpool.TaskTemplate(tmpl))
	if err != nil {
		return nil, claimReason(err), err
	}
	setup := time.Since(began)
	handle, err := host.Claim(ctx, envpool.Claim{Lease: token, Snapshot: snap, Quota: envpool.QuotaAgent, Limits: env.Limits.Over(t.Limits), Entropy: uint64(g.Seed)})
	if err != nil {
		return nil, claimReason(err), err
	}
	claimed := time.Now()
	// The sandbox ends with the episode, also when ctx already has.
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := host.Release(rctx, handle); err != nil && !errors.Is(err, envpool.ErrUnknown) {
			w.deps.Log.Warn("release sandbox", "sandbox", handle.Sandbox, "err", err)
		}
	}()
	cfg := env.Agent
	if s, is := env.Eval[g.Suite]; is && g.Suite != "" {
		cfg.Sampling = s
	}
	if t.AgentTimeout > 0 {
		cfg.Timeout = min(cfg.Timeout, t.AgentTimeout)
	}
	cfg.AnswerPath = path.Join(tmpl.Workdir, "answer.txt")
	ep := agent.Episode{
		ID: trajectory.EpisodeID(g.Run, g.Group, g.Index, g.Attempt), Instruction: t.Instruction, Seed: uint64(g.Seed),
	}
	if g.Pin >= 0 {
		ep.Pin = &g.Pin
	}
	res, err := agent.Run(ctx, agent.Deps{
		Engine: w.deps.Engine, Replica: w.deps.Replica, Renderer: env.Renderer, Sandbox: envpool.Sandbox{Host: host, Handle: handle}, Waits: waits, Now: time.Now,
	}, cfg, ep)
	if err != nil {
		return nil, outcome.WorkerLost, err
	}
	if res.Failure != nil {
		return nil, res.End, res.Failure
	}
	finish := time.Now()
	waits("environment")
	files, err := host.Collect(ctx, handle, t.Artifacts, env.Artifact)
	if errors.Is(err, envpool.ErrTooLarge) {
		files, err, res.End = nil, nil, outcome.SandboxLimit // the episode's own doing
	}
	if err != nil {
		return nil, claimReason(err), err
	}
	collected := time.Now()
	waits("store")
	artifacts, err := w.storeArtifacts(ctx, g.Run, files)
	if err != nil {
		return nil, outcome.UploadFailed, err
	}
	row := w.row(g, token, env, t, res)
	row.StartedAt, row.FinishedAt = ptr(began.UTC()), ptr(finish.UTC())
	row.Artifacts = artifacts
	row.Time = trajectory.EpisodeTime{
		EnvSetup: setup, EnvBoot: claimed.Sub(began) - setup, Model: res.Model, Tool: res.Tool,
		Verify: collected.Sub(finish), Upload: time.Since(collected),
	}
	return &finished{grant: g, row: row, steps: res.Steps, item: &raftlog.SealItem{
		Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence,
		Sealed: &raftlog.Sealed{
			EndReason: string(res.End), Tokens: res.Sampled, Artifacts: string(artifacts), Turns: int64(res.Turns),
			DurationNs: finish.Sub(began).Nanoseconds(), MinVersion: -1, MaxVersion: -1,
		},
	}}, "", nil
}

func ptr[T any](v T) *T { return &v }

// claimReason blames the environment only with the host's word for it.
func claimReason(err error) outcome.EndReason {
	switch {
	case errors.Is(err, envpool.ErrEnvironment):
		return outcome.EnvCrash
	case errors.Is(err, envpool.ErrNoSlot):
		return outcome.PlatformWait
	case errors.Is(err, envpool.ErrInvalid), errors.Is(err, envpool.ErrUnsafe), errors.Is(err, envpool.ErrUnsupported), errors.Is(err, envpool.ErrNotFound):
		return outcome.TaskSetupFailed
	default:
		return outcome.HostLost
	}
}

func (w *Worker) storeArtifacts(ctx context.Context, run string, files []envpool.File) (policy.Digest, error) {
	data, err := envpool.EncodeFiles(files)
	if err != nil || data == nil {
		return "", err
	}
	return store.PutObject(ctx, w.deps.Store, run, artifactKind, data) // small answers repeat: one object each
}

// row fills what an episode row says before its messages are counted.
func (w *Worker) row(g *raftlog.EpisodeGrant, token lease.Token, env *Env, t *task.Task, res *agent.Result) trajectory.Episode {
	class, _ := outcome.Class(res.End)
	split := trajectory.SplitTrain
	if g.Suite != "" {
		split = trajectory.SplitEval
	}
	e := trajectory.Episode{
		RunID: g.Run, ExperimentDigest: w.run.Experiment, EpisodeID: trajectory.EpisodeID(g.Run, g.Group, g.Index, g.Attempt),
		Attempt: g.Attempt, LeaseID: token.Resource, LeaseEpoch: int64(token.Fence), WorkerID: token.Holder, WorkerBuild: w.deps.Build,
		EnvID: env.Name, EnvVersion: env.Tier, TaskID: t.ID, TaskDigest: t.Digest, Split: split,
		GroupID: ptr(trajectory.GroupID(g.Run, g.Group)), GroupSize: g.Size, GroupIndex: g.Index,
		Seed: g.Seed, SamplingSeed: ptr(g.Seed), PolicyID: "actor", PolicyVersionDispatch: policy.Version(max(0, g.Live)),
		BaseModelDigest: w.run.BaseModel, TokenizerDigest: w.run.Tokenizer, ChatTemplateDigest: w.run.Tokenizer, RendererDigest: w.run.Tokenizer,
		ToolsDigest: env.Harness, EnvImageDigest: t.AgentTemplate().Digest, HarnessDigest: env.Harness,
		Engine: w.run.Engine, LogprobsMode: trajectory.ProcessedLogprobs,
		EndClass: class, EndReason: res.End, Usage: res.Usage, Sidecars: []trajectory.Sidecar{}, Tags: []string{},
	}
	if g.Attempt > 1 {
		e.RetryOfEpisodeID = ptr(trajectory.EpisodeID(g.Run, g.Group, g.Index, g.Attempt-1))
	}
	if !res.First.IsZero() {
		e.FirstTokenAt = ptr(res.First.UTC())
	}
	return e
}
