package coordinator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// hub summarises watched runs once per applied batch, for all their watchers.
// Watchers take the newest summary; nothing is kept for a slow one.
type hub struct {
	fsm     *fsm.FSM
	metrics *metrics
	limits  watchLimits
	streams sync.WaitGroup // the senders of watches

	mu       sync.Mutex // guards everything below
	topics   map[string]*topic
	alarms   map[string]*alarmTopic
	watchers int  // watches
	closing  bool // lets no more in
}

type topic struct {
	watchers int
	latest   *pb.Change
	changed  chan struct{} // closed when latest is replaced
}

func newHub(f *fsm.FSM, m *metrics) *hub {
	return &hub{fsm: f, metrics: m, limits: defaultWatchLimits(), topics: map[string]*topic{}, alarms: map[string]*alarmTopic{}}
}

// hubPause is the least time between two summaries: a fork of the state for each would make Apply copy.
const hubPause = 5 * time.Millisecond

// run serves watchers until ctx ends and the last has gone.
func (h *hub) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.summarise(ctx) })
	wg.Go(func() { h.lookForAlarms(ctx) })
	wg.Wait()
	h.mu.Lock()
	h.closing = true
	h.mu.Unlock()
	h.streams.Wait()
}

func (h *hub) summarise(ctx context.Context) {
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

// enter lets a watcher in and gives it a way to send that ends when its
// receiver takes nothing: a stream can only be ended by leaving its handler, so
// a goroutine of its own waits for the receiver.
func (h *hub) enter(ctx context.Context, send func(*pb.WatchResponse) error, w *watcher) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closing:
		return nil, ErrStopped
	case h.watchers >= h.limits.watchers:
		return nil, fmt.Errorf("%d are served already: %w", h.watchers, ErrWatches)
	}
	h.watchers++
	h.metrics.watchers.Inc()
	out, done := make(chan *pb.WatchResponse), make(chan error, 1)
	h.streams.Go(func() {
		for m := range out {
			done <- send(m)
		}
	})
	w.send = func(m *pb.WatchResponse) error {
		out <- m
		late := time.NewTimer(h.limits.stall)
		defer late.Stop()
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("the receiver took nothing for %s: %w", h.limits.stall, ErrResync)
		}
	}
	return func() {
		close(out)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.watchers--
		h.metrics.watchers.Dec()
	}, nil
}
