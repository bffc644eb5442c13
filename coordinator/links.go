package coordinator

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// links is a node's transport as raft gets it: without two ways in which a
// cluster stands still while its heartbeats look healthy, and without one in
// which a follower commits what is not committed.
type links struct {
	raft.Transport
	stuck func() bool // whether a write of this node's log hangs
}

// hang is the shortest time after which a write is taken for one that hangs.
const hang = 2 * time.Second

func newLinks(t raft.Transport, g *guard, election time.Duration) *links {
	limit := max(hang, 2*election)
	return &links{Transport: t, stuck: func() bool { return g.writing() > limit }}
}

var errStuck = errors.New("the log of this node takes nothing: another should lead")

// AppendEntries implements raft.Transport. A leader whose disk hangs would go on
// with heartbeats, which come from other goroutines than writes, and nobody else
// would be elected; so it sends nothing.
func (l *links) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if l.stuck() {
		return errStuck
	}
	clamp(a)
	return l.Transport.AppendEntries(id, to, a, r)
}

// clamp lets a follower commit only what the message proves that it has: up to
// the last entry sent, or the one before it (Raft, figure 2: "index of last new
// entry"). Raft 1.8 takes the follower's own last entry for that, which may be
// one that nobody else has: the leader reads its last index and then its commit
// index, and in between the two may have moved. Such a follower would apply an
// entry that is about to be taken back.
func clamp(a *raft.AppendEntriesRequest) {
	a.LeaderCommitIndex = min(a.LeaderCommitIndex, a.PrevLogEntry+uint64(len(a.Entries)))
}

// RequestPreVote implements raft.WithPreVote.
func (l *links) RequestPreVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	p, is := l.Transport.(raft.WithPreVote)
	if !is {
		return errors.New("the transport knows no pre-vote")
	}
	return p.RequestPreVote(id, to, a, r)
}

// Close implements raft.WithClose.
func (l *links) Close() error {
	if c, is := l.Transport.(raft.WithClose); is {
		return c.Close()
	}
	return nil
}

// AppendEntriesPipeline implements raft.Transport.
func (l *links) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := l.Transport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	out := &link{AppendPipeline: p, stuck: l.stuck, done: make(chan raft.AppendFuture), ended: make(chan struct{})}
	out.work.Go(out.pass)
	return out, nil
}

// link ends a pipeline at its first failure. Raft stops taking answers then,
// and may send on: the answer that nobody takes keeps the pipeline, and with it
// the replication to that follower, for ever, and the end of the node waits for
// it, too (raft#612, pyroscope#5518).
type link struct {
	raft.AppendPipeline
	stuck func() bool
	done  chan raft.AppendFuture
	ended chan struct{}
	once  sync.Once
	work  sync.WaitGroup
}

// AppendEntries implements raft.AppendPipeline.
func (l *link) AppendEntries(a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if l.stuck() {
		return nil, errStuck
	}
	clamp(a)
	return l.AppendPipeline.AppendEntries(a, r)
}

// pass hands answers on, up to the first failure; raft takes that one, and nothing after it.
func (l *link) pass() {
	for {
		select {
		case f := <-l.AppendPipeline.Consumer():
			bad := f.Error() != nil || !f.Response().Success
			select {
			case l.done <- f:
			case <-l.ended:
				return
			}
			if bad {
				l.end() // what is being sent returns with an error
				return
			}
		case <-l.ended:
			return
		}
	}
}

func (l *link) end() {
	l.once.Do(func() {
		close(l.ended)
		_ = l.AppendPipeline.Close() // its connection is of no use to anyone
	})
}

// Consumer implements raft.AppendPipeline.
func (l *link) Consumer() <-chan raft.AppendFuture { return l.done }

// Close implements raft.AppendPipeline.
func (l *link) Close() error {
	l.end()
	l.work.Wait()
	return nil
}
