package coordinator

import (
	"time"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// mostPatience keeps a quarter of a TTL between two renewals: sessions send the
// next an eighth after the last was answered, and it waits at most another.
const mostPatience = time.Duration(state.LeaseTTL / 8)

// patient reports whether a proposal may wait for company: a heartbeat that
// says of itself that it brings nothing new.
func patient(p *raftlog.Proposal) bool { return p.Op.GetHeartbeat().GetPatient() }

// patientPause is the least time between two entries with patient proposals,
// which can fill whole entries: others are applied in between.
const patientPause = 20 * time.Millisecond

// waitingRoom holds patient proposals until an entry takes them along. Without
// it every heartbeat of an idle fleet would be an entry of its own: an entry of
// them alone leaves at most once in cfg.Patience. Only the queue's sender uses it.
type waitingRoom struct {
	cfg   Config
	gone  func()     // one has left
	list  []*pending // oldest first
	next  time.Time  // before it none leaves
	timer *time.Timer
}

func newWaitingRoom(cfg Config, gone func()) *waitingRoom {
	w := &waitingRoom{cfg: cfg, gone: gone, timer: time.NewTimer(0)}
	w.timer.Stop()
	return w
}

func (w *waitingRoom) add(p *pending) {
	w.list = append(w.list, p)
	if len(w.list) == 1 || w.full() {
		w.rest()
	}
}

// admit lets in those that came meanwhile, until the room is full; the others stay in the channel, which is bounded, too.
func (w *waitingRoom) admit(from <-chan *pending) {
	for !w.full() {
		select {
		case p := <-from:
			w.add(p)
		default:
			return
		}
	}
}

// full reports whether so many wait that they must not wait longer: the room is bounded.
func (w *waitingRoom) full() bool { return len(w.list) >= max(1, w.cfg.Queue/2) }

// open reports whether one may leave now, and overdue whether the oldest has waited for as long as it may.
func (w *waitingRoom) open(now time.Time) bool { return len(w.list) > 0 && !now.Before(w.next) }

func (w *waitingRoom) overdue(now time.Time) bool {
	return w.open(now) && now.Sub(w.list[0].since) >= w.cfg.Patience
}

func (w *waitingRoom) pop() *pending {
	p := w.list[0]
	w.list[0] = nil // the array lives on
	w.gone()
	w.list = w.list[1:]
	return p
}

// rest sets the timer for the next entry that leaves for the sake of those that wait.
func (w *waitingRoom) rest() {
	if len(w.list) == 0 {
		w.list = nil
		w.timer.Stop()
		return
	}
	var pause time.Duration
	if !w.full() {
		pause = w.cfg.Patience - time.Since(w.list[0].since)
	}
	w.timer.Reset(max(0, pause, time.Until(w.next)))
}

// release lets patient proposals go at once: at the end of a reign, so that
// they hear of it and go to the next leader in good time.
func (q *queue) release() {
	select {
	case q.hurry <- struct{}{}:
	default:
	}
}

// work is about how many records an operation changes: what Apply needs for it.
func work(op *raftlog.Op) int {
	switch o := op.GetOp().(type) {
	case *raftlog.Op_Heartbeat:
		return 1 + len(o.Heartbeat.GetHeld())
	case *raftlog.Op_LeaseEpisodes:
		return 1 + int(max(0, o.LeaseEpisodes.GetCount()))
	case *raftlog.Op_SealEpisodes:
		return 1 + len(o.SealEpisodes.GetItems())
	case *raftlog.Op_FailEpisodes:
		return 1 + len(o.FailEpisodes.GetItems())
	case *raftlog.Op_LeaseJobs:
		return 1 + int(max(0, o.LeaseJobs.GetCount()))
	case *raftlog.Op_SettleJobs:
		return 1 + len(o.SettleJobs.GetItems())
	case *raftlog.Op_FailJobs:
		return 1 + len(o.FailJobs.GetItems())
	case *raftlog.Op_CommitStep, *raftlog.Op_Rollback, *raftlog.Op_Tick, *raftlog.Op_Mirrored:
		return 256 // groups with their members
	}
	return 1
}
