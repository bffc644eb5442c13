package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Reads, starts and repeats across leaders, each in a synctest bubble.

func hasNode(s *state.State, name string) bool {
	for _, n := range s.Nodes() {
		if n.Name == name {
			return true
		}
	}
	return false
}

// The first read that a new leader answers sees the last write that the one before acknowledged.
func TestConsul3150_ReadRightAfterElection(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		c := b.caller("c")
		for i := range 10 {
			c.must(10*time.Second, registerOp(fmt.Sprint("h", i)))
			old := b.leader()
			if i%2 == 0 {
				b.net.isolate(old.at)
			} else {
				old.kill()
			}
			reads := 0
			for reads == 0 {
				for _, m := range b.others(old) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					s, _, err := m.running().Read(ctx)
					cancel()
					if err == nil {
						reads++
						require.True(t, hasNode(s, fmt.Sprint("h", i)), "write %d", i)
					}
				}
				time.Sleep(100 * time.Microsecond)
			}
			b.recover()
		}
	})
}

// A start returns when everything acknowledged is applied: on one node at once, in a cluster where it leads.
func TestEllanetworks1350_StartReturnsAfterTheBarrier(t *testing.T) {
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, size, nil, func(t *testing.T, b *bubble) {
				c := b.caller("c")
				for i := range 300 {
					c.must(time.Second, registerOp(fmt.Sprint("h", i)))
				}
				for round := range 3 {
					for _, m := range b.members {
						m.kill()
					}
					for _, m := range b.members {
						m.start()
					}
					var first *Node
					for first == nil {
						time.Sleep(100 * time.Microsecond)
						for _, n := range b.nodes() {
							if _, err := n.currentReign(); err == nil {
								first = n
							}
						}
					}
					s, _ := first.Stale() // what a leader loop would see
					require.True(t, hasNode(s, "h299"))
					b.recover()
					b.noop(fmt.Sprint("round", round))
				}
			})
		})
	}
}

// An answer is lost with its leader, whether the entry was committed or not.
// The repeat at the next leader applies it once: the callers of the whole
// cluster do so while leaders fall every two seconds.
func TestConsul2893_UnknownOutcomeAppliesOnce(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		stop := b.load(8, 3*time.Millisecond)
		for i := range 10 {
			time.Sleep(2 * time.Second)
			old := b.leader()
			switch i % 3 {
			case 0: // nothing leaves it
				for _, m := range b.others(old) {
					b.net.oneWay(old.at, m.at)
				}
			case 1: // nothing reaches it: its entries are committed and it does not learn of it
				for _, m := range b.others(old) {
					b.net.oneWay(m.at, old.at)
				}
			case 2:
				old.kill()
			}
			b.leaderAmong(b.others(old))
			b.recover()
		}
		stop()
		require.Greater(t, b.unknown, 10, "outcomes that callers had to ask for again")
	})
}

// The stored result outlives the leader that gave it.
func TestEtcd18424_RepeatAcrossLeaders(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		c := b.caller("c")
		op := registerOp("h")
		first := c.must(time.Second, op)
		for range 5 {
			require.NoError(t, b.leader().running().answer(b.leader().running().raft.LeadershipTransfer()))
			time.Sleep(3 * time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			again := c.again(ctx, registerOp("another"))
			cancel()
			require.Equal(t, first.GetRegister().GetFence(), again.GetRegister().GetFence())
		}
		require.False(t, hasNode(b.see(time.Second), "another"))
	})
}

// small keeps few entries behind snapshots, so that a node that was away needs one.
func small(c *Config) { c.TrailingLogs = 4 }

// The table of results is in the snapshot: a node that has it only from there answers a repeat as the first leader did.
func TestCurvine676_RepeatAcrossFailoverAndSnapshot(t *testing.T) {
	inBubble(t, 3, small, func(t *testing.T, b *bubble) {
		away := b.others(b.leader())[0]
		away.kill()
		c, d := b.caller("c"), b.caller("d")
		first := c.must(5*time.Second, registerOp("h"))
		for i := range 50 {
			d.must(time.Second, registerOp(fmt.Sprint("d", i)))
		}
		require.NoError(t, b.leader().running().Snapshot())
		away.start()
		b.until(20*time.Second, "it has the snapshot", func() bool {
			return away.running() != nil && away.running().raft.AppliedIndex() == b.leader().running().raft.LastIndex()
		})
		from, err := away.log.FirstIndex()
		require.NoError(t, err)
		require.NotEqual(t, uint64(1), from, "it did not get the log")
		b.until(20*time.Second, "it leads", func() bool {
			_ = b.leader().transferTo(away)
			time.Sleep(time.Second)
			return b.leads() == away
		})
		r, err := away.running().Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 1, Op: registerOp("another")})
		require.NoError(t, err)
		require.Equal(t, first.GetRegister().GetFence(), r.GetRegister().GetFence())
		require.False(t, hasNode(b.see(time.Second), "another"))
	})
}

// Two snapshots reach a node shortly after one another, the second while the first is hardly restored.
func TestEtcd18055_TwoSnapshotsInAShortTime(t *testing.T) {
	inBubble(t, 3, small, func(t *testing.T, b *bubble) {
		d := b.caller("d")
		for round := range 3 {
			away := b.others(b.leader())[0]
			b.net.isolate(away.at)
			time.Sleep(time.Second)
			d.now = int(b.leader().id[1] - '0')
			for i := range 2 {
				for k := range 20 {
					d.must(5*time.Second, registerOp(fmt.Sprint(round, ".", i, ".", k)))
				}
				require.NoError(t, b.leader().running().Snapshot())
				if i == 0 {
					b.net.heal()
					installed := away.running().raft.Stats()["last_snapshot_index"]
					b.until(20*time.Second, "the first snapshot", func() bool {
						return away.running().raft.Stats()["last_snapshot_index"] != installed
					})
					b.net.isolate(away.at) // so that the second must be one, too
				}
			}
			b.net.heal()
			b.until(20*time.Second, "both snapshots", func() bool {
				n := b.leader().running()
				return away.running().raft.AppliedIndex() == n.raft.LastIndex()
			})
			require.NotEqual(t, raft.Shutdown, away.running().raft.State())
			require.NoError(t, away.running().Err())
		}
	})
}
