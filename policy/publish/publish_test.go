package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var probes = [][]int32{{1, 2, 3}, {4, 5, 6, 7}}

// fakeEngine scores token t of version v as −(1 + v·step) + shift.
type fakeEngine struct {
	mu     sync.Mutex // guards what follows
	staged map[policy.Version]bool
	live   policy.Version
	flips  int

	step, shift float32
	bad         float32 // added to every score: NaN makes bad weights
	stageErr    error
	scoreErr    error
	hangStage   bool
	hangFlip    bool
	onStaged    func()
}

func newEngine(live policy.Version) *fakeEngine {
	return &fakeEngine{staged: map[policy.Version]bool{live: true}, live: live, step: 0.01}
}

func (e *fakeEngine) Generate(context.Context, engine.Request) (engine.Response, error) {
	return engine.Response{}, engine.ErrClosed
}

func (e *fakeEngine) Stage(ctx context.Context, v policy.Version, _ policy.Digest) error {
	if e.hangStage {
		<-ctx.Done()
		return ctx.Err()
	}
	if e.stageErr != nil {
		return e.stageErr
	}
	e.mu.Lock()
	e.staged[v] = true
	e.mu.Unlock()
	if e.onStaged != nil {
		e.onStaged()
	}
	return nil
}

func (e *fakeEngine) Score(_ context.Context, v policy.Version, prompts [][]int32) ([][]float32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.scoreErr != nil {
		return nil, e.scoreErr
	}
	if !e.staged[v] {
		return nil, engine.ErrVersion
	}
	out := make([][]float32, len(prompts))
	for i, p := range prompts {
		for range p[1:] {
			out[i] = append(out[i], -(1+float32(v)*e.step)+e.shift+e.bad)
		}
	}
	return out, nil
}

func (e *fakeEngine) Flip(ctx context.Context, v policy.Version) error {
	if e.hangFlip {
		<-ctx.Done()
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.staged[v] {
		return engine.ErrVersion
	}
	e.live, e.flips = v, e.flips+1
	return nil
}

func (e *fakeEngine) Serving(context.Context) (policy.Version, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live, e.live >= 0, nil
}

// fakeCoordinator hands out grants until they are used up, and then ends the
// publisher; a grant that was not finished is handed out again, as after an
// expired lease.
type fakeCoordinator struct {
	mu       sync.Mutex // guards what follows
	grants   []*raftlog.LeasePublishResult
	tries    int
	maxTries int
	done     context.CancelFunc
	lost     func()
	held     map[string]lease.Token
	finished []*raftlog.FinishPublish
	errs     []error // what the first calls for a lease are answered with
}

func (c *fakeCoordinator) Node() *raftlog.NodeRef {
	return &raftlog.NodeRef{Role: "publisher", Name: "p0", Incarnation: 1}
}

func (c *fakeCoordinator) LeasePublish(context.Context, string) (*raftlog.LeasePublishResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) > 0 {
		err := c.errs[0]
		c.errs = c.errs[1:]
		return nil, err
	}
	if len(c.grants) == 0 || c.tries == c.maxTries {
		c.done()
		return &raftlog.LeasePublishResult{WaitsFor: "a committed version"}, nil
	}
	c.tries++
	g := c.grants[0]
	g.Fence = uint64(c.tries)
	return g, nil
}

func (c *fakeCoordinator) FinishPublish(_ context.Context, f *raftlog.FinishPublish) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.held[lease.Publish(f.Run)]; !ok || uint64(t.Fence) != f.Fence {
		return lease.ErrFenced
	}
	c.finished = append(c.finished, f)
	c.grants = c.grants[1:]
	return nil
}

func (c *fakeCoordinator) Hold(t lease.Token, lost func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[t.Resource], c.lost = t, lost
}

func (c *fakeCoordinator) Drop(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, resource)
}

func (c *fakeCoordinator) Waits(string, string) {}

func (c *fakeCoordinator) Changed() <-chan struct{} { return make(chan struct{}) }

func (c *fakeCoordinator) lose() {
	c.mu.Lock()
	lost := c.lost
	delete(c.held, lease.Publish("r"))
	c.mu.Unlock()
	lost()
}

func grant(live, version int64, engines int) *raftlog.LeasePublishResult {
	g := &raftlog.LeasePublishResult{Ready: true, Run: "r", Live: live, Version: version, Manifest: "sha256:0", TtlNs: int64(10 * time.Second)}
	for i := range engines {
		g.Engines = append(g.Engines, &raftlog.Node{Role: "engine", Name: fmt.Sprintf("e%d", i)})
	}
	return g
}

// publishAll runs a publisher over the grants in a bubble; each grant is tried up to three times.
func publishAll(t *testing.T, engines []*fakeEngine, grants []*raftlog.LeasePublishResult, prepare func(*fakeCoordinator)) (*fakeCoordinator, error) {
	t.Helper()
	c := &fakeCoordinator{grants: grants, maxTries: 3 * len(grants), held: map[string]lease.Token{}}
	if prepare != nil {
		prepare(c)
	}
	var err error
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c.done = cancel
		cfg := DefaultConfig()
		cfg.Probes = probes
		byName := map[string]*fakeEngine{}
		for i, e := range engines {
			byName[fmt.Sprintf("e%d", i)] = e
		}
		p, perr := New(cfg, Deps{
			Coordinator: c, Log: slog.New(slog.DiscardHandler),
			Engine: func(n *raftlog.Node) (engine.Engine, error) {
				if e := byName[n.Name]; e != nil {
					return e, nil
				}
				return nil, errors.New("no route")
			},
		})
		require.NoError(t, perr)
		err = p.Run(ctx)
	})
	require.Empty(t, c.held, "a publisher lets go of every lease")
	return c, err
}

func TestPublishesOnEveryEngine(t *testing.T) {
	e := []*fakeEngine{newEngine(-1), newEngine(-1)}
	c, err := publishAll(t, e, []*raftlog.LeasePublishResult{grant(-1, 0, 2), grant(0, 1, 2), grant(1, 4, 2)}, nil)
	require.NoError(t, err)
	require.Len(t, c.finished, 3)
	for i, v := range []int64{0, 1, 4} {
		require.True(t, c.finished[i].Accepted)
		require.Equal(t, v, c.finished[i].Version)
		require.Equal(t, []string{"e0", "e1"}, c.finished[i].Served)
	}
	require.Equal(t, policy.Version(4), e[0].live)
}

func TestRejects(t *testing.T) {
	cases := []struct {
		name   string
		change func(a, b *fakeEngine)
		reason string
		tries  int
	}{
		{"weights that are not numbers", func(a, b *fakeEngine) { a.bad, b.bad = float32(math.NaN()), float32(math.NaN()) }, "engine e0: log-probability of probe 0 token 1 is not finite", 1},
		{"infinite log-probabilities", func(_, b *fakeEngine) { b.bad = float32(math.Inf(-1)) }, "engine e1: log-probability of probe 0 token 1 is not finite", 1},
		{"engines that disagree", func(_, b *fakeEngine) { b.shift = -0.01 }, "engines e0 and e1 differ", 1},
		{"a wild jump", func(a, b *fakeEngine) { a.step, b.step = 2, 2 }, "probes moved by 2 nats per version from version 1, and the limit is 1.5", 1},
		{"weights that no engine can load", func(a, b *fakeEngine) { a.stageErr, b.stageErr = engine.ErrVersion, engine.ErrVersion }, "no engine can load it, tried 3 times", 3},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			a, b := newEngine(1), newEngine(1)
			tc.change(a, b)
			c, err := publishAll(t, []*fakeEngine{a, b}, []*raftlog.LeasePublishResult{grant(1, 2, 2)}, nil)
			require.NoError(t, err)
			require.Len(t, c.finished, 1)
			require.False(t, c.finished[0].Accepted)
			require.Contains(t, c.finished[0].Reason, tc.reason)
			require.Equal(t, tc.tries, c.tries)
			require.Zero(t, a.flips+b.flips, "a rejected version is served by nobody")
		})
	}
}

func TestLeavesOutWhatDoesNotAnswer(t *testing.T) {
	cases := []struct {
		name   string
		change func(*fakeEngine)
	}{
		{"at stage", func(e *fakeEngine) { e.hangStage = true }},
		{"at probe", func(e *fakeEngine) { e.scoreErr = engine.ErrClosed }},
		{"at flip", func(e *fakeEngine) { e.hangFlip = true }},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			slow, good := newEngine(1), newEngine(1)
			tc.change(slow)
			c, err := publishAll(t, []*fakeEngine{slow, good}, []*raftlog.LeasePublishResult{grant(1, 2, 2)}, nil)
			require.NoError(t, err)
			require.Len(t, c.finished, 1)
			require.True(t, c.finished[0].Accepted)
			require.Equal(t, []string{"e1"}, c.finished[0].Served)
			require.Equal(t, policy.Version(1), slow.live)
		})
	}
	t.Run("at dial", func(t *testing.T) {
		c, err := publishAll(t, []*fakeEngine{newEngine(1)}, []*raftlog.LeasePublishResult{grant(1, 2, 2)}, nil)
		require.NoError(t, err)
		require.Len(t, c.finished, 1)
		require.Equal(t, []string{"e0"}, c.finished[0].Served)
	})
}

// Trouble of the platform is tried again and never becomes a rejection.
func TestSilentFleetIsNotARejection(t *testing.T) {
	for name, change := range map[string]func(*fakeEngine){
		"stage": func(e *fakeEngine) { e.hangStage = true },
		"probe": func(e *fakeEngine) { e.scoreErr = engine.ErrClosed },
		"flip":  func(e *fakeEngine) { e.hangFlip = true },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(1)
			change(e)
			c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(1, 2, 1)}, nil)
			require.NoError(t, err)
			require.Empty(t, c.finished)
			require.Equal(t, 3, c.tries)
			require.Zero(t, e.flips)
		})
	}
}

func TestLostLeaseFlipsNothing(t *testing.T) {
	e := newEngine(1)
	c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(1, 2, 1)}, func(c *fakeCoordinator) {
		c.maxTries = 1
		e.onStaged = c.lose
	})
	require.NoError(t, err)
	require.Empty(t, c.finished)
	require.Zero(t, e.flips)
	require.Equal(t, policy.Version(1), e.live)
}

// A step of the policy that was accepted raises what later ones are measured by.
func TestCalibrationRises(t *testing.T) {
	e := newEngine(-1)
	e.step = 1.2 // 1.2 nats per version: above the floor, below three times it
	c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(-1, 0, 1), grant(0, 1, 1), grant(1, 2, 1)}, func(c *fakeCoordinator) {
		seen := 0
		e.onStaged = func() {
			if seen++; seen == 3 {
				e.mu.Lock()
				e.shift = -2 // a step of 3.2 nats: refused by the floor, below 3 × 1.2
				e.mu.Unlock()
			}
		}
	})
	require.NoError(t, err)
	require.Len(t, c.finished, 3)
	require.True(t, c.finished[2].Accepted, c.finished[2].Reason)
}

func TestRestartedPublisherAsksTheEngines(t *testing.T) {
	e := newEngine(3)
	e.step = 2
	c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(3, 4, 1)}, nil)
	require.NoError(t, err)
	require.Contains(t, c.finished[0].Reason, "from version 3", "compared with what the engine serves")

	fresh := newEngine(-1) // restarted too: nothing to compare with
	fresh.step = 2
	c, err = publishAll(t, []*fakeEngine{fresh}, []*raftlog.LeasePublishResult{grant(3, 4, 1)}, nil)
	require.NoError(t, err)
	require.True(t, c.finished[0].Accepted)
}

func TestProbesThatDoNotFitEndThePublisher(t *testing.T) {
	e := newEngine(0)
	e.scoreErr = fmt.Errorf("engine: %w", engine.ErrTooLong)
	c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(0, 1, 1)}, nil)
	require.ErrorIs(t, err, errProbes)
	require.Empty(t, c.finished)
}

func TestCoordinatorIsAway(t *testing.T) {
	e := newEngine(0)
	c, err := publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(0, 1, 1)}, func(c *fakeCoordinator) {
		c.errs = []error{client.ErrUnavailable, lease.ErrFenced}
	})
	require.NoError(t, err)
	require.Len(t, c.finished, 1)

	_, err = publishAll(t, []*fakeEngine{e}, []*raftlog.LeasePublishResult{grant(0, 1, 1)}, func(c *fakeCoordinator) {
		c.errs = []error{client.ErrNotFound}
	})
	require.ErrorIs(t, err, client.ErrNotFound)
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	c := DefaultConfig()
	c.Probes = [][]int32{{1}}
	require.ErrorContains(t, c.Validate(), "probe 0 has 1 tokens")
	c = DefaultConfig()
	c.MaxMeanDiff = 0
	require.Error(t, c.Validate())
}
