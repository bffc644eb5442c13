package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

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

// interlude is something to be done between two reigns of the same leader.
type interlude struct {
	do   func() error
	done chan error // capacity 1
}

// lead follows raft's notifications. Raft blocks on them, so nothing here waits long.
func (n *Node) lead() {
	var wg sync.WaitGroup
	end := func() {}
	defer func() { end() }()
	begin := func() {
		ctx, cancel := context.WithCancel(n.stopping)
		wg.Go(func() { n.rule(ctx) })
		end = func() {
			cancel()
			n.reign.Store(nil)
			wg.Wait()
			n.reign.Store(nil) // a barrier that was just then answered
			n.queue.release()
			end = func() {}
		}
	}
	for {
		select {
		case leads := <-n.notify:
			n.metrics.leaders.Inc()
			end()
			if leads {
				begin()
			}
		case i := <-n.between:
			end()
			i.done <- i.do()
			if n.raft.State() == raft.Leader {
				begin()
			}
		case <-n.stopping.Done():
			return
		}
	}
}

// rule runs one reign until ctx ends. If it cannot begin, and nobody else takes
// over, it tries again: raft goes on leading.
func (n *Node) rule(ctx context.Context) {
	for {
		err := n.reignOnce(ctx)
		if err == nil || ctx.Err() != nil || n.Err() != nil || n.giveBack(err) == nil {
			return
		}
		select {
		case <-time.After(againPause):
		case <-ctx.Done():
		}
	}
}

// againPause is between two tries to begin a reign.
const againPause = 500 * time.Millisecond

// reignOnce is one reign: barrier, then the leader's loops until ctx ends. The error is why it could not begin.
func (n *Node) reignOnce(ctx context.Context) error {
	if err := n.barrier(ctx); err != nil {
		return err
	}
	var beyond map[string]uint64
	alone := len(n.servers()) == 1
	if alone { // with others, the log is on a majority of disks and leading must not wait for the store
		beyond = n.compareStore(ctx)
	}
	if n.Err() != nil || ctx.Err() != nil {
		return nil
	}
	clock, _, _ := n.fsm.Progress()
	r := n.newReign(clock.GetNowNs())
	n.reign.Store(r)
	n.cfg.Logger.Info("this node leads", "node", n.cfg.Node, "term", r.term)
	if err := n.identify(ctx); err != nil {
		return err
	}
	if !alone { // the first entry of a term begins the grace of leases: at once, not when something happens
		if err := n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("tick failed", "error", err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.tick(ctx) })
	wg.Go(func() {
		if !alone {
			beyond = n.compareStore(ctx)
		}
		for run, stored := range beyond {
			if err := n.diverged(ctx, run, stored); err != nil && ctx.Err() == nil {
				n.cfg.Logger.Warn("a run that was restored could not be ended", "run", run, "error", err)
			}
		}
		n.mirror.run(ctx, n.housekeep)
	})
	wg.Wait()
	return nil
}

// giveBack hands leadership to another node: one whose loops do not run must not lead (nomad#3890).
func (n *Node) giveBack(why error) error {
	n.cfg.Logger.Warn("leadership is given back", "error", why)
	n.reign.Store(nil)
	err := n.answer(n.raft.LeadershipTransfer())
	if err != nil {
		n.cfg.Logger.Warn("leadership could not be given back", "error", err)
	}
	return err
}

// compareStore ends the node when the store has events that its log has not:
// only committed ones are mirrored, so the log has lost entries that were
// acknowledged, and going on would make a second history beside the first.
// Where a snapshot was restored since those events were written it returns the
// runs they are of, with the last event of each.
func (n *Node) compareStore(ctx context.Context) map[string]uint64 {
	if n.cfg.Mirror == nil {
		return nil
	}
	s, _ := n.Stale()
	last, epoch, restored := s.Clock().GetNextEvent()-1, s.Clock().GetEpoch(), s.Clock().GetRestoredEvent()
	beyond := map[string]uint64{}
	for _, r := range s.Runs() {
		if r.EndedNs != 0 {
			continue // it makes no second history
		}
		end, err := chainEnd(ctx, n.cfg.Mirror, r.Id)
		for pause := mirrorBackoff; err != nil && ctx.Err() == nil; pause = min(2*pause, mirrorPause) {
			n.cfg.Logger.Warn("the store cannot be read", "error", err, "again_in", pause)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			end, err = chainEnd(ctx, n.cfg.Mirror, r.Id)
		}
		switch {
		case err != nil:
		case end.Epoch < epoch: // written before the restore, which made events of its own since
			if end.Last > restored {
				beyond[r.Id] = end.Last
			}
		case end.Last > last:
			n.fail(fmt.Errorf("coordinator: open %s: the log ends with event %d and the store has event %d of run %s: %w", n.cfg.Dir, last, end.Last, r.Id, fsm.ErrDamaged))
			return nil
		}
	}
	return beyond
}

// barrier waits until everything acknowledged earlier is applied. A single
// node has nobody to give leadership to and tries until it succeeds.
func (n *Node) barrier(ctx context.Context) error {
	for {
		err := n.answer(n.raft.Barrier(n.cfg.StartTimeout))
		if err == nil || ctx.Err() != nil || n.Err() != nil {
			return errors.Join(err, ctx.Err(), n.Err())
		}
		if len(n.servers()) > 1 {
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
		s, _ := n.Stale()
		if err := n.raiseLevel(ctx, s); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("the level of commands could not be raised", "error", err)
		}
		if !s.Due(r.now()) {
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
