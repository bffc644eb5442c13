package robustness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// The run that the workload plays. Its episodes are words without content: what
// counts is who may hand in what, and when.
const (
	runID         = "chaos"
	lagMax        = 2
	groupsPerStep = 8
	groupSize     = 2
	rollouts      = 6
	verifiers     = 3
)

// opTimeout is when a client gives an operation up and takes its outcome for unknown.
const opTimeout = 12 * time.Second

// workload is a fleet without sandboxes: every role's side of the protocol, through the real client.
type workload struct {
	h    *history
	dial func(name string) (*client.Client, error)
	log  *slog.Logger

	ids    atomic.Int64  // clients of the history, and unique names
	served atomic.Int64  // version that the engines serve
	last   atomic.Int64  // when an operation was last acknowledged, by h's clock
	number atomic.Uint64 // incarnations given out

	stop context.CancelFunc
	work sync.WaitGroup

	mu   sync.Mutex // guards errs
	errs []error
}

// startWorkload creates the run and starts the fleet. stop it with close.
func startWorkload(ctx context.Context, h *history, log *slog.Logger, seed uint64, admin *client.Client, dial func(name string) (*client.Client, error)) (*workload, error) {
	w := &workload{h: h, dial: dial, log: log}
	w.served.Store(-1)
	env := &raftlog.EnvConfig{Name: "e", Weight: 1, GroupSize: groupSize, Shuffle: true, MaxAttempts: 1 << 30, ShortGroup: "replace", VerifyRetries: 3}
	for i := range 32 {
		env.Tasks = append(env.Tasks, &raftlog.TaskRef{Id: fmt.Sprint("t", i), Digest: "sha256:t"})
	}
	_, err := admin.CreateRun(ctx, &raftlog.CreateRun{Id: runID, SpecDigest: "sha256:chaos", Manifest: "sha256:v0", Config: &raftlog.RunConfig{
		Seed: int64(seed), Steps: 1 << 40, LagMax: lagMax, GroupsPerStep: groupsPerStep, PublishEvery: 1,
		Concurrency: 64, Envs: []*raftlog.EnvConfig{env}, BatchDeadlineNs: int64(5 * time.Second), // what nobody holds may wait for as long as leaders change: 2×TTL each time,
	}})
	if err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	actors := []func(context.Context, *rand.Rand) error{w.host, w.engine, w.publisher, w.trainer, w.reader, w.reader}
	for range rollouts {
		actors = append(actors, w.rollout)
	}
	for range verifiers {
		actors = append(actors, w.verifier)
	}
	for range 3 {
		actors = append(actors, w.writer)
	}
	for i, a := range actors {
		w.work.Go(func() {
			if err := a(ctx, rand.New(rand.NewPCG(seed, uint64(100+i)))); err != nil && ctx.Err() == nil {
				w.fail(err)
			}
		})
	}
	return w, nil
}

// close ends the fleet in order and returns what went wrong in it.
func (w *workload) close() error {
	w.stop()
	w.work.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

// fail notes what must never happen.
func (w *workload) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < 20 {
		w.errs = append(w.errs, err)
	}
}

// judge turns the end of an operation into an answer; an error that is neither
// a refusal nor an unknown outcome is a fault of the cluster.
func (w *workload) judge(what string, err error) answer {
	switch {
	case err == nil:
		w.last.Store(int64(w.h.now()))
		return ok
	case errors.Is(err, lease.ErrFenced), errors.Is(err, client.ErrConflict):
		w.last.Store(int64(w.h.now()))
		return refused
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, context.Canceled):
		return unknown
	}
	w.fail(fmt.Errorf("%s: %w", what, err))
	return unknown
}

func item(c raftlog.Code) answer {
	if c == raftlog.Code_CODE_OK {
		return ok
	}
	return refused
}

// session keeps trying to register until ctx ends.
func (w *workload) session(ctx context.Context, cfg client.SessionConfig) (*client.Client, *client.Session, error) {
	cfg.Logger = w.log
	if cfg.Run == "" {
		cfg.Run = runID
	}
	c, err := w.dial(cfg.Name)
	if err != nil {
		return nil, nil, err
	}
	for {
		s, err := c.NewSession(ctx, cfg)
		if err == nil {
			return c, s, nil
		}
		if !errors.Is(err, client.ErrUnavailable) || ctx.Err() != nil {
			return nil, nil, errors.Join(err, c.Close())
		}
	}
}

// leave ends a session after the work has ended; the cluster is well by then.
func leave(c *client.Client, s *client.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = s.Close(ctx) // the sweep looks at what is left
	_ = c.Close()
}

// idle waits for a change, or a moment.
func idle(ctx context.Context, s *client.Session) {
	select {
	case <-ctx.Done():
	case <-s.Changed():
	case <-time.After(250 * time.Millisecond):
	}
}

// pause waits for a random time up to most; false when ctx ends.
func pause(ctx context.Context, r *rand.Rand, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(r.Int64N(int64(most)))):
		return true
	}
}

func (w *workload) host(ctx context.Context, _ *rand.Rand) error {
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RoleHost, Name: "h1", Agents: 64, Verifiers: 64})
	if err != nil {
		return err
	}
	<-ctx.Done()
	leave(c, s)
	return nil
}

func (w *workload) engine(ctx context.Context, _ *rand.Rand) error {
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RoleEngine, Name: "e1", Version: w.served.Load})
	if err != nil {
		return err
	}
	<-ctx.Done()
	leave(c, s)
	return nil
}

func (w *workload) publisher(ctx context.Context, _ *rand.Rand) error {
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RolePublisher, Name: "p1"})
	if err != nil {
		return err
	}
	defer leave(c, s)
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		g, err := s.LeasePublish(limit, runID)
		if w.judge("lease a publication", err); err == nil && g.Ready {
			w.served.Store(g.Version)
			w.judge("finish a publication", s.FinishPublish(limit, &raftlog.FinishPublish{
				Run: runID, Version: g.Version, Fence: g.Fence, Accepted: true, Served: []string{"e1"},
			}))
		}
		cancel()
		idle(ctx, s)
	}
	return nil
}

// trainer commits what it is given, and looks at the age of every token.
func (w *workload) trainer(ctx context.Context, r *rand.Rand) error {
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RoleTrainer, Name: "t1"})
	if err != nil {
		return err
	}
	defer leave(c, s)
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		g, err := s.JoinGang(limit, runID)
		cancel()
		if w.judge("join the gang", err) != ok {
			idle(ctx, s)
			continue
		}
		w.gang(ctx, r, s, g)
	}
	return nil
}

// gang trains until the gang is lost, or left.
func (w *workload) gang(ctx context.Context, r *rand.Rand, s *client.Session, g *raftlog.JoinGangResult) {
	lost := make(chan struct{})
	s.Hold(lease.Token{
		Resource: lease.Gang(runID), Holder: s.Node().Name, Incarnation: s.Node().Incarnation,
		Fence: lease.Fence(g.Fence), TTL: time.Duration(g.TtlNs),
	}, func() { close(lost) })
	defer s.Drop(lease.Gang(runID))
	for steps := 5 + r.IntN(20); steps > 0 && ctx.Err() == nil; {
		select {
		case <-lost:
			return
		default:
		}
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		b, err := s.TakeBatch(limit, runID, g.Epoch, g.Fence)
		cancel()
		switch a := w.judge("take a batch", err); {
		case a == refused:
			return
		case a == unknown || !b.Ready:
			idle(ctx, s)
			continue
		}
		for _, x := range b.Groups {
			for _, m := range x.Members {
				if m.Sealed != nil && m.Disposition == "train" && b.Step-m.Sealed.MinVersion > lagMax {
					w.fail(fmt.Errorf("lag: step %d has a token of version %d (group %d, member %d)", b.Step, m.Sealed.MinVersion, x.Group, m.Index))
				}
			}
		}
		if !w.commit(ctx, s, g, b.Step) {
			return
		}
		steps--
	}
}

// commit proposes one step until there is an answer; false when the gang is lost.
func (w *workload) commit(ctx context.Context, s *client.Session, g *raftlog.JoinGangResult, step int64) bool {
	id := w.ids.Add(1)
	c := &raftlog.CommitStep{
		Run: runID, Epoch: g.Epoch, Fence: g.Fence, Step: step, Full: true,
		Manifest: fmt.Sprintf("sha256:version-%d-%d", step+1, id), Ledger: fmt.Sprintf("sha256:ledger-%d-%d", step, id),
	}
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		_, err := s.CommitStep(limit, c)
		cancel()
		switch w.judge("commit a step", err) {
		case ok:
			w.h.step(commit{Step: step, Manifest: c.Manifest, Epoch: g.Epoch})
			return true
		case refused:
			return false
		}
	}
	return false
}

func key(group uint64, index int32) string { return fmt.Sprintf("%s/%d/%d", runID, group, index) }

// rollout leases episodes, works a moment on each, and hands in what it still holds.
func (w *workload) rollout(ctx context.Context, r *rand.Rand) error {
	id := int(w.ids.Add(1))
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RoleRollout, Name: fmt.Sprint("r", id)})
	if err != nil {
		return err
	}
	defer leave(c, s)
	for ctx.Err() == nil {
		call := w.h.now()
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		g, err := s.LeaseEpisodes(limit, runID, 1+r.IntN(3))
		cancel()
		if w.judge("lease episodes", err); err != nil || len(g.Grants) == 0 {
			idle(ctx, s)
			continue
		}
		back := w.h.now()
		var work sync.WaitGroup
		for i, e := range g.Grants {
			id := int(w.ids.Add(1))
			w.h.add(op{Client: id, Key: key(e.Group, e.Index), Kind: opGrant, Attempt: e.Attempt, Fence: e.Fence, Answer: ok, Call: call, Return: back})
			r := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
			work.Go(func() { w.play(ctx, r, s, id, e, time.Duration(g.TtlNs), back) })
		}
		work.Wait()
		pause(ctx, r, 200*time.Millisecond)
	}
	return nil
}

// play is one episode. Once in a while the worker forgets it, or gives it back,
// or hands it in although it was told that the lease is lost.
func (w *workload) play(ctx context.Context, r *rand.Rand, s *client.Session, id int, e *raftlog.EpisodeGrant, ttl time.Duration, from time.Duration) {
	resource := lease.Episode(e.Run, e.Group, e.Index)
	lost := make(chan time.Duration, 1)
	s.Hold(lease.Token{
		Resource: resource, Holder: s.Node().Name, Incarnation: s.Node().Incarnation, Fence: lease.Fence(e.Fence), TTL: ttl,
	}, func() { lost <- w.h.now() })
	defer s.Drop(resource)
	most := 300 * time.Millisecond
	if r.IntN(100) == 0 {
		most = 6 * time.Second // longer than a renewal
	}
	pause(ctx, r, most)
	x := held{Key: key(e.Group, e.Index), Fence: e.Fence, From: from, End: "handed in"}
	select {
	case x.To = <-lost:
		x.End = "lost"
	default:
		x.To = w.h.now()
	}
	w.h.hold(x)
	if ctx.Err() != nil || r.IntN(300) == 0 {
		return // forgotten: the lease expires, or the worker's end takes it
	}
	o := op{Client: id, Key: x.Key, Kind: opSeal, Attempt: e.Attempt, Fence: e.Fence, Call: w.h.now()}
	limit, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	var res *raftlog.ItemsResult
	var err error
	if r.IntN(30) == 0 {
		o.Kind = opFail
		res, err = s.FailEpisodes(limit, runID, []*raftlog.FailItem{{Group: e.Group, Index: e.Index, Attempt: e.Attempt, Fence: e.Fence, Reason: "worker_lost", Message: "chaos"}})
	} else {
		o.Object = fmt.Sprintf("sha256:shard-%d", id)
		ref := &raftlog.RowRef{Object: o.Object, Rows: 1}
		res, err = s.SealEpisodes(limit, runID, []*raftlog.SealItem{{Group: e.Group, Index: e.Index, Attempt: e.Attempt, Fence: e.Fence, Sealed: &raftlog.Sealed{
			EndReason: "stop", MinVersion: e.Live, MaxVersion: e.Live, Tokens: 10, Steps: ref, Episode: ref, Turns: 1,
		}}})
	}
	w.record(o, "hand in an episode", res, err)
}

// record adds the end of an operation on one item.
func (w *workload) record(o op, what string, res *raftlog.ItemsResult, err error) {
	if o.Answer = w.judge(what, err); o.Answer == ok {
		o.Answer = item(res.Codes[0])
		if code := res.Codes[0]; code != raftlog.Code_CODE_OK && code != raftlog.Code_CODE_FENCED {
			w.fail(fmt.Errorf("%s: %s: %s", what, code, res.Messages[0]))
		}
	}
	o.Return = w.h.now()
	w.h.add(o)
}

func (w *workload) verifier(ctx context.Context, r *rand.Rand) error {
	id := int(w.ids.Add(1))
	c, s, err := w.session(ctx, client.SessionConfig{Role: state.RoleVerifier, Name: fmt.Sprint("v", id)})
	if err != nil {
		return err
	}
	defer leave(c, s)
	for ctx.Err() == nil {
		call := w.h.now()
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		g, err := s.LeaseJobs(limit, 1+r.IntN(3))
		cancel()
		if w.judge("lease jobs", err); err != nil || len(g.Grants) == 0 {
			idle(ctx, s)
			continue
		}
		back := w.h.now()
		for _, j := range g.Grants {
			w.h.add(op{Client: id, Key: key(j.Group, j.Index), Kind: opJob, Attempt: j.Attempt, Fence: j.Fence, Answer: ok, Call: call, Return: back})
			resource := lease.Verify(j.Run, j.Group, j.Index)
			s.Hold(lease.Token{
				Resource: resource, Holder: s.Node().Name, Incarnation: s.Node().Incarnation, Fence: lease.Fence(j.Fence), TTL: time.Duration(g.TtlNs),
			}, func() {})
		}
		for _, j := range g.Grants {
			w.verify(ctx, r, s, id, j)
			s.Drop(lease.Verify(j.Run, j.Group, j.Index))
		}
	}
	return nil
}

func (w *workload) verify(ctx context.Context, r *rand.Rand, s *client.Session, id int, j *raftlog.JobGrant) {
	if !pause(ctx, r, 60*time.Millisecond) || r.IntN(300) == 0 {
		return
	}
	limit, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	o := op{Client: id, Key: key(j.Group, j.Index), Kind: opSettle, Attempt: j.Attempt, Fence: j.Fence, Call: w.h.now()}
	var res *raftlog.ItemsResult
	var err error
	if r.IntN(30) == 0 {
		o.Kind = opFailJob
		res, err = s.FailJobs(limit, runID, []*raftlog.FailItem{{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Reason: "verifier_lost", Message: "chaos"}})
	} else {
		reward := float64(r.IntN(2))
		o.Object = fmt.Sprintf("sha256:verdict-%d", w.ids.Add(1))
		res, err = s.SettleJobs(limit, runID, []*raftlog.SettleItem{{
			Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: []string{"fail", "pass"}[int(reward)], Reward: &reward,
			VerdictRow: &raftlog.RowRef{Object: o.Object, Rows: 1},
		}})
	}
	w.record(o, "hand in a verdict", res, err)
}

// registers are the names that writers and readers meet at. They change, so
// that no history of one key grows long.
func (w *workload) registers() []string {
	age := int(w.h.now() / (30 * time.Second))
	return []string{fmt.Sprintf("x%d-0", age), fmt.Sprintf("x%d-1", age)}
}

// writer registers nodes under incarnations that rise, but not in order.
func (w *workload) writer(ctx context.Context, r *rand.Rand) error {
	c, err := w.dial("writer")
	if err != nil {
		return err
	}
	defer c.Close()
	id := int(w.ids.Add(1))
	labels := map[string]string{"ballast": strings.Repeat("x", 1<<10)} // so that the log grows
	for ctx.Err() == nil {
		n, name := w.number.Add(1), w.registers()[r.IntN(2)]
		if !pause(ctx, r, 400*time.Millisecond) {
			return nil
		}
		o := op{Client: id, Key: name, Kind: opRegister, Number: n, Call: w.h.now()}
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		res, err := c.Register(limit, &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: name, Incarnation: n}, Labels: labels})
		cancel()
		o.Answer, o.Fence, o.Return = w.judge("register", err), res.GetFence(), w.h.now()
		if o.Answer == unknown {
			id = int(w.ids.Add(1)) // the old one still has an operation on its way
		}
		w.h.add(o)
	}
	return nil
}

// reader reads linearizably what writers wrote.
func (w *workload) reader(ctx context.Context, r *rand.Rand) error {
	c, err := w.dial("reader")
	if err != nil {
		return err
	}
	defer c.Close()
	id := int(w.ids.Add(1))
	for ctx.Err() == nil {
		names := w.registers()
		call := w.h.now()
		limit, cancel := context.WithTimeout(ctx, opTimeout)
		v, err := c.View(limit, "", pb.Kind_KIND_NODE)
		cancel()
		back := w.h.now()
		if w.judge("read", err) == ok {
			for _, name := range names {
				o := op{Client: id, Key: name, Kind: opRead, Answer: ok, Call: call, Return: back}
				for _, rec := range v.Records {
					if n := rec.GetNode(); n != nil && n.Role == state.RoleHost && n.Name == name {
						o.Number, o.Fence = n.Incarnation, n.Fence
					}
				}
				w.h.add(o)
			}
		}
		pause(ctx, r, 200*time.Millisecond)
	}
	return nil
}
