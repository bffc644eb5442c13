package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// hub summarises watched runs once per applied batch, for all their watchers.
// Watchers take the newest summary; nothing is kept for a slow one.
type hub struct {
	fsm *fsm.FSM

	mu     sync.Mutex // guards topics
	topics map[string]*topic
}

type topic struct {
	watchers int
	latest   *pb.Change
	changed  chan struct{} // closed when latest is replaced
}

func newHub(f *fsm.FSM) *hub { return &hub{fsm: f, topics: map[string]*topic{}} }

// hubPause is the least time between two summaries: a fork of the state for each would make Apply copy.
const hubPause = 5 * time.Millisecond

// run summarises until ctx ends.
func (h *hub) run(ctx context.Context) {
	for {
		_, _, changed := h.fsm.Progress()
		if h.watched() {
			s, index, _ := h.fsm.View()
			h.update(s, index)
			select {
			case <-time.After(hubPause):
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) > 0
}

func (h *hub) update(s *state.State, index uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for run, t := range h.topics {
		c := summary(s, run, index)
		if t.latest != nil && (same(t.latest, c) || c.Revision < t.latest.Revision) {
			continue
		}
		t.latest = c
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// watch adds a watcher of a run; the function takes it away.
func (h *hub) watch(run string) (leave func()) {
	s, index, _ := h.fsm.View()
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[run]
	if t == nil {
		t = &topic{latest: summary(s, run, index), changed: make(chan struct{})}
		h.topics[run] = t
	}
	t.watchers++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if t.watchers--; t.watchers == 0 {
			delete(h.topics, run)
		}
	}
}

// get returns the newest summary and a channel that is closed when there is a newer one.
func (h *hub) get(run string) (*pb.Change, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[run] // the caller watches it
	return t.latest, t.changed
}

// summary says what there is to do in a run, or, for the empty run, in all of them together.
func summary(s *state.State, run string, index uint64) *pb.Change {
	c := &pb.Change{Revision: index, Run: run, Work: &pb.Work{}}
	if run != "" {
		w := s.Work(run)
		c.State = w.State
		c.Work = &pb.Work{Episodes: int32(w.Episodes), Jobs: int32(w.Jobs), Batch: w.Batch, Publish: w.Publish}
		return c
	}
	for _, r := range s.Runs() {
		w := s.Work(r.Id)
		c.Work.Episodes += int32(w.Episodes)
		c.Work.Jobs += int32(w.Jobs)
		c.Work.Batch = c.Work.Batch || w.Batch
		c.Work.Publish = c.Work.Publish || w.Publish
	}
	return c
}

func same(a, b *pb.Change) bool {
	x, y := a.Work, b.Work
	return a.State == b.State && x.Episodes == y.Episodes && x.Jobs == y.Jobs && x.Batch == y.Batch && x.Publish == y.Publish
}
