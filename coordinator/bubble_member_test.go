package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Clusters that change, each in a synctest bubble: removal, joining, restoring, upgrading.

// The leader takes itself out of raft's configuration with writes on their way:
// the rest applies the same log, and what was acknowledged is in it.
func TestRaft79_LeaderRemovesItself(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, size, nil, func(t *testing.T, b *bubble) {
				stop := b.load(8, 3*time.Millisecond)
				time.Sleep(time.Second)
				first := b.leader()
				n := first.running()
				require.NoError(t, n.answer(n.raft.RemoveServer(raft.ServerID(first.id), 0, 0)))
				first.broken = true
				next := b.leaderAmong(b.others(first))
				require.Len(t, next.running().servers(), size-1)
				b.noop("after")
				<-n.Done()
				require.ErrorContains(t, n.Err(), "was removed")
				time.Sleep(5 * time.Second)
				stop()
				_, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "gone", Seq: 1, Op: registerOp("gone")})
				require.ErrorIs(t, err, ErrStopped, "a node that was removed commits nothing")
				_, _, err = n.Read(t.Context())
				require.ErrorIs(t, err, ErrStopped)
			})
		})
	}
}

// The same as people do it, under load: whoever leads hands over and is removed by the next.
func TestRaft79_RemoveTheLeader(t *testing.T) {
	inBubble(t, 5, nil, func(t *testing.T, b *bubble) {
		stop := b.load(8, 3*time.Millisecond)
		for range 2 { // five, four, three
			time.Sleep(2 * time.Second)
			gone := b.leader()
			b.until(time.Minute, "it is removed", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				return b.leader().running().Remove(ctx, gone.id) == nil
			})
			<-gone.running().Done()
			gone.broken = true
		}
		stop()
		require.Len(t, b.leader().running().servers(), 3)
		require.Len(t, b.see(time.Second).Members(), 3)
	})
}

// One node after the other is restarted while clients work, twice around. They
// follow the leader and repeat what is unknown: none of them sees a failure.
func TestWeaviate12486_RollingRestart(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		c := b.dial("load")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var mu sync.Mutex
		longest, calls := time.Duration(0), 0
		for i := range 10 {
			wg.Go(func() {
				for k := uint64(1); ctx.Err() == nil; k++ {
					began := time.Now()
					op := registerOp(fmt.Sprint("h", i))
					op.GetRegister().Node.Incarnation = k
					_, err := c.Propose(t.Context(), op)
					mu.Lock()
					longest, calls = max(longest, time.Since(began)), calls+1
					mu.Unlock()
					if err != nil {
						t.Errorf("call %d of caller %d: %v", k, i, err)
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.View(t.Context(), "", pb.Kind_KIND_CLOCK); err != nil {
					t.Errorf("read: %v", err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		for round := range 2 {
			for _, m := range b.members {
				time.Sleep(3 * time.Second)
				if round == 1 && b.leader() == m { // as a careful operator does
					require.NoError(t, m.running().Transfer(t.Context(), ""))
				}
				m.stop()
				time.Sleep(time.Second)
				m.start()
				b.until(20*time.Second, m.id+" has caught up", func() bool {
					l, n := b.leads(), m.running()
					return l != nil && n != nil && n.raft.AppliedIndex()+64 > l.running().raft.LastIndex()
				})
			}
		}
		cancel()
		wg.Wait()
		require.NoError(t, c.Close())
		t.Logf("%d calls, the longest took %s", calls, longest)
		require.Less(t, longest, 10*time.Second)
	})
}

// A node that joins right after a snapshot was restored, and one that was away
// meanwhile, have the whole state, although the log before the restore is not of it.
func TestLedger1596_JoinRightAfterRestore(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		b.restored = true
		c := b.caller("c")
		for i := range 100 {
			c.must(time.Second, registerOp(fmt.Sprint("kept", i)))
		}
		var saved bytes.Buffer
		require.NoError(t, b.leader().running().Save(t.Context(), &saved))
		for i := range 20 {
			c.must(time.Second, registerOp(fmt.Sprint("gone", i)))
		}
		before := b.see(time.Second).Clock()
		away := b.others(b.leader())[0]
		away.kill()
		_, err := b.leader().running().Restore(t.Context(), bytes.NewReader(saved.Bytes()), false)
		require.NoError(t, err)
		fresh := b.add()
		_, err = b.leader().running().Join(t.Context(), fresh.rpc)
		require.NoError(t, err)
		away.start()
		b.noop("after")
		index := b.settle()
		for _, m := range b.members {
			s, at := m.running().Stale()
			require.Equal(t, index, at)
			require.True(t, hasNode(s, "kept0") && hasNode(s, "kept99") && hasNode(s, "after"), m.id)
			require.False(t, hasNode(s, "gone0"), m.id)
			require.Equal(t, before.Epoch+1, s.Clock().Epoch)
			require.Greater(t, s.Clock().NextFence, before.NextFence)
			for _, n := range s.Nodes() {
				if n.Name != "after" && n.Name != "last" {
					require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, n.State, "every node registers again")
				}
			}
		}
		for range 3 { // each leads on what it got
			require.NoError(t, b.leader().running().Transfer(t.Context(), ""))
			b.leader()
			b.noop(fmt.Sprint("then", time.Since(b.began)))
		}
	})
}

// Nodes join and go under load, some by way of a snapshot, while leaders are killed.
func TestMembersComeAndGo(t *testing.T) {
	inBubble(t, 3, small, func(t *testing.T, b *bubble) {
		stop := b.load(4, 20*time.Millisecond)
		change := func(what string, f func(ctx context.Context, leader *Node) error) {
			b.until(time.Minute, what, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				return f(ctx, b.leader().running()) == nil
			})
		}
		for i := range 4 {
			time.Sleep(2 * time.Second)
			require.NoError(t, b.leader().running().Snapshot())
			fresh := b.add()
			change("it joins", func(ctx context.Context, leader *Node) error {
				_, err := leader.Join(ctx, fresh.rpc)
				return err
			})
			require.Len(t, b.leader().running().servers(), 4)
			if i%2 == 0 {
				b.leader().kill()
				b.leader()
			}
			gone := b.members[i]
			change("it goes", func(ctx context.Context, leader *Node) error { return leader.Remove(ctx, gone.id) })
			gone.broken = true
			b.recover()
			require.Len(t, b.leader().running().servers(), 3)
		}
		stop()
		require.Len(t, b.see(time.Second).Members(), 3)
	})
}
