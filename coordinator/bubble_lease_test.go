package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// The reports of class D: leases of real sessions, over gRPC, on a cluster in a bubble.

const ttl = time.Duration(state.LeaseTTL)

// fleet is a number of hosts and a trainer that holds a gang, all of them well.
type fleet struct {
	b        *bubble
	client   *client.Client
	sessions []*client.Session
	refs     []*raftlog.NodeRef // as they registered
	gang     uint64             // fence
	lost     atomic.Int32       // times that the trainer was told that its lease is lost
}

func (b *bubble) dial(name string) *client.Client {
	b.t.Helper()
	cfg := client.DefaultConfig(name)
	cfg.Dial = b.rpc.dial()
	for _, m := range b.members {
		cfg.Addresses = append(cfg.Addresses, m.rpc)
	}
	c, err := client.New(b.t.Context(), cfg)
	require.NoError(b.t, err)
	return c
}

func (b *bubble) fleet(hosts int) *fleet {
	b.t.Helper()
	f := &fleet{b: b, client: b.dial("fleet")}
	join := func(cfg client.SessionConfig) *client.Session {
		cfg.Logger = slog.New(slog.DiscardHandler)
		s, err := f.client.NewSession(b.t.Context(), cfg)
		require.NoError(b.t, err)
		f.sessions, f.refs = append(f.sessions, s), append(f.refs, s.Node())
		return s
	}
	for i := range hosts {
		join(client.SessionConfig{Role: state.RoleHost, Name: fmt.Sprint("h", i), Agents: 1})
	}
	trainer := join(client.SessionConfig{Role: state.RoleTrainer, Name: "t", Run: "r"})
	_, err := f.client.CreateRun(b.t.Context(), createRun("r").GetCreateRun())
	require.NoError(b.t, err)
	g, err := trainer.JoinGang(b.t.Context(), "r")
	require.NoError(b.t, err)
	f.gang = g.Fence
	trainer.Hold(lease.Token{Resource: lease.Gang("r"), Fence: lease.Fence(g.Fence), TTL: ttl}, func() { f.lost.Add(1) })
	return f
}

// well checks that nobody was given up: an incarnation only rises when the coordinator ended the one before.
func (f *fleet) well() {
	f.b.t.Helper()
	s := f.b.see(10 * time.Second)
	nodes := map[string]*raftlog.Node{}
	for _, n := range s.Nodes() {
		nodes[n.Role+"/"+n.Name] = n
	}
	for i, r := range f.refs {
		n := nodes[r.Role+"/"+r.Name]
		require.Equal(f.b.t, raftlog.NodeState_NODE_STATE_READY, n.State, "%s was given up", r.Name)
		require.Equal(f.b.t, r.Incarnation, f.sessions[i].Node().Incarnation, "%s had to register again", r.Name)
	}
	if f.lost.Load() == 0 { // a holder that stopped by its own clock does not renew what it held
		require.Equal(f.b.t, f.gang, s.Gang("r").GetLease().GetFence(), "the gang's lease ended")
	}
}

func (f *fleet) close() {
	var errs []error
	for _, s := range f.sessions {
		errs = append(errs, s.Close(f.b.t.Context()))
	}
	errs = append(errs, f.client.Close())
	if !f.b.t.Failed() { // in a cluster that is left broken nobody signs off
		require.NoError(f.b.t, errors.Join(errs...))
	}
}

// A disk that does not answer for two TTLs: the leader's, those of a majority,
// the only one. Renewals cannot be committed meanwhile, and no lease of a holder that is well may end.
func TestEtcd15247_StuckDisk(t *testing.T) {
	for name, c := range map[string]struct {
		nodes int
		stuck func(b *bubble) []*member
	}{
		"leader":          {3, func(b *bubble) []*member { return []*member{b.leader()} }},
		"majority":        {3, func(b *bubble) []*member { return b.others(b.leader()) }},
		"all":             {3, func(b *bubble) []*member { return b.members }},
		"the only node":   {1, func(b *bubble) []*member { return b.members }},
		"leader and next": {5, func(b *bubble) []*member { return []*member{b.leader(), b.others(b.leader())[0]} }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.nodes, nil, func(t *testing.T, b *bubble) {
				f := b.fleet(10)
				defer f.close()
				time.Sleep(3 * ttl) // beyond the grace of the first election
				for range 3 {
					stuck := c.stuck(b)
					for _, m := range stuck {
						m.log.stick()
					}
					time.Sleep(2 * ttl)
					for _, m := range stuck {
						m.log.disk(nil)
					}
					time.Sleep(ttl)
					f.well()
					time.Sleep(2 * ttl)
				}
			})
		})
	}
}

// Leaders die one after the other, faster than their leases: nobody who is well loses anything.
func TestNomad3840_FailoverExpiresNothing(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		f := b.fleet(20)
		defer f.close()
		for i := range 12 {
			time.Sleep(time.Duration(i) * ttl / 4)
			old := b.leader()
			killed, before := time.Now(), f.lost.Load()
			old.kill()
			b.leader()
			took := time.Since(killed)
			f.well()
			old.start()
			if took < ttl/2 { // votes may split several times: a holder stops by its own clock then
				require.Equal(t, before, f.lost.Load(), "an election of %s is shorter than a TTL: holders go on", took)
			}
		}
	})
}

// After a change of leader every holder has a grace in which to find the new
// one; those that are dead are given up after it.
func TestNomad4666_GraceAfterFailover(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		c := b.caller("c")
		c.must(time.Second, registerOp("dead"))
		time.Sleep(ttl * 8 / 10)
		b.leader().kill()
		at := b.leader()
		began := time.Now()
		b.recover()
		gone := func() bool {
			s, _ := at.running().Stale()
			return s.Nodes()[0].State == raftlog.NodeState_NODE_STATE_FENCED
		}
		time.Sleep(2*ttl - time.Second)
		require.False(t, gone(), "within the grace")
		b.until(2*ttl, "it is given up", gone)
		require.Less(t, time.Since(began), 3*ttl+time.Second, "log time begins at the last entry, the grace at the first of the new term")
	})
}

// A majority is away for longer than the TTL. Nothing is decided meanwhile, and nothing has expired afterwards.
func TestNomad3840_OutageExpiresNothing(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		f := b.fleet(5)
		defer f.close()
		for range 3 {
			for _, m := range b.members[1:] {
				m.kill()
			}
			time.Sleep(5 * ttl)
			b.recover()
			b.leader()
			time.Sleep(ttl)
			f.well()
		}
		require.Positive(t, f.lost.Load(), "a holder stops by its own clock when it cannot renew")
	})
}

// An election takes less than a TTL: the holder's clock does not run out.
func TestConsul912_ElectionShorterThanTTL(t *testing.T) {
	inBubble(t, 5, nil, func(t *testing.T, b *bubble) {
		f := b.fleet(1)
		defer f.close()
		for range 10 {
			b.net.isolate(b.leader().at)
			time.Sleep(6 * time.Second)
			b.net.heal()
			time.Sleep(6 * time.Second)
		}
		require.Zero(t, f.lost.Load())
		f.well()
	})
}

// Renewals fail in every way: nobody is there, nothing is committed, nothing is
// answered. The holder stops before its TTL is over, and its lease is nobody else's by then.
func TestKubernetes23731_HolderStopsInTime(t *testing.T) {
	for name, fail := range map[string]func(b *bubble){
		"refused": func(b *bubble) {
			for _, m := range b.members {
				m.kill()
			}
		},
		"not committed": func(b *bubble) {
			for _, m := range b.members {
				m.log.stick()
			}
		},
		"no leader": func(b *bubble) { b.net.split() },
		"no answer": func(b *bubble) {
			for _, m := range b.members {
				b.net.pause(m.at)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
				f := b.fleet(1)
				defer f.close()
				time.Sleep(3 * ttl)
				began := time.Now()
				fail(b) // a kill takes its time
				failed := time.Now()
				b.until(ttl, "the holder stops", func() bool { return f.lost.Load() == 1 })
				require.LessOrEqual(t, time.Since(failed), ttl*4/5+100*time.Millisecond)
				require.Greater(t, time.Since(began), ttl*2/5, "a failure is no reason to stop: the last renewal was sent at most three eighths of a TTL before")
				for _, n := range b.nodes() {
					s, _ := n.Stale()
					require.Equal(t, f.gang, s.Gang("r").GetLease().GetFence())
				}
				b.recover()
				b.leader()
			})
		})
	}
}

// The dead do expire, and in time: a cluster that is well gives a silent node up within its TTL and a tick.
func TestSilentNodesAreGivenUp(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		time.Sleep(3 * ttl)
		b.caller("c").must(time.Second, registerOp("dead"))
		at := time.Now()
		b.until(ttl+time.Second, "it is given up", func() bool {
			return b.see(time.Second).Nodes()[0].State == raftlog.NodeState_NODE_STATE_FENCED
		})
		require.GreaterOrEqual(t, time.Since(at), ttl-10*time.Millisecond)
	})
}

// A leader whose process did not run, or whose log took nothing, counts none of
// that time: no renewal had a chance. Log time goes on behind it and never falls.
func TestEtcd15247_StandingStillIsNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := false
		r := &reign{base: 1000, at: time.Now(), blink: time.Second, stuck: func() bool { return stuck }}
		look := func() time.Duration { return time.Duration(r.now() - 1000) }
		for range 40 { // a ticker looks often: everything counts
			time.Sleep(250 * time.Millisecond)
			look()
		}
		require.Equal(t, 10*time.Second, look())
		time.Sleep(time.Hour) // stopped by a signal
		require.Equal(t, 11*time.Second, look())
		stuck = true
		for range 100 {
			time.Sleep(250 * time.Millisecond)
			require.Equal(t, 11*time.Second, look())
		}
		stuck = false
		time.Sleep(250 * time.Millisecond)
		require.Equal(t, 11250*time.Millisecond, look())
	})
}

// A wall clock that is set forward or back by two hours moves neither log time
// nor leases (vault#11150 had a leader on such a clock). Only the moment in
// which a new cluster begins is read from it.
func TestKubernetes125761_WallClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		began := time.Now()
		r := &reign{base: 1000, at: began}
		shiftWall(&r.at, -jump) // to the reign the clock has jumped since it began
		require.Equal(t, began.Add(-jump).Unix(), r.at.Unix(), "the wall part moved")
		now := r.now()
		require.GreaterOrEqual(t, now, int64(1000))
		require.LessOrEqual(t, now, 1000+int64(time.Since(began)))
	}
}

// shiftWall moves the wall clock reading of a time and leaves its monotonic
// one: the layout of time.Time is 1 bit "has monotonic", 33 bits of seconds, 30 of nanoseconds.
func shiftWall(t *time.Time, by time.Duration) {
	wall := (*uint64)(unsafe.Pointer(t))
	*wall += uint64(int64(by/time.Second)) << 30
}

// A cluster that is restarted as a whole on machines whose clocks were set
// back goes on from the log time it had.
func TestVault11150_ClockSetBackWhileDown(t *testing.T) {
	dir := t.TempDir()
	log := newMemLog()
	run := func(wait time.Duration, do func(t *testing.T, n *Node)) {
		synctest.Test(t, func(t *testing.T) { // each bubble begins at midnight of 2000-01-01
			time.Sleep(wait)
			cfg := testConfig(dir)
			cfg.memory = func() logStore { return log }
			n, err := Open(t.Context(), cfg)
			require.NoError(t, err)
			do(t, n)
			require.NoError(t, n.Close())
		})
	}
	var last int64
	run(24*time.Hour, func(t *testing.T, n *Node) {
		propose(t, n, "c", 1, registerOp("a"))
		last = read(t, n).Clock().NowNs
	})
	run(time.Second, func(t *testing.T, n *Node) {
		propose(t, n, "c", 2, registerOp("b"))
		now := read(t, n).Clock().NowNs
		require.Greater(t, now, last)
		require.Less(t, time.Duration(now-last), time.Minute)
		require.Equal(t, raftlog.NodeState_NODE_STATE_READY, read(t, n).Nodes()[0].State)
		ctx, cancel := context.WithTimeout(t.Context(), 3*ttl+time.Minute)
		defer cancel()
		<-ctx.Done()
		require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, read(t, n).Nodes()[0].State, "time passes again")
	})
}
