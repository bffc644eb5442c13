package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// reign is one stretch of leadership, from its barrier on. It is the only
// source of log time.
type reign struct {
	term uint64
	base int64     // log time when it began, nanoseconds
	at   time.Time // the same moment by this node's monotonic clock
}

// now is the log time: what the last entry before the reign was stamped with
// plus the leader's monotonic time since. Wall clocks that jump and time spent
// down do not move it, so they expire nothing.
func (r *reign) now() int64 { return r.base + int64(time.Since(r.at)) }

// currentReign returns the reign of this node, or ErrNotLeader, ErrStarting or ErrStopped.
func (n *Node) currentReign() (*reign, error) {
	if r := n.reign.Load(); r != nil {
		return r, nil
	}
	select {
	case <-n.done:
		return nil, ErrStopped
	default:
	}
	if _, id := n.raft.LeaderWithID(); string(id) == n.cfg.Node {
		return nil, ErrStarting
	}
	return nil, ErrNotLeader
}

// lead follows raft's notifications. Raft blocks on them, so nothing here waits long.
func (n *Node) lead() {
	var wg sync.WaitGroup
	end := func() {}
	defer func() { end() }()
	for {
		select {
		case leads := <-n.notify:
			n.metrics.leaders.Inc()
			end()
			end = func() {}
			if leads {
				ctx, cancel := context.WithCancel(n.stopping)
				wg.Go(func() { n.rule(ctx) })
				end = func() {
					cancel()
					n.reign.Store(nil)
					wg.Wait()
					n.reign.Store(nil) // a barrier that was just then answered
					n.queue.release()
				}
			}
		case <-n.stopping.Done():
			return
		}
	}
}

// rule runs one reign: barrier, then the leader's loops until ctx ends.
func (n *Node) rule(ctx context.Context) {
	if err := n.barrier(ctx); err != nil {
		if ctx.Err() == nil {
			n.cfg.Logger.Warn("leadership is given back", "error", err)
			if err := n.answer(n.raft.LeadershipTransfer()); err != nil {
				n.cfg.Logger.Warn("leadership could not be given back", "error", err)
			}
		}
		return
	}
	clock, _, _ := n.fsm.Progress()
	r := &reign{term: n.raft.CurrentTerm(), base: clock.GetNowNs(), at: time.Now()}
	if r.base == 0 {
		r.base = r.at.UnixNano() // a new cluster starts at a readable time; 0 means "never" in records
	}
	n.compareStore(ctx, clock)
	if n.Err() != nil || ctx.Err() != nil {
		return
	}
	n.reign.Store(r)
	n.cfg.Logger.Info("this node leads", "node", n.cfg.Node, "term", r.term)
	var wg sync.WaitGroup
	wg.Go(func() { n.tick(ctx) })
	wg.Go(func() { n.mirror.run(ctx, n.housekeep) })
	wg.Wait()
}

// compareStore ends the node when the store has events that its log has not:
// only committed ones are mirrored, so the log has lost entries that were
// acknowledged, and going on would make a second history beside the first.
func (n *Node) compareStore(ctx context.Context, clock *raftlog.Clock) {
	if n.cfg.Mirror == nil {
		return
	}
	last := clock.GetNextEvent() - 1
	s, _, _ := n.fsm.View()
	for _, r := range s.Runs() {
		end, err := chainEnd(ctx, n.cfg.Mirror, r.Id)
		for pause := mirrorBackoff; err != nil && ctx.Err() == nil; pause = min(2*pause, mirrorPause) {
			n.cfg.Logger.Warn("the store cannot be read", "error", err, "again_in", pause)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			end, err = chainEnd(ctx, n.cfg.Mirror, r.Id)
		}
		if err == nil && end > last {
			n.fail(fmt.Errorf("coordinator: open %s: the log ends with event %d and the store has event %d of run %s: %w", n.cfg.Dir, last, end, r.Id, fsm.ErrDamaged))
			return
		}
	}
}

// barrier waits until everything acknowledged earlier is applied. A single
// node has nobody to give leadership to and tries until it succeeds.
func (n *Node) barrier(ctx context.Context) error {
	for {
		err := n.answer(n.raft.Barrier(n.cfg.StartTimeout))
		if err == nil || ctx.Err() != nil || n.Err() != nil {
			return errors.Join(err, ctx.Err(), n.Err())
		}
		if len(n.raft.GetConfiguration().Configuration().Servers) > 1 {
			return fmt.Errorf("coordinator: barrier: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tick looks for overdue things and proposes a Tick only when one is: an idle system writes nothing.
func (n *Node) tick(ctx context.Context) {
	every := time.NewTicker(n.cfg.Tick)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		r, err := n.currentReign()
		if err != nil {
			continue
		}
		if s, _, _ := n.fsm.View(); !s.Due(r.now()) {
			continue
		}
		if err := n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("tick failed", "error", err)
		}
	}
}

// housekeep commits an operation of the leader itself. It has no client, so
// that a later leader's term makes the state machine drop it.
func (n *Node) housekeep(ctx context.Context, op *raftlog.Op) error {
	res, err := n.queue.propose(ctx, &raftlog.Proposal{Op: op})
	if err != nil {
		return err
	}
	if res.Code != raftlog.Code_CODE_OK {
		return fmt.Errorf("coordinator: %s", res.Message)
	}
	return nil
}
