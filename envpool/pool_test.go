package envpool_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tier is a runtime whose slots do nothing and fail on request.
type tier struct {
	mu       sync.Mutex // guards all below
	slots    []*fake
	states   map[envpool.SnapshotID]bool
	builds   int
	starts   int
	startErr error
	mountErr func(n int) error // of the n-th mount
	scrubErr error
	closeErr error
	building chan struct{} // not nil: builds wait for it
	mounts   int
	closed   bool
}

func (r *tier) Tier() string       { return "fake" }
func (r *tier) Advisory() []string { return []string{"all: nothing is enforced"} }

func (r *tier) Start(context.Context) (envpool.Slot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts++
	if r.startErr != nil {
		return nil, r.startErr
	}
	s := &fake{r: r, dead: make(chan struct{})}
	r.slots = append(r.slots, s)
	return s, nil
}

func (r *tier) Build(ctx context.Context, id envpool.SnapshotID, t envpool.Template) (int64, error) {
	r.mu.Lock()
	wait := r.building
	r.builds++
	r.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if t.Image == "bad" {
		return 0, envpool.ErrUnsupported
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[id] = true
	return 10, nil
}

func (r *tier) Drop(id envpool.SnapshotID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.states, id)
	return nil
}

func (r *tier) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.slots {
		if s.open() {
			return fmt.Errorf("slot %d is open", i)
		}
	}
	r.closed = true
	return nil
}

// set changes how the tier behaves.
func (r *tier) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *tier) made() []*fake {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*fake(nil), r.slots...)
}

// fake is a slot. A command named "hang" lasts until its context ends.
type fake struct {
	r    *tier
	once sync.Once
	dead chan struct{}
}

func (f *fake) open() bool {
	select {
	case <-f.dead:
		return false
	default:
		return true
	}
}

func (f *fake) die() { f.once.Do(func() { close(f.dead) }) }

func (f *fake) Mount(_ context.Context, u envpool.Use) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.r.mounts++
	if f.r.mountErr != nil {
		if err := f.r.mountErr(f.r.mounts); err != nil {
			return err
		}
	}
	if !f.r.states[u.Snapshot] {
		return envpool.ErrUnknown
	}
	return nil
}

func (f *fake) Exec(ctx context.Context, c envpool.Command) (envpool.Result, error) {
	if !f.open() {
		return envpool.Result{}, envpool.ErrEnvironment
	}
	if c.Argv[0] == "hang" {
		<-ctx.Done()
		return envpool.Result{}, ctx.Err()
	}
	return envpool.Result{Stdout: []byte(c.Dir + " " + c.Env["K"] + " " + c.Timeout.String())}, nil
}

func (f *fake) Write(context.Context, string, fs.FileMode, []byte) error { return nil }

func (f *fake) Read(context.Context, string, int64) ([]byte, error) { return []byte("x"), nil }

func (f *fake) Collect(context.Context, []string, int64) ([]envpool.File, error) { return nil, nil }

func (f *fake) Seal(_ context.Context, id envpool.SnapshotID) (int64, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.r.states[id] = true
	return 10, nil
}

func (f *fake) Scrub(context.Context) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	return f.r.scrubErr
}

func (f *fake) Dead() <-chan struct{} { return f.dead }

func (f *fake) Close(context.Context) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if f.r.closeErr != nil {
		return f.r.closeErr
	}
	f.die()
	return nil
}

// small is a host of two agents' slots and one verifier's.
func small(t *testing.T, change func(*envpool.Config)) (*envpool.Pool, *tier) {
	t.Helper()
	cfg := envpool.DefaultConfig()
	cfg.MaxAgents, cfg.MaxVerifiers, cfg.WarmLow, cfg.WarmHigh = 2, 1, 0, 3
	if change != nil {
		change(&cfg)
	}
	r := &tier{states: map[envpool.SnapshotID]bool{}}
	p, err := envpool.NewHost(context.Background(), cfg, r)
	require.NoError(t, err)
	return p, r
}

func closeHost(t *testing.T, p *envpool.Pool, r *tier) {
	t.Helper()
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, p.Close(context.Background()), "twice is no error")
	require.True(t, r.closed)
}

func prepare(t *testing.T, p *envpool.Pool, digest string) envpool.SnapshotID {
	t.Helper()
	id, err := p.Prepare(context.Background(), envpool.Template{Digest: policy.Digest(digest), Env: map[string]string{"K": "v"}})
	require.NoError(t, err)
	return id
}

func agent(name string, fence lease.Fence, id envpool.SnapshotID) envpool.Claim {
	return envpool.Claim{Lease: lease.Token{Resource: name, Fence: fence}, Snapshot: id, Quota: envpool.QuotaAgent}
}

func stats(t *testing.T, p *envpool.Pool) envpool.Stats {
	t.Helper()
	st, err := p.Stats(context.Background())
	require.NoError(t, err)
	return st
}

func TestClaimsAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		ctx := context.Background()
		id := prepare(t, p, "t")
		first, err := p.Claim(ctx, agent("a", 1, id))
		require.NoError(t, err)
		second, err := p.Claim(ctx, agent("b", 1, id))
		require.NoError(t, err)
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, name := range []string{"c", "d", "e"} {
			wg.Go(func() {
				h, err := p.Claim(ctx, agent(name, 1, id))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				if err := p.Release(ctx, h); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it stands in line
		}
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err = p.Claim(short, agent("late", 1, id))
		require.ErrorIs(t, err, envpool.ErrNoSlot)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		v := agent("v", 1, id)
		v.Quota = envpool.QuotaVerifier
		_, err = p.Claim(ctx, v)
		require.NoError(t, err, "the other quota is free")
		require.NoError(t, p.Release(ctx, first))
		wg.Wait()
		require.Equal(t, []string{"c", "d", "e"}, order)
		require.NoError(t, p.Release(ctx, second))
		require.LessOrEqual(t, len(r.made()), 3)
	})
}

func TestRevokeReachesAClaimThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxAgents = 1 })
		defer closeHost(t, p, r)
		ctx := context.Background()
		id := prepare(t, p, "t")
		_, err := p.Claim(ctx, agent("a", 1, id))
		require.NoError(t, err)
		failed := make(chan error, 1)
		go func() {
			_, err := p.Claim(ctx, agent("b", 7, id))
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, p.Revoke(ctx, "b", 7))
		require.ErrorIs(t, <-failed, lease.ErrFenced)
		require.Equal(t, 1, stats(t, p).Leased)
	})
}

func TestReleaseInterruptsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		ctx := context.Background()
		h, err := p.Claim(ctx, agent("a", 1, prepare(t, p, "t")))
		require.NoError(t, err)
		failed := make(chan error, 2)
		for range 2 { // one runs, one waits its turn
			go func() {
				_, err := p.Exec(ctx, h, envpool.Command{Argv: []string{"hang"}})
				failed <- err
			}()
		}
		synctest.Wait()
		require.NoError(t, p.Release(ctx, h))
		require.ErrorIs(t, <-failed, envpool.ErrUnknown)
		require.ErrorIs(t, <-failed, envpool.ErrUnknown)
		require.EqualValues(t, 1, stats(t, p).Resets)
	})
}

func TestDefaultsReachTheSlot(t *testing.T) {
	p, r := small(t, nil)
	defer closeHost(t, p, r)
	c := agent("a", 1, prepare(t, p, "t"))
	c.Limits.Wall = 5 * time.Second
	h, err := p.Claim(context.Background(), c)
	require.NoError(t, err)
	res, err := p.Exec(context.Background(), h, envpool.Command{Argv: []string{"x"}})
	require.NoError(t, err)
	require.Equal(t, "/app v 5s", string(res.Stdout))
	res, err = p.Exec(context.Background(), h, envpool.Command{Argv: []string{"x"}, Dir: "sub", Timeout: time.Second, Env: map[string]string{"K": "mine"}})
	require.NoError(t, err)
	require.Equal(t, "/app/sub mine 1s", string(res.Stdout))
}

func TestSlotsThatFail(t *testing.T) {
	ctx := context.Background()
	// A host without sandboxes would else quarantine every task that it is asked for.
	t.Run("a start that fails is the host's, not its claim's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, r := small(t, nil)
			defer closeHost(t, p, r)
			id := prepare(t, p, "t")
			r.set(func() { r.startErr = fmt.Errorf("bwrap says no: %w", envpool.ErrEnvironment) })
			for i := range 5 { // and takes no place
				_, err := p.Claim(ctx, agent(fmt.Sprint(i), 1, id))
				require.ErrorIs(t, err, envpool.ErrNoSlot)
				require.NotErrorIs(t, err, envpool.ErrEnvironment)
				require.ErrorContains(t, err, "bwrap says no")
			}
			r.set(func() { r.startErr = nil })
			_, err := p.Claim(ctx, agent("0", 1, id))
			require.NoError(t, err, "the same lease may try again")
		})
	})
	t.Run("a start that fails is tried again, ever less often", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, r := small(t, nil)
			defer closeHost(t, p, r)
			id := prepare(t, p, "t")
			r.set(func() { r.startErr = envpool.ErrEnvironment })
			claimed := make(chan error, 1)
			go func() {
				_, err := p.Claim(ctx, agent("a", 1, id))
				claimed <- err
			}()
			time.Sleep(2 * time.Second)
			r.set(func() { r.startErr = nil; require.Less(t, r.starts, 10) })
			require.NoError(t, <-claimed)
		})
	})
	t.Run("a slot that dies while it is prepared is replaced", func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		id := prepare(t, p, "t")
		r.set(func() {
			r.mountErr = func(n int) error {
				if n < 3 {
					return envpool.ErrEnvironment
				}
				return nil
			}
		})
		_, err := p.Claim(ctx, agent("a", 1, id))
		require.NoError(t, err)
		require.EqualValues(t, 2, stats(t, p).Destroyed)
	})
	t.Run("slots that all die while they are prepared are the host's fault, not their claim's", func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		id := prepare(t, p, "t")
		r.set(func() {
			r.mountErr = func(int) error { return fmt.Errorf("set limits: %w", envpool.ErrEnvironment) }
		})
		for i := range 5 { // and take no place
			_, err := p.Claim(ctx, agent(fmt.Sprint(i), 1, id))
			require.ErrorIs(t, err, envpool.ErrNoSlot)
			require.NotErrorIs(t, err, envpool.ErrEnvironment)
			require.ErrorContains(t, err, "set limits")
		}
		require.Zero(t, stats(t, p).Leased)
		r.set(func() { r.mountErr = nil })
		_, err := p.Claim(ctx, agent("0", 1, id))
		require.NoError(t, err, "the same lease may try again")
	})
	t.Run("without proof of reset a slot is destroyed", func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		h, err := p.Claim(ctx, agent("a", 1, prepare(t, p, "t")))
		require.NoError(t, err)
		r.set(func() { r.scrubErr = errors.New("something is left") })
		require.NoError(t, p.Release(ctx, h))
		st := stats(t, p)
		require.EqualValues(t, 1, st.Destroyed)
		require.Zero(t, st.Warm+st.Leased+st.Quarantined)
	})
	t.Run("what cannot be destroyed is quarantined, and its quota is free again", func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxAgents = 1 })
		h, err := p.Claim(ctx, agent("a", 1, prepare(t, p, "t")))
		require.NoError(t, err)
		r.set(func() { r.scrubErr, r.closeErr = errors.New("left"), errors.New("stuck") })
		require.NoError(t, p.Release(ctx, h))
		require.Equal(t, 1, stats(t, p).Quarantined)
		r.set(func() { r.scrubErr = nil })
		_, err = p.Claim(ctx, agent("b", 1, "t"))
		require.NoError(t, err)
		require.ErrorContains(t, p.Close(ctx), "stuck", "Close says what is left")
	})
	t.Run("a warm slot that died is replaced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, r := small(t, func(c *envpool.Config) { c.WarmLow = 2 })
			defer closeHost(t, p, r)
			synctest.Wait()
			require.Equal(t, 2, stats(t, p).Warm)
			r.made()[0].die()
			synctest.Wait()
			require.Equal(t, 2, stats(t, p).Warm)
			require.EqualValues(t, 1, stats(t, p).Destroyed)
			require.Len(t, r.made(), 3)
		})
	})
	t.Run("starting ahead backs off and recovers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, r := small(t, func(c *envpool.Config) { c.WarmLow = 1 })
			defer closeHost(t, p, r)
			synctest.Wait()
			r.set(func() { r.startErr = errors.New("no") })
			r.made()[0].die()
			time.Sleep(time.Hour)
			require.Zero(t, stats(t, p).Warm)
			r.set(func() { r.startErr = nil })
			time.Sleep(time.Minute)
			require.Equal(t, 1, stats(t, p).Warm)
		})
	})
}

func TestWarmWatermarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxAgents, c.WarmLow, c.WarmHigh = 8, 2, 3 })
		defer closeHost(t, p, r)
		ctx := context.Background()
		id := prepare(t, p, "t")
		synctest.Wait()
		require.Equal(t, 2, stats(t, p).Warm)
		var hs []envpool.Handle
		for i := range 8 {
			h, err := p.Claim(ctx, agent(fmt.Sprint(i), 1, id))
			require.NoError(t, err)
			hs = append(hs, h)
		}
		synctest.Wait()
		require.LessOrEqual(t, len(r.made()), 9, "the quotas bound what is made ahead, too")
		for _, h := range hs {
			require.NoError(t, p.Release(ctx, h))
		}
		synctest.Wait()
		require.Equal(t, 3, stats(t, p).Warm)
	})
}

func TestTemplates(t *testing.T) {
	ctx := context.Background()
	t.Run("one build for all who ask, whoever gives up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, r := small(t, nil)
			defer closeHost(t, p, r)
			r.set(func() { r.building = make(chan struct{}) })
			hasty, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			for i := range 5 {
				wg.Go(func() {
					c := ctx
					if i == 0 {
						c = hasty
					}
					_, err := p.Prepare(c, envpool.Template{Digest: "t"})
					if (i == 0) != errors.Is(err, context.Canceled) {
						t.Error(i, err)
					}
				})
				synctest.Wait()
			}
			cancel()
			synctest.Wait()
			close(r.building)
			wg.Wait()
			require.Equal(t, 1, r.builds)
		})
	})
	t.Run("a failed build is forgotten", func(t *testing.T) {
		p, r := small(t, nil)
		defer closeHost(t, p, r)
		for range 2 {
			_, err := p.Prepare(ctx, envpool.Template{Digest: "t", Image: "bad"})
			require.ErrorIs(t, err, envpool.ErrUnsupported)
		}
		require.Equal(t, 2, r.builds)
		prepare(t, p, "t")
	})
	t.Run("the least recently used go, those in use stay", func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxTemplates = 3 })
		defer closeHost(t, p, r)
		h, err := p.Claim(ctx, agent("a", 1, prepare(t, p, "used")))
		require.NoError(t, err)
		for _, d := range []string{"1", "2", "1", "3"} {
			prepare(t, p, d)
		}
		require.Equal(t, map[envpool.SnapshotID]bool{"used": true, "1": true, "3": true}, r.states)
		sn, err := p.Snapshot(ctx, h)
		require.NoError(t, err)
		require.Equal(t, map[envpool.SnapshotID]bool{"used": true, sn: true, "3": true}, r.states)
		require.NoError(t, p.Release(ctx, h))
		prepare(t, p, "4")
		require.NotContains(t, r.states, envpool.SnapshotID("used"))
		_, err = p.Claim(ctx, agent("b", 1, "used"))
		require.ErrorIs(t, err, envpool.ErrUnknown)
	})
	t.Run("bytes are bounded, too", func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxTemplateBytes = 25 })
		defer closeHost(t, p, r)
		for _, d := range []string{"1", "2", "3"} {
			prepare(t, p, d)
		}
		require.Equal(t, map[envpool.SnapshotID]bool{"2": true, "3": true}, r.states)
	})
}

func TestFencesAreRemembered(t *testing.T) {
	p, r := small(t, func(c *envpool.Config) { c.RememberFences = 2 })
	defer closeHost(t, p, r)
	ctx := context.Background()
	id := prepare(t, p, "t")
	for _, name := range []string{"a", "b", "c"} {
		h, err := p.Claim(ctx, agent(name, 5, id))
		require.NoError(t, err)
		require.NoError(t, p.Release(ctx, h))
	}
	for _, name := range []string{"b", "c"} {
		_, err := p.Claim(ctx, agent(name, 5, id))
		require.ErrorIs(t, err, envpool.ErrUnknown, name)
		_, err = p.Claim(ctx, agent(name, 4, id))
		require.ErrorIs(t, err, lease.ErrFenced, name)
	}
	_, err := p.Claim(ctx, agent("a", 1, id)) // forgotten: the bound on memory comes first
	require.NoError(t, err)
}

func TestCloseEndsWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := small(t, func(c *envpool.Config) { c.MaxAgents = 1 })
		ctx := context.Background()
		id := prepare(t, p, "t")
		h, err := p.Claim(ctx, agent("a", 1, id))
		require.NoError(t, err)
		failed := make(chan error, 2)
		go func() {
			_, err := p.Exec(ctx, h, envpool.Command{Argv: []string{"hang"}})
			failed <- err
		}()
		go func() {
			_, err := p.Claim(ctx, agent("b", 1, id))
			failed <- err
		}()
		synctest.Wait()
		closeHost(t, p, r)
		for range 2 {
			require.ErrorIs(t, <-failed, envpool.ErrUnknown)
		}
		_, err = p.Claim(ctx, agent("c", 1, id))
		require.ErrorIs(t, err, envpool.ErrNoSlot)
		_, err = p.Prepare(ctx, envpool.Template{Digest: "x"})
		require.ErrorIs(t, err, envpool.ErrNoSlot)
	})
}

func TestConfigNamesEveryFault(t *testing.T) {
	require.NoError(t, envpool.DefaultConfig().Validate())
	c := envpool.DefaultConfig()
	c.MaxAgents, c.WarmLow, c.MaxTemplates, c.Limits.Pids = -1, 99, 0, 0
	err := c.Validate()
	for _, want := range []string{"MaxAgents -1", "WarmLow 99", "MaxTemplates 0", "every default limit"} {
		require.ErrorContains(t, err, want)
	}
	_, err = envpool.NewHost(context.Background(), c, nil)
	require.Error(t, err)
}
