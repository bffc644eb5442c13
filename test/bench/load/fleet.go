package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Fleet is a run that never lacks episodes, with a host, an engine and rollout
// workers that exist in the coordinator's books only: what is granted is the
// coordinator's work, and nobody plays it.
type Fleet struct {
	clients []*client.Client
	run     string
	host    *raftlog.NodeRef
	engine  *raftlog.NodeRef
	workers []*raftlog.NodeRef // one for each client

	stop context.CancelFunc
	work sync.WaitGroup
}

// NewFleet creates a run of this name and brings its version 0 live. The
// clients belong to the caller; each is one connection, with a few lanes more than it
// has callers.
func NewFleet(ctx context.Context, run string, clients []*client.Client) (*Fleet, error) {
	incarnation := uint64(time.Now().UnixNano())
	ref := func(role, name string) *raftlog.NodeRef {
		return &raftlog.NodeRef{Role: role, Name: run + "-" + name, Incarnation: incarnation}
	}
	f := &Fleet{clients: clients, run: run, host: ref(state.RoleHost, "host"), engine: ref(state.RoleEngine, "engine")}
	for i := range clients {
		f.workers = append(f.workers, ref(state.RoleRollout, fmt.Sprint("w", i)))
	}
	if err := f.begin(ctx, ref(state.RolePublisher, "publisher")); err != nil {
		return nil, fmt.Errorf("load: begin run %s: %w", run, err)
	}
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	f.work.Go(func() { f.renew(base) })
	return f, nil
}

func (f *Fleet) begin(ctx context.Context, publisher *raftlog.NodeRef) error {
	c := f.clients[0]
	for _, ref := range append([]*raftlog.NodeRef{f.host, f.engine, publisher}, f.workers...) {
		if _, err := c.Register(ctx, &raftlog.Register{Node: ref, Agents: math.MaxInt32, Verifiers: math.MaxInt32}); err != nil {
			return err
		}
	}
	tasks := make([]*raftlog.TaskRef, 64)
	for i := range tasks {
		tasks[i] = &raftlog.TaskRef{Id: fmt.Sprint("t", i), Digest: "sha256:0"}
	}
	if _, err := c.CreateRun(ctx, &raftlog.CreateRun{Id: f.run, SpecDigest: "sha256:0", Manifest: "sha256:0", Config: &raftlog.RunConfig{
		Seed: 1, Steps: 1 << 20, LagMax: 1 << 20, GroupsPerStep: 1 << 10, PublishEvery: 1, Concurrency: math.MaxInt32,
		Envs: []*raftlog.EnvConfig{{Name: "env", Weight: 1, GroupSize: 16, Tasks: tasks, MaxAttempts: 3, ShortGroup: "replace", VerifyRetries: 3}},
	}}); err != nil {
		return err
	}
	p, err := c.LeasePublish(ctx, &raftlog.LeasePublish{Node: publisher, Run: f.run})
	if err != nil {
		return err
	}
	if !p.Ready {
		return fmt.Errorf("version 0 cannot be published: it waits for %s", p.WaitsFor)
	}
	if err := c.FinishPublish(ctx, &raftlog.FinishPublish{Node: publisher, Run: f.run, Fence: p.Fence, Accepted: true, Served: []string{f.engine.Name}}); err != nil {
		return err
	}
	return c.Deregister(ctx, publisher)
}

// renew keeps the nodes registered. What is granted is not renewed: a
// measurement ends before a lease does.
func (f *Fleet) renew(ctx context.Context) {
	every := time.NewTicker(2 * time.Second)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		var beats sync.WaitGroup
		for i, ref := range append(f.workers, f.host, f.engine) {
			beats.Go(func() { // one that fails is tried again, and a grant says what is wrong
				_, _ = f.clients[i%len(f.clients)].Heartbeat(ctx, &raftlog.Heartbeat{Node: ref, Patient: true})
			})
		}
		beats.Wait()
	}
}

// Grant leases n episodes through the connection of this number and returns how many it got.
func (f *Fleet) Grant(ctx context.Context, connection, n int) (int, error) {
	res, err := f.clients[connection].LeaseEpisodes(ctx, &raftlog.LeaseEpisodes{Node: f.workers[connection], Run: f.run, Count: int32(n)})
	if err != nil {
		return 0, err
	}
	if len(res.Grants) != n {
		return 0, fmt.Errorf("%d of %d episodes were granted: the run waits for %s", len(res.Grants), n, res.WaitsFor)
	}
	return n, nil
}

// Close ends the run and its nodes.
func (f *Fleet) Close(ctx context.Context) error {
	f.stop()
	f.work.Wait()
	c := f.clients[0]
	errs := []error{c.ControlRun(ctx, f.run, "cancel", "the measurement is over")} // first: its leases need not be given back one by one
	for _, ref := range append([]*raftlog.NodeRef{f.host, f.engine}, f.workers...) {
		errs = append(errs, c.Deregister(ctx, ref))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("load: end run %s: %w", f.run, err)
	}
	return nil
}
