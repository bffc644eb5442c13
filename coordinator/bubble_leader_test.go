package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// The reports of class A, each in a synctest bubble; test/robustness/README.md has the table.

// load lets callers propose until the returned function is called.
func (b *bubble) load(callers int, pause time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			c := b.tally(fmt.Sprintf("load%d.%d", i, time.Now().UnixNano()))
			for ctx.Err() == nil {
				c.next(time.Minute)
				time.Sleep(time.Duration(i+1) * pause)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// noop commits something within the two seconds that the report of raft#696 grants.
func (b *bubble) noop(name string) {
	b.t.Helper()
	b.caller(name).must(2*time.Second, registerOp(name))
}

// transferTo hands leadership to a member and says how that went.
func (m *member) transferTo(to *member) error {
	n := m.running()
	return n.answer(n.raft.LeadershipTransferToServer(raft.ServerID(to.id), to.at))
}

// A leader that is cut off while it transfers steps down in the middle; when it
// leads again later, its writes must not be wedged. The cut meets every stage of the transfer.
func TestRaft696_TransferWhilePartitioned(t *testing.T) {
	for i := range 12 {
		after := time.Duration(i) * 700 * time.Microsecond
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
				stop := b.load(4, 3*time.Millisecond)
				time.Sleep(time.Second)
				first := b.leader()
				other := b.others(first)[0]
				moved := make(chan error, 1)
				go func() { moved <- first.transferTo(other) }()
				time.Sleep(after)
				b.net.isolate(first.at)
				<-moved
				b.leaderAmong(b.others(first))
				b.noop("without")
				b.net.heal()
				stop()
				b.until(time.Minute, "the first leader is back", func() bool {
					now := b.leader()
					if now != first {
						_ = now.transferTo(first) // refused while it catches up
						time.Sleep(100 * time.Millisecond)
					}
					return b.leads() == first
				})
				b.noop("again")
			})
		})
	}
}

// Transfers by a leader that is cut off for moments around the time in which it notices.
func TestRaft696_TransferWhileSteppingDown(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		for i := range 10 {
			first := b.leader()
			b.net.isolate(first.at)
			time.Sleep(time.Duration(i) * 150 * time.Millisecond) // a leader notices within a second
			moved := make(chan error, 1)
			go func() { moved <- first.transferTo(b.others(first)[i%2]) }()
			time.Sleep(time.Duration(i%3) * 200 * time.Millisecond)
			b.net.heal()
			<-moved
			b.caller(fmt.Sprint("p", i)).must(10*time.Second, registerOp(fmt.Sprint("p", i)))
			b.noop(fmt.Sprint("then", i))
		}
	})
}

// One failed write on a follower. Raft would go on with heartbeats while its log
// stays behind for ever; ours ends the node with a sentence. The others go on,
// and after a restart it catches up.
func TestRaft612_FollowerWriteFailsOnce(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		c := b.caller("c")
		c.must(time.Second, registerOp("before"))
		leader := b.leader()
		bad := b.others(leader)[0]
		var once sync.Once
		bad.log.disk(func([]*raft.Log) (err error) {
			once.Do(func() { err = errors.New("input/output error") })
			return err
		})
		c.must(time.Second, registerOp("during"))
		n := bad.running()
		<-n.Done()
		require.ErrorContains(t, n.Err(), "input/output error")
		require.ErrorContains(t, n.Err(), "start again")
		require.NotContains(t, n.Err().Error(), "\n")
		for i := range 50 {
			c.must(time.Second, registerOp(fmt.Sprint("while", i)))
		}
		require.Same(t, leader, b.leader(), "nobody had to be elected")
		_, at := n.Stale()
		require.Less(t, at, leader.running().raft.LastIndex(), "it took nothing after the failure")
		time.Sleep(10 * time.Second)
		bad.stop()
		bad.start()
		b.until(5*time.Second, "it catches up", func() bool {
			n := bad.running()
			return n != nil && n.raft.LastIndex() == leader.running().raft.LastIndex()
		})
		b.noop("after")
	})
}

// A follower whose disk is slow again and again, beyond a pipeline's patience.
// Each time it has to be caught up with when the disk is fast again: raft's
// pipeline stopped for good when an append came between its first failure and
// its end, while heartbeats looked healthy (raft#612), and so did the end of the node.
func TestPyroscope5518_SlowFollower(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		leader := b.leader()
		slow := b.others(leader)[0]
		stop := b.load(4, 40*time.Millisecond)
		for i := range 15 {
			slow.log.disk(func([]*raft.Log) error { time.Sleep(700 * time.Millisecond); return nil })
			time.Sleep(time.Duration(i%5+1) * time.Second)
			b.noop(fmt.Sprint("slow", i))
			require.Same(t, leader, b.leader(), "the majority does not wait for it")
			slow.log.disk(nil)
			must := leader.running().raft.LastIndex()
			b.until(5*time.Second, "a disk that is fast again catches up", func() bool {
				return slow.running().raft.AppliedIndex() >= must
			})
		}
		stop()
		require.NoError(t, leader.transferTo(slow), "a transfer waits for replication")
	})
}

// A follower whose disk gets slow and then fails: it ends, the others go on.
func TestPyroscope5518_SlowThenFailingFollower(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		leader := b.leader()
		slow := b.others(leader)[0]
		var writes atomic.Int32
		slow.log.disk(func([]*raft.Log) error {
			time.Sleep(700 * time.Millisecond)
			if writes.Add(1) > 10 {
				return errors.New("input/output error")
			}
			return nil
		})
		stop := b.load(4, 40*time.Millisecond)
		<-slow.running().Done()
		b.noop("failed")
		stop()
		require.Same(t, leader, b.leader())
	})
}

// A leader whose disk hangs is replaced, although its heartbeats come from goroutines that do not; when the disk is back it follows.
func TestStuckLeaderIsReplaced(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		for i := range 5 {
			c := b.caller(fmt.Sprint("c", i))
			c.must(time.Second, registerOp(fmt.Sprint("before", i)))
			old := b.leader()
			old.log.stick()
			c.must(10*time.Second, registerOp(fmt.Sprint("during", i)))
			time.Sleep(20 * time.Second)
			b.leaderAmong(b.others(old))
			old.log.disk(nil)
			b.until(5*time.Second, "it follows", func() bool { return old.running().raft.State() == raft.Follower })
			b.noop(fmt.Sprint("after", i))
		}
	})
}

// A transfer asked of a node that seeks votes is refused at once.
func TestRaft413_TransferOnCandidate(t *testing.T) {
	inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
		leader := b.leader()
		m := b.others(leader)[0]
		b.net.isolate(m.at)
		b.until(time.Minute, "a candidate", func() bool { return m.running().raft.State() == raft.Candidate })
		asked := time.Now()
		require.Error(t, m.transferTo(leader))
		require.Less(t, time.Since(asked), 10*time.Millisecond)
	})
}

// A leader that stood still for ten seconds, disk and network, while others
// elected another: for a moment it thinks that it leads, and must not answer from what it has.
func TestEtcd20418_PausedLeaderReads(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			inBubble(t, 3, nil, func(t *testing.T, b *bubble) {
				c := b.caller("c")
				c.must(time.Second, registerOp("before"))
				old := b.leader()
				node := old.running()
				old.log.stick() // and raft's main loop with it
				b.net.pause(old.at)
				lost := make(chan error, 1)
				go func() {
					_, err := node.Propose(t.Context(), &raftlog.Proposal{Client: "held", Seq: 1, Op: registerOp("held")})
					lost <- err
				}()
				time.Sleep(time.Second)
				b.leaderAmong(b.others(old))
				c.must(10*time.Second, registerOp("meanwhile"))
				time.Sleep(10 * time.Second)
				_, err := node.currentReign()
				require.NoError(t, err, "it does not know yet")
				stale := b.readers(node, "meanwhile", 50)
				old.log.disk(nil)
				time.Sleep(time.Duration(i) * time.Millisecond)
				b.net.resume(old.at)
				require.Zero(t, stale())
				require.Error(t, <-lost)
				b.noop("after")
			})
		})
	}
}

// readers reads from a node at once and counts answers that lack a name.
func (b *bubble) readers(n *Node, name string, count int) (stale func() int32) {
	var wg sync.WaitGroup
	var lacking atomic.Int32
	for range count {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Second)
			defer cancel()
			if s, _, err := n.Read(ctx); err == nil && !hasNode(s, name) {
				lacking.Add(1)
			}
		})
	}
	return func() int32 { wg.Wait(); return lacking.Load() }
}

// What a deposed leader was given is applied at most once: it answers with an
// error while it is cut off, and the repeat elsewhere decides.
func TestSummitdb5_DeposedLeaderProposes(t *testing.T) {
	inBubble(t, 5, nil, func(t *testing.T, b *bubble) {
		old := b.leader()
		node := old.running()
		others := b.others(old)
		b.net.split(addresses(old, others[0]), addresses(others[1:]...))
		var wg sync.WaitGroup
		var unknown, rejected atomic.Int32
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 20 * time.Millisecond) // before and after it steps down
				c := b.caller(fmt.Sprint("c", i))
				c.seq = 1
				op := registerOp(c.id)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				_, err := node.Propose(ctx, &raftlog.Proposal{Client: c.id, Seq: 1, Op: op})
				switch Classify(err) {
				case Unknown:
					unknown.Add(1)
				case Rejected:
					rejected.Add(1)
				case Committed:
					t.Error("a minority committed")
				}
				again, done := context.WithTimeout(t.Context(), 20*time.Second)
				defer done()
				if c.again(again, op) == nil {
					t.Errorf("%s could not be repeated", c.id)
				}
			})
		}
		wg.Wait()
		require.Positive(t, unknown.Load())
		require.Positive(t, rejected.Load())
		b.net.heal()
		time.Sleep(5 * time.Second)
		require.Len(t, b.see(time.Second).Nodes(), 100)
	})
}
