package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// seeds returns those of RLFLEET_SEEDS, "first+count" or one number, or a fresh one.
// Raft draws from the global source: a seed repeats the schedule, not the run.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	text := os.Getenv("RLFLEET_SEEDS")
	if text == "" {
		return []uint64{rand.Uint64N(1e9)}
	}
	var first, count uint64
	if n, err := fmt.Sscanf(text, "%d+%d", &first, &count); n < 2 || err != nil {
		one, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "RLFLEET_SEEDS is a number, or first+count")
		return []uint64{one}
	}
	var out []uint64
	for i := range count {
		out = append(out, first+i)
	}
	return out
}

// An hour of partitions, pauses, kills, restarts, transfers, slow and failing
// disks and snapshots in a synctest bubble, while clients write and read. After
// each round of faults the cluster has to commit again.
func TestRandomFaults(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Logf("RLFLEET_SEEDS=%d go test ./coordinator -run TestRandomFaults", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			inBubble(t, 3+2*rng.IntN(2), func(c *Config) { c.TrailingLogs = 64 }, func(t *testing.T, b *bubble) {
				f := &faults{b: b, rng: rng, counts: map[string]int{}}
				stop := b.traffic(6)
				for round := 0; time.Since(b.began) < time.Hour; round++ {
					for range 1 + rng.IntN(2) {
						f.inject()
						time.Sleep(f.between(0, 3*time.Second))
					}
					time.Sleep(f.between(0, 25*time.Second))
					b.recover()
					b.caller(fmt.Sprint("round", round)).must(15*time.Second, registerOp(fmt.Sprint("round", round)))
					time.Sleep(f.between(0, 20*time.Second))
				}
				reads := stop()
				t.Logf("%d nodes, faults %v, %d reads, term %d", len(b.members), f.counts, reads, b.leader().running().raft.CurrentTerm())
			})
		})
	}
}

// traffic writes, and reads what must be there: every write that was
// acknowledged before the read began, and never less than the read before.
func (b *bubble) traffic(callers int) (stop func() (reads int)) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			c := b.tally(fmt.Sprint("t", i))
			for ctx.Err() == nil {
				c.next(time.Minute)
				time.Sleep(rand.N(5 * time.Second))
			}
		})
	}
	reads := 0
	wg.Go(func() {
		seen := uint64(0)
		for ctx.Err() == nil {
			for _, n := range b.nodes() {
				must := max(seen, b.lastFence())
				try, done := context.WithTimeout(ctx, time.Second)
				s, _, err := n.Read(try)
				done()
				if err != nil {
					continue
				}
				reads++
				if got := s.Clock().NextFence - 1; got < must {
					b.t.Errorf("a read sees fence %d after %d was acknowledged", got, must)
				} else {
					seen = got
				}
			}
			time.Sleep(rand.N(time.Second))
		}
	})
	return func() int { cancel(); wg.Wait(); return reads }
}

// lastFence is the highest fence that any caller was given.
func (b *bubble) lastFence() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fence
}

// faults breaks a bubble by a seed.
type faults struct {
	b      *bubble
	rng    *rand.Rand
	counts map[string]int
}

func (f *faults) between(least, most time.Duration) time.Duration {
	return least + time.Duration(f.rng.Int64N(int64(most-least)))
}

func (f *faults) any() *member { return f.b.members[f.rng.IntN(len(f.b.members))] }

// victim is the leader half of the time.
func (f *faults) victim() *member {
	m, lead := f.any(), f.rng.IntN(2) == 0
	if l := f.b.leads(); lead && l != nil {
		return l
	}
	return m
}

func (f *faults) inject() {
	v, o := f.victim(), f.any()
	kinds := []struct {
		name string
		do   func()
	}{
		{"isolate", func() { f.b.net.isolate(v.at) }},
		{"split", func() {
			at := addresses(f.b.members...)
			f.rng.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
			k := 1 + f.rng.IntN(len(at)-1)
			f.b.net.split(at[:k], at[k:])
		}},
		{"one way", func() { f.b.net.oneWay(v.at, o.at) }},
		{"deaf", func() {
			for _, m := range f.b.others(v) {
				f.b.net.oneWay(m.at, v.at)
			}
		}},
		{"pause", func() { f.b.net.pause(v.at) }},
		{"flap", func() {
			f.b.net.isolate(v.at)
			time.Sleep(f.between(0, 1500*time.Millisecond))
			f.b.net.heal()
		}},
		{"kill", v.kill},
		{"restart", func() { v.log.disk(nil); v.stop(); v.start() }},
		{"transfer", func() {
			if l := f.b.leads(); l != nil && o != l {
				go func() { _ = l.transferTo(o) }() // refused, late or done: all are right
			}
		}},
		{"slow disk", func() {
			d := f.between(50*time.Millisecond, 900*time.Millisecond)
			v.log.disk(func([]*raft.Log) error { time.Sleep(d); return nil })
		}},
		{"stuck disk", v.log.stick},
		{"bad disk", func() { v.log.disk(func([]*raft.Log) error { return errors.New("input/output error") }) }},
		{"snapshot", func() {
			if n := v.running(); n != nil {
				go func() { _ = n.answer(n.raft.Snapshot()) }() // a disk that is stuck keeps it waiting
			}
		}},
	}
	k := kinds[f.rng.IntN(len(kinds))]
	f.counts[k.name]++
	f.b.t.Logf("%s %s %s", time.Since(f.b.began).Round(time.Millisecond), k.name, v.id)
	k.do()
}
