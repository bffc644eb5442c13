package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// bubble is a cluster of real nodes in virtual time: raft, queue, reigns and
// state machine are those of production, the log is in memory and the network
// is the test's. An hour passes in seconds.
type bubble struct {
	t       *testing.T
	net     *network // of raft
	rpc     *rpcs    // of everything else
	members []*member
	began   time.Time
	config  func(*Config) // changes every node's configuration

	restored bool // the log is not the whole history

	mu      sync.Mutex // guards all below
	acks    []ack
	fence   uint64 // the highest that was given
	unknown int    // tries whose outcome callers did not learn
}

// ack is a result that a caller was given.
type ack struct {
	client string
	seq    uint64
	op     *raftlog.Op
	result *raftlog.Result
}

// member is one node's place: what outlives its process, and the process if it runs.
type member struct {
	b      *bubble
	id     string
	at     raft.ServerAddress // where it takes log entries
	rpc    string             // where it takes RPCs
	dir    string
	log    *memLog
	broken bool // it was taken out, and is left as it is

	mu     sync.Mutex // guards all below
	node   *Node      // nil while it does not run
	opened chan error // answers once when the start is done; nil while it does not run
	served chan error
	cancel context.CancelFunc
}

// inBubble runs a test on a cluster of n nodes, made as people make one, and
// checks the cluster when the test is done.
func inBubble(t *testing.T, n int, config func(*Config), test func(*testing.T, *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, net: newNetwork(), rpc: newRPCs(), began: time.Now(), config: config}
		defer func() {
			for _, m := range b.members {
				m.stop()
			}
		}()
		for range n {
			b.add()
		}
		_, err := b.members[0].running().Init(t.Context())
		require.NoError(t, err)
		for _, m := range b.members[1:] {
			_, err := b.members[0].running().Join(t.Context(), m.rpc)
			require.NoError(t, err)
		}
		b.until(time.Minute, "all nodes speak of each other", func() bool { return b.leader().running().level() == state.Level })
		test(t, b)
		b.verify()
	})
}

// add starts a node on an empty directory, which waits to be joined.
func (b *bubble) add() *member {
	i := len(b.members)
	m := &member{
		b: b, id: fmt.Sprint("n", i), at: raft.ServerAddress(fmt.Sprint("a", i)), rpc: fmt.Sprint("rpc", i), dir: b.t.TempDir(), log: newMemLog(),
	}
	b.members = append(b.members, m)
	m.start()
	b.until(time.Minute, m.id+" runs", func() bool { return m.running() != nil })
	return m
}

// start opens the node in the background.
func (m *member) start() {
	cfg := DefaultConfig(m.dir)
	cfg.Node, cfg.Cluster, cfg.Transport = m.id, true, m.b.net.dial(m.at)
	cfg.Address, cfg.Dial = m.rpc, m.b.rpc.dial()
	cfg.Election = time.Second
	cfg.SnapshotAfter, cfg.TrailingLogs = 1<<40, 1<<20
	cfg.memory = func() logStore { return m.log }
	if os.Getenv("BUBBLE_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("at", m.id)
	}
	if m.b.config != nil {
		m.b.config(&cfg)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithCancel(m.b.t.Context())
	opened, served := make(chan error, 1), make(chan error, 1)
	m.opened, m.served, m.cancel = opened, served, cancel
	go func() {
		n, err := Open(ctx, cfg)
		if err == nil {
			l := m.b.rpc.listen(m.rpc)
			go func() { served <- n.Serve(l) }()
		}
		m.mu.Lock()
		m.node = n
		m.mu.Unlock()
		opened <- err
	}()
}

// running returns the node if it is up.
func (m *member) running() *Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// stop closes the node in order.
func (m *member) stop() {
	m.mu.Lock()
	opened := m.opened
	m.opened = nil
	m.mu.Unlock()
	if opened == nil {
		return
	}
	require.NoError(m.b.t, <-opened)
	m.mu.Lock()
	n := m.node
	m.node = nil
	m.mu.Unlock()
	require.NoError(m.b.t, n.Close())
	require.NoError(m.b.t, <-m.served)
	m.cancel()
}

// kill ends the node as a kill -9 would: nothing leaves it any more, and it
// comes back with what was written at this moment.
func (m *member) kill() {
	m.b.t.Helper()
	wire := m.b.net.peer(m.at)
	require.NoError(m.b.t, wire.Close())
	log, dir := m.log.copy(), killed(m.b.t, m.dir)
	m.log.disk(nil)
	m.stop()
	m.log, m.dir = log, dir
}

// nodes are those that run.
func (b *bubble) nodes() []*Node {
	var out []*Node
	for _, m := range b.members {
		if n := m.running(); n != nil && !m.broken {
			out = append(out, n)
		}
	}
	return out
}

// until waits for a condition in virtual time.
func (b *bubble) until(within time.Duration, what string, holds func() bool) {
	b.t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not within %s: %s%s", within, what, b.situation())
		}
	}
}

func (b *bubble) situation() string {
	out := ""
	for _, m := range b.members {
		if n := m.running(); n != nil {
			s := n.Status()
			out += fmt.Sprintf("\n%s %s term %d leader %q commit %d applied %d last %d queue %d %s", m.id, s.State, s.Term, s.Leader, s.Commit, s.Applied, n.raft.LastIndex(), s.Queue, s.Failure)
		} else {
			out += "\n" + m.id + " is down"
		}
	}
	return out
}

// leads returns who reigns now, the newest term if two think so; nil when nobody does.
func (b *bubble) leads() *member {
	var best *member
	var term uint64
	for _, m := range b.members {
		n := m.running()
		if n == nil || m.broken {
			continue
		}
		if r, err := n.currentReign(); err == nil && r.term > term {
			best, term = m, r.term
		}
	}
	return best
}

// leader waits for a reign.
func (b *bubble) leader() *member {
	b.t.Helper()
	var m *member
	b.until(time.Minute, "a leader", func() bool { m = b.leads(); return m != nil })
	return m
}

// leaderAmong waits for a reign of one of some.
func (b *bubble) leaderAmong(some []*member) *member {
	b.t.Helper()
	var m *member
	b.until(time.Minute, "a leader", func() bool { m = b.leads(); return m != nil && slices.Contains(some, m) })
	return m
}

func (b *bubble) others(not *member) []*member {
	return slices.DeleteFunc(slices.Clone(b.members), func(m *member) bool { return m == not })
}

func addresses(members ...*member) []raft.ServerAddress {
	var out []raft.ServerAddress
	for _, m := range members {
		out = append(out, m.at)
	}
	return out
}

// caller is a client with one operation on its way, as lanes are.
type caller struct {
	b   *bubble
	id  string
	seq uint64
	now int // whom it asks
}

func (b *bubble) caller(id string) *caller { return &caller{b: b, id: id} }

// do commits an operation within a time, following the leader and repeating
// what is unknown, and remembers the answer. It returns nil when time ran out.
func (c *caller) do(within time.Duration, op *raftlog.Op) *raftlog.Result {
	ctx, cancel := context.WithTimeout(c.b.t.Context(), within)
	defer cancel()
	c.seq++
	return c.again(ctx, op)
}

// again repeats the last operation with its number.
func (c *caller) again(ctx context.Context, op *raftlog.Op) *raftlog.Result {
	for ctx.Err() == nil {
		n := c.b.members[c.now].running()
		err := errors.New("down")
		if n != nil {
			var r *raftlog.Result
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			r, err = n.Propose(try, &raftlog.Proposal{Client: c.id, Seq: c.seq, Op: op})
			cancel()
			if err == nil {
				c.b.acknowledged(ack{client: c.id, seq: c.seq, op: op, result: r})
				return r
			}
			if Classify(err) == Unknown {
				c.b.mu.Lock()
				c.b.unknown++
				c.b.mu.Unlock()
			}
		}
		if n == nil || !errors.Is(err, ErrStarting) {
			c.now = (c.now + 1) % len(c.b.members)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

func (b *bubble) acknowledged(a ack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acks = append(b.acks, a)
	b.fence = max(b.fence, fenceOf(a.result))
}

// must commits an operation that has to succeed within a time.
func (c *caller) must(within time.Duration, op *raftlog.Op) *raftlog.Result {
	c.b.t.Helper()
	r := c.do(within, op)
	if r == nil {
		c.b.t.Fatalf("%s: nothing was committed within %s%s", c.id, within, c.b.situation())
	}
	require.Equal(c.b.t, raftlog.Code_CODE_OK, r.Code, r.Message)
	return r
}

// fenceOf is the fence that a result grants; 0 when it grants none.
func fenceOf(r *raftlog.Result) uint64 {
	return max(r.GetRegister().GetFence(), r.GetJoinGang().GetFence())
}

// tally is a caller that counts in the state: a trainer that joins the gang of
// a run of its own raises the gang's epoch by one, each time it is applied.
type tally struct {
	*caller
	incarnation, epoch uint64
	out                bool // it has to register
}

func (b *bubble) tally(id string) *tally { return &tally{caller: b.caller(id), out: true} }

// next counts once within a time, or registers when it has to.
func (c *tally) next(within time.Duration) {
	if c.seq == 0 {
		c.do(within, createRun(c.id))
		return
	}
	if c.out {
		c.incarnation++
		op := registerOp(c.id)
		op.GetRegister().Node.Role, op.GetRegister().Node.Incarnation = state.RoleTrainer, c.incarnation
		c.out = c.do(within, op) == nil
		return
	}
	r := c.do(within, &raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{
		Node: &raftlog.NodeRef{Role: state.RoleTrainer, Name: c.id, Incarnation: c.incarnation}, Run: c.id,
	}}})
	g := r.GetJoinGang()
	switch {
	case g == nil: // time ran out, or it was silent for so long that it was given up
		c.out, c.epoch = true, 0
		return
	case c.epoch > 0 && g.Epoch != c.epoch+1:
		c.b.t.Errorf("%s joined once and the epoch went from %d to %d", c.id, c.epoch, g.Epoch)
	}
	c.epoch = g.Epoch
}
