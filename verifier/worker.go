package verifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/internal/batch"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/internal/slots"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/trajectory"
)

// Coordinator is what a verifier asks of the coordinator; coordinator/client has it.
type Coordinator interface {
	Node() *raftlog.NodeRef
	LeaseJobs(ctx context.Context, count int) (*raftlog.LeaseJobsResult, error)
	SettleJobs(ctx context.Context, run string, items []*raftlog.SettleItem) (*raftlog.ItemsResult, error)
	FailJobs(ctx context.Context, run string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error)
	Hold(t lease.Token, lost func())
	Drop(resource string)
	Changed() <-chan struct{}
}

// Env is what a verifier knows of one environment of its run.
type Env struct {
	Reward  string // name of the component
	Weight  float64
	Timeout time.Duration
	Limits  envpool.Limits
	Task    func(d policy.Digest) *task.Task
}

// Run is what a verifier knows of the run it works for.
type Run struct {
	ID   string
	Envs []Env
}

// Deps are the parts that a verifier works with.
type Deps struct {
	Coordinator Coordinator
	Store       store.ObjectStore
	Host        func(name, address string) (envpool.Host, error)
	Journal     *trajectory.AckJournal
	Log         *slog.Logger
	Build       string
	Settled     func(v outcome.Verdict) // counts; may be nil
}

// Config sizes a verifier.
type Config struct {
	Concurrency int           // most jobs at once
	Flush       time.Duration // longest that a judgement waits to be committed
	Every       time.Duration // least time between two requests for work: slots that end together are filled together
	Drain       time.Duration // how long running jobs may go on when the verifier stops
}

// DefaultConfig returns the usual sizes.
func DefaultConfig() Config {
	return Config{Concurrency: 16, Flush: 250 * time.Millisecond, Every: 20 * time.Millisecond, Drain: 20 * time.Second}
}

// maxRows closes a shard of verdicts.
const maxRows = 4096

// Worker judges episodes.
type Worker struct {
	run   Run
	deps  Deps
	cfg   Config
	slots *slots.Slots
	batch *batch.Batcher[judged]

	trouble slots.Trouble // failures of the platform
}

// judged is a judgement that waits to be committed.
type judged struct {
	grant *raftlog.JobGrant
	row   trajectory.Verdict
}

// NewWorker returns a verifier; Run starts it.
func NewWorker(run Run, deps Deps, cfg Config) (*Worker, error) {
	if cfg.Concurrency < 1 || cfg.Flush <= 0 {
		return nil, errors.New("verifier: concurrency and flush period must be positive")
	}
	w := &Worker{run: run, deps: deps, cfg: cfg, slots: slots.New(cfg.Concurrency)}
	w.batch = batch.New(batch.Config{Period: cfg.Flush, Size: maxRows, Idle: w.slots.Idle}, w.settle)
	w.slots.OnEnd(w.batch.Nudge)
	return w, nil
}

// Run leases and judges until ctx ends; then running jobs may finish within
// Config.Drain and every judgement reached is committed.
func (w *Worker) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	flushed := make(chan struct{})
	go func() { w.batch.Run(work); close(flushed) }()

	w.lease(ctx, work)

	bound := time.AfterFunc(w.cfg.Drain, stop) // of what is left to judge, store and report
	defer bound.Stop()
	w.slots.Wait()
	w.batch.Close()
	<-flushed
	return w.trouble.Err()
}

func (w *Worker) lease(ctx, work context.Context) {
	for w.trouble.Err() == nil {
		changed, freed, free := w.deps.Coordinator.Changed(), w.slots.Freed(), w.slots.Free()
		granted := 0
		if free > 0 {
			res, err := w.deps.Coordinator.LeaseJobs(ctx, free)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, lease.ErrFenced): // the session registers again; its change wakes us
			case err != nil:
				w.deps.Log.Warn("lease verify jobs", "err", err)
			default:
				granted = len(res.Grants)
				for _, g := range res.Grants {
					w.start(work, g, time.Duration(res.TtlNs))
				}
			}
		}
		if err := slots.Pause(ctx, max(w.cfg.Every, w.trouble.Pause())); err != nil {
			return
		}
		if granted > 0 && granted == free {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-freed:
		case <-time.After(5 * time.Second): // a change that was lost must not stop the verifier
		}
	}
}

func (w *Worker) start(ctx context.Context, g *raftlog.JobGrant, ttl time.Duration) {
	node := w.deps.Coordinator.Node()
	token := lease.Token{
		Resource: lease.Verify(g.Run, g.Group, g.Index), Holder: node.GetName(),
		Incarnation: node.GetIncarnation(), Fence: lease.Fence(g.Fence), TTL: ttl,
	}
	jctx, cancel := context.WithCancel(ctx)
	w.deps.Coordinator.Hold(token, cancel)
	w.slots.Go(func() {
		defer cancel()
		row, reason, err := w.judge(jctx, g, token)
		switch {
		case err == nil:
			w.batch.Add(judged{g, row}, 1)
		case jctx.Err() != nil:
			w.deps.Coordinator.Drop(token.Resource)
		default:
			w.fail(ctx, g, reason, err)
		}
	})
}

// judge reaches a verdict, or says whose doing it is that there is none.
func (w *Worker) judge(ctx context.Context, g *raftlog.JobGrant, token lease.Token) (trajectory.Verdict, outcome.EndReason, error) {
	var none trajectory.Verdict
	if int(g.Env) >= len(w.run.Envs) {
		return none, outcome.TaskSetupFailed, fmt.Errorf("verifier: env %d is not in the experiment", g.Env)
	}
	env := &w.run.Envs[g.Env]
	t := env.Task(policy.Digest(g.Task.GetDigest()))
	if t == nil {
		return none, outcome.TaskSetupFailed, fmt.Errorf("verifier: task %s is not in the source", g.Task.GetId())
	}
	host, err := w.deps.Host(g.Host, g.HostAddress)
	if err != nil {
		return none, outcome.HostLost, err
	}
	var files []envpool.File
	if g.Artifacts != "" {
		data, err := store.GetObject(ctx, w.deps.Store, g.Run, policy.Digest(g.Artifacts), "artifacts.tar")
		if err != nil {
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
				return none, outcome.UploadFailed, err // the episode is played again
			}
			return none, outcome.VerifierLost, err
		}
		if files, err = envpool.DecodeFiles(data); err != nil {
			return none, outcome.VerifierCrash, err
		}
	}
	j, err := Judge(ctx, host, Job{
		Run: g.Run, Group: g.Group, Index: g.Index, Attempt: g.Attempt, Task: t, Artifacts: files,
		EndReason: outcome.EndReason(g.EndReason), Timeout: env.Timeout, Limits: env.Limits, Lease: token,
	})
	if err != nil {
		return none, infrastructureReason(err), err
	}
	if j.Verdict == outcome.Indeterminate {
		return none, j.End, fmt.Errorf("verifier: %s: %s", j.Reason, j.Detail)
	}
	return w.row(g, env, t, j), "", nil
}

// infrastructureReason blames the task for what can never work; everything else may pass.
func infrastructureReason(err error) outcome.EndReason {
	switch {
	case errors.Is(err, envpool.ErrInvalid), errors.Is(err, envpool.ErrUnsafe), errors.Is(err, envpool.ErrTooLarge), errors.Is(err, envpool.ErrUnsupported):
		return outcome.TaskSetupFailed
	case errors.Is(err, envpool.ErrNoSlot):
		return outcome.PlatformWait
	default:
		return outcome.HostLost
	}
}

func (w *Worker) row(g *raftlog.JobGrant, env *Env, t *task.Task, j Judgement) trajectory.Verdict {
	id := trajectory.EpisodeID(g.Run, g.Group, g.Index, g.Attempt)
	components := []trajectory.RewardComponent{{
		Name: env.Reward, Value: j.Reward, Weight: env.Weight, Source: trajectory.FromVerifier, Required: true,
	}}
	row := trajectory.Verdict{
		VerdictID: fmt.Sprintf("%s/%d", id, g.Fence), EpisodeID: id, VerifierID: j.Verifier, VerifierDigest: j.Digest,
		SandboxImageDigest: t.VerifierTemplate().Digest, Attempt: g.Tries + 1, Verdict: j.Verdict,
		Reason: trajectory.VerdictReason(j.Reason), Score: j.Reward, Reward: trajectory.SumReward(components),
		RewardComponents: components, Checks: []trajectory.Check{}, Evidence: []trajectory.Evidence{},
		StartedAt: j.Started.UTC(), Duration: j.Duration,
	}
	if j.ExitCode != nil {
		code := int32(*j.ExitCode)
		row.ExitCode = &code
	}
	for _, c := range j.Checks {
		st := trajectory.CheckStatus("fail")
		if c.Passed {
			st = "pass"
		}
		row.Checks = append(row.Checks, trajectory.Check{Name: c.Name, Status: st})
	}
	for _, e := range j.Evidence {
		excerpt := e.Excerpt
		row.Evidence = append(row.Evidence, trajectory.Evidence{
			Kind: trajectory.EvidenceKind(e.Kind), SHA256: e.Digest, Bytes: e.Bytes, Excerpt: &excerpt,
		})
	}
	return row
}

// fail reports a job without a verdict; the coordinator retries it. A full disk
// ends the verifier: every job would fail, and only people can help.
func (w *Worker) fail(ctx context.Context, g *raftlog.JobGrant, reason outcome.EndReason, cause error) {
	if class, _ := outcome.Class(reason); class == outcome.ClassPlatform {
		w.trouble.Failed()
	}
	switch {
	case errors.Is(cause, store.ErrFull):
		w.trouble.End(cause)
	case errors.Is(cause, syscall.ENOSPC):
		w.trouble.End(fmt.Errorf("%w: %w", store.ErrFull, cause))
	}
	defer w.deps.Coordinator.Drop(lease.Verify(g.Run, g.Group, g.Index))
	w.deps.Log.Info("no verdict", "group", g.Group, "index", g.Index, "attempt", g.Attempt, "reason", reason, "err", cause)
	_, err := w.deps.Coordinator.FailJobs(ctx, g.Run, []*raftlog.FailItem{{
		Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Reason: string(reason), Message: cause.Error(),
	}})
	if err != nil && ctx.Err() == nil {
		w.deps.Log.Warn("report a job without a verdict: its lease will expire", "group", g.Group, "index", g.Index, "err", err)
	}
}

// settle stores verdict rows and commits them; only then is an episode settled.
func (w *Worker) settle(ctx context.Context, done []judged) {
	shard, err := w.encode(done)
	err = errors.Join(err, failpoint.Err(failpoint.VerdictPutBefore))
	if err == nil {
		_, err = store.PutObject(ctx, w.deps.Store, w.run.ID, shard.Table.Kind(), shard.Data)
	}
	if err != nil {
		w.deps.Log.Error("store verdicts", "err", err)
		for _, j := range done {
			w.fail(ctx, j.grant, outcome.VerifierLost, err)
		}
		return
	}
	items := make([]*raftlog.SettleItem, len(done))
	for i, j := range done {
		r := shard.Refs[i].Ref
		items[i] = &raftlog.SettleItem{
			Group: j.grant.Group, Index: j.grant.Index, Attempt: j.grant.Attempt, Fence: j.grant.Fence,
			Verdict: string(j.row.Verdict), Reward: j.row.Reward, Reason: string(j.row.Reason),
			VerdictRow: &raftlog.RowRef{Object: string(r.Object), Batch: r.Batch, Row: r.Row, Rows: r.Rows},
		}
	}
	failpoint.At(failpoint.VerdictPutAfter)
	res, err := w.deps.Coordinator.SettleJobs(ctx, w.run.ID, items)
	failpoint.At(failpoint.SettleAfter)
	if err != nil {
		w.deps.Log.Warn("settle episodes: their leases decide", "episodes", len(items), "err", err)
	}
	for i, j := range done {
		g := j.grant
		w.deps.Coordinator.Drop(lease.Verify(g.Run, g.Group, g.Index))
		if err != nil {
			continue
		}
		switch res.Codes[i] {
		case raftlog.Code_CODE_OK:
			if err := w.deps.Journal.Settled(g.Run, g.Group, g.Index, g.Attempt, j.row.Verdict, shard.Digest); err != nil {
				w.deps.Log.Error("journal", "err", err)
			}
			w.trouble.Passed()
			if w.deps.Settled != nil {
				w.deps.Settled(j.row.Verdict)
			}
		case raftlog.Code_CODE_FENCED:
			w.deps.Log.Info("verdict refused: the lease was lost", "group", g.Group, "index", g.Index)
		default:
			w.deps.Log.Error("verdict refused", "group", g.Group, "index", g.Index, "err", res.Messages[i])
		}
	}
}

func (w *Worker) encode(done []judged) (trajectory.Shard, error) {
	out := trajectory.NewWriter[trajectory.Verdict](trajectory.Meta{Run: w.run.ID, Writer: w.deps.Build, Created: time.Now().UTC()})
	for _, j := range done {
		if err := out.Append(j.row); err != nil {
			return trajectory.Shard{}, err
		}
	}
	return out.Close()
}
