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

// waitingRoom holds patient proposals until an entry takes them along. Without
// it every heartbeat of an idle fleet would be an entry of its own: an entry of
// them alone leaves at most once in cfg.Patience. Only the queue's sender uses it.
type waitingRoom struct {
	cfg   Config
	gone  func()     // one has left
	list  []*pending // oldest first
	size  int        // bytes
	timer *time.Timer
}

func newWaitingRoom(cfg Config, gone func()) *waitingRoom {
	w := &waitingRoom{cfg: cfg, gone: gone, timer: time.NewTimer(0)}
	w.timer.Stop()
	return w
}

func (w *waitingRoom) add(p *pending) {
	if w.list = append(w.list, p); len(w.list) == 1 {
		w.rest()
	}
	w.size += p.size
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

// full reports whether those that wait fill an entry, so that waiting longer gains nothing.
func (w *waitingRoom) full() bool {
	return len(w.list) >= w.cfg.BatchCount || w.size >= w.cfg.BatchBytes
}

// overdue reports whether the oldest has waited for as long as it may.
func (w *waitingRoom) overdue(now time.Time) bool {
	return len(w.list) > 0 && now.Sub(w.list[0].since) >= w.cfg.Patience
}

func (w *waitingRoom) pop() *pending {
	p := w.list[0]
	w.list[0] = nil // the array lives on
	w.gone()
	w.list, w.size = w.list[1:], w.size-p.size
	return p
}

// rest sets the timer by the oldest that still waits.
func (w *waitingRoom) rest() {
	if len(w.list) == 0 {
		w.list = nil
		w.timer.Stop()
		return
	}
	w.timer.Reset(max(0, w.cfg.Patience-time.Since(w.list[0].since)))
}

// release lets patient proposals go at once: at the end of a reign, so that
// they hear of it and go to the next leader in good time.
func (q *queue) release() {
	select {
	case q.hurry <- struct{}{}:
	default:
	}
}
