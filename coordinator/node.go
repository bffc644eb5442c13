// Package coordinator is the node that keeps the replicated state: raft on a
// write-ahead log, the queue in front of it, the gRPC service, and the loops
// that only the leader runs.
//
// DESIGN.md beside this file tells how the parts work together.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/raftlogslog"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Node is one running coordinator. Its methods are safe for concurrent use.
type Node struct {
	cfg     Config
	metrics *metrics
	dir     *fsm.Dir
	log     logStore
	verify  *verified
	guard   *guard
	fsm     *fsm.FSM
	raft    *raft.Raft
	queue   *queue
	hub     *hub
	mirror  *mirror
	notify  chan bool
	reign   atomic.Pointer[reign]
	between chan interlude

	transport raft.Transport
	others    *others
	change    sync.Mutex // held while the cluster's configuration is changed

	stopping context.Context // ends when Close begins
	stop     context.CancelFunc
	work     sync.WaitGroup // the leader's loops and the hub
	flow     sync.WaitGroup // the queue's two goroutines
	reads    sync.WaitGroup // reads that wait for raft
	done     chan struct{}  // closed when the node cannot go on
	gone     chan struct{}  // closed when raft has ended

	mu     sync.Mutex // guards err, closed, grpc and dir's record of the cluster
	err    error
	closed bool
	grpc   []*grpc.Server
}

// Open starts a node and returns when it leads and has applied everything it
// had acknowledged. Its errors are single sentences that say what to do; the
// kinds are those of package fsm. ctx bounds the start only.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dir, err := fsm.Create(cfg.Dir, cfg.Node, cfg.Version)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, metrics: newMetrics(), dir: dir,
		notify: make(chan bool, 16), between: make(chan interlude), others: &others{dial: cfg.Dial}, done: make(chan struct{}), gone: make(chan struct{}),
	}
	n.stopping, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := n.open(); err != nil {
		n.stop()
		return nil, errors.Join(err, n.closeTransport(), n.closeStorage())
	}
	n.start()
	err = n.expose()
	if err == nil && !cfg.Cluster {
		err = n.ready(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open brings up storage and raft; nothing runs yet but raft itself.
func (n *Node) open() error {
	logger := raftlogslog.New(n.cfg.Logger)
	from, err := n.dir.Load()
	if err != nil {
		return err
	}
	if err := checkCluster(n.dir, n.cfg.Belongs, from.State); err != nil {
		return err
	}
	for _, skipped := range from.Skipped {
		n.cfg.Logger.Warn("snapshot cannot be read, an older one is used", "error", skipped)
	}
	if err := n.openLog(logger.Named("wal")); err != nil {
		return err
	}
	if err := from.Prepare(n.log); err != nil {
		return err
	}
	if err := n.dir.Opened(); err != nil {
		return err
	}
	n.verify = newVerified(n.log, n.verified)
	var disk raft.LogStore = n.verify
	if n.cfg.faults != nil {
		disk = n.cfg.faults(disk)
	}
	n.guard = newGuard(disk, n.log, func(d time.Duration) { n.metrics.fsync.Observe(d.Seconds()) }, n.fail)
	files, err := raft.NewFileSnapshotStoreWithLogger(n.cfg.Dir, 2, logger.Named("snapshot"))
	if err != nil {
		return fmt.Errorf("coordinator: open snapshots: %w: %w", err, fsm.ErrOpenFailed)
	}
	snaps, err := hideUnreadable(files, filepath.Join(n.cfg.Dir, "snapshots"), from.ID)
	if err != nil {
		return err
	}
	rc := n.cfg.raft(n.notify)
	rc.Logger = logger.Named("raft")
	n.transport = n.cfg.Transport
	if n.transport == nil {
		_, n.transport = raft.NewInmemTransport(raft.ServerAddress(n.cfg.Node))
	}
	if err := n.bootstrap(rc, snaps, from); err != nil {
		return err
	}
	n.fsm = fsm.New(from.State, from.Index, n.metrics.observeApply)
	n.fsm.Notice(n.metrics.notice)
	if n.raft, err = raft.NewRaft(rc, n.fsm, n.guard, n.guard, measured{snaps, n.metrics}, newLinks(n.transport, n.guard, n.cfg.Election)); err != nil {
		return fmt.Errorf("coordinator: start raft: %w: %w", err, fsm.ErrDamaged)
	}
	if t, is := n.transport.(*Transport); is {
		t.introduce(n)
	}
	return nil
}

// bootstrap writes the first configuration of a new directory. A directory
// that has a term and neither log nor snapshot has lost its log.
func (n *Node) bootstrap(rc *raft.Config, snaps raft.SnapshotStore, from fsm.Loaded) error {
	last, err := n.log.LastIndex()
	if err != nil {
		return fmt.Errorf("coordinator: read log: %w: %w", err, fsm.ErrDamaged)
	}
	exists, err := raft.HasExistingState(n.guard, n.guard, snaps)
	if err != nil {
		return fmt.Errorf("coordinator: read log: %w: %w", err, fsm.ErrDamaged)
	}
	if joins := n.cfg.Cluster && !n.dir.Held(); exists && last == 0 && from.ID == "" && !joins {
		return fmt.Errorf("coordinator: open %s: the log is empty but the node has run before: %w", n.cfg.Dir, fsm.ErrDamaged)
	}
	if exists || n.cfg.Cluster {
		return nil
	}
	servers := n.cfg.Servers
	if servers == nil {
		servers = []raft.Server{{ID: rc.LocalID, Address: n.transport.LocalAddr()}}
	}
	if err := raft.BootstrapCluster(rc, n.guard, n.guard, snaps, n.transport, raft.Configuration{Servers: servers}); err != nil {
		return fmt.Errorf("coordinator: bootstrap: %w: %w", err, fsm.ErrOpenFailed)
	}
	return nil
}

func (n *Node) start() {
	n.queue = newQueue(n.cfg, n.raft, n.currentReign, n.answer, n.metrics)
	n.hub = newHub(n.fsm, n.metrics)
	n.mirror = newMirror(n.cfg, n.fsm, n.metrics)
	n.flow.Go(n.queue.send)
	n.flow.Go(n.queue.settle)
	n.work.Go(func() { n.hub.run(n.stopping) })
	n.work.Go(n.lead)
	n.work.Go(n.watchMachine)
	n.work.Go(func() { n.compact(n.stopping, n.cfg.LogBytes, n.cfg.SnapshotEvery) })
	if n.cfg.Cluster {
		n.work.Go(func() { n.announce(n.stopping) })
	}
}

// expose adds the node's metrics to the caller's.
func (n *Node) expose() error {
	n.gauges()
	if n.cfg.Registerer == nil {
		return nil
	}
	if err := n.cfg.Registerer.Register(n.metrics.registry); err != nil {
		return fmt.Errorf("coordinator: metrics: %w", err)
	}
	return nil
}

// watchMachine ends the node when the state machine met an entry it must not skip.
func (n *Node) watchMachine() {
	select {
	case <-n.fsm.Failed():
		n.fail(n.fsm.Err())
	case <-n.stopping.Done():
	}
}

// fail notes why the node cannot go on; Done is closed and Close has to follow.
func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return
	}
	n.err = err
	n.reign.Store(nil)
	close(n.done)
	n.cfg.Logger.Error("the coordinator stops", "error", err)
}

// Done is closed when the node cannot go on; Err says why. The caller closes it.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err returns why the node stopped by itself, or nil.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// ready waits until this node leads and its loops run. A node of a larger
// cluster is ready as soon as it knows a leader.
func (n *Node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := n.currentReign(); err == nil && n.cluster() != "" { // it has begun to lead
			return nil
		}
		if _, id := n.raft.LeaderWithID(); id != "" && string(id) != n.cfg.Node {
			return nil
		}
		select {
		case <-n.done:
			return n.Err()
		case <-ctx.Done():
			return fmt.Errorf("coordinator: open %s: no leader after %s: %w", n.cfg.Dir, n.cfg.StartTimeout, ctx.Err())
		case <-poll.C:
		}
	}
}

// Propose commits one proposal and returns the result of the state machine;
// Classify tells what an error means. When ctx ends first the outcome is unknown.
func (n *Node) Propose(ctx context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	_, err := n.currentReign()
	if err == nil && n.isClosed() {
		err = ErrStopped
	}
	if err != nil {
		return nil, fmt.Errorf("coordinator: propose: %w", err)
	}
	return n.queue.propose(ctx, p)
}

func (n *Node) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// Read returns the state with every write that was acknowledged before the
// call, and its log index. The state must not be changed.
//
// After the Barrier that began the reign the machine holds what earlier leaders
// acknowledged; what this one acknowledged it had applied first. So it is
// enough to know that no newer leader exists.
func (n *Node) Read(ctx context.Context) (*state.State, uint64, error) {
	before, err := n.currentReign()
	if err != nil {
		return nil, 0, fmt.Errorf("coordinator: read: %w", err)
	}
	if err := n.verifyLeader(ctx); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", err, ErrNotLeader)
		}
		return nil, 0, fmt.Errorf("coordinator: read: %w", err)
	}
	if after, err := n.currentReign(); err != nil || after != before {
		return nil, 0, fmt.Errorf("coordinator: read: %w", ErrNotLeader)
	}
	s, index, _ := n.fsm.View()
	return s, index, nil
}

// verifyLeader asks a majority whether this node still leads. Raft's futures
// have no context, so a caller that leaves does so alone.
func (n *Node) verifyLeader(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrStopped
	}
	n.reads.Add(1)
	n.mu.Unlock()
	answered := make(chan error, 1)
	go func() {
		defer n.reads.Done()
		answered <- n.answer(n.raft.VerifyLeader())
	}()
	select {
	case err := <-answered:
		return err
	case <-n.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer waits for a raft future. At its end raft may leave some unanswered.
func (n *Node) answer(f raft.Future) error {
	answered := make(chan error, 1)
	go func() { answered <- f.Error() }() // ends with the future
	select {
	case err := <-answered:
		return err
	case <-n.gone:
	}
	select {
	case err := <-answered:
		return err
	default:
		return raft.ErrRaftShutdown
	}
}

// Stale returns this node's own state, which may lag behind the leader's, and its log index.
func (n *Node) Stale() (*state.State, uint64) {
	s, index, _ := n.fsm.View()
	return s, index
}

// Snapshot writes a snapshot now.
func (n *Node) Snapshot() error {
	if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("coordinator: snapshot: %w", err)
	}
	return nil
}

// closeGrace bounds how long Close waits for the store, and for clients that do not read.
const closeGrace = 3 * time.Second

// Close lets nothing more in, answers what is in, lets the last events reach
// the store if it works, ends the servers and waits for everything the node started.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	servers := n.grpc
	n.mu.Unlock()

	n.flush()
	n.queue.close()
	n.drain()
	n.stop()
	close(n.guard.ending)
	err := n.raft.Shutdown().Error()
	err = errors.Join(err, n.closeTransport())
	close(n.gone)
	n.flow.Wait()
	n.work.Wait()
	for _, s := range servers {
		hard := time.AfterFunc(closeGrace, s.Stop)
		s.GracefulStop()
		hard.Stop()
	}
	if n.cfg.Registerer != nil {
		n.cfg.Registerer.Unregister(n.metrics.registry)
	}
	if err != nil {
		err = fmt.Errorf("coordinator: close: %w", err)
	}
	return errors.Join(err, n.others.close(), n.markClosed(), n.closeStorage())
}

// flush waits until the store has every event, unless it fails or takes too long: the next start goes on.
func (n *Node) flush() {
	if n.cfg.Mirror == nil {
		return
	}
	late := time.After(closeGrace)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		lag := n.MirrorLag()
		if _, err := n.currentReign(); err != nil || lag.Waiting == 0 || lag.Err != nil {
			return
		}
		select {
		case <-poll.C:
		case <-late:
			return
		}
	}
}

// drain waits until raft has answered what waits for it, unless the disk has
// failed: then only raft's end answers.
func (n *Node) drain() {
	answered := make(chan struct{})
	n.work.Go(func() {
		n.flow.Wait()
		n.reads.Wait()
		close(answered)
	})
	select {
	case <-answered:
	case <-n.done:
	}
}

// markClosed lets the next start tell a lost log from a crash.
func (n *Node) markClosed() error {
	if n.Err() != nil {
		return nil
	}
	last, err := n.log.LastIndex()
	if err != nil {
		return fmt.Errorf("coordinator: close: %w", err)
	}
	return n.dir.MarkClosed(last)
}

func (n *Node) closeTransport() error {
	if c, is := n.cfg.Transport.(raft.WithClose); is {
		return c.Close()
	}
	return nil
}

func (n *Node) closeStorage() error {
	var errs []error
	if n.verify != nil {
		errs = append(errs, n.verify.Close())
	} else if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	return errors.Join(append(errs, n.dir.Close())...)
}
