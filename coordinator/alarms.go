package coordinator

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// alarmPause is the least time between two looks at a watched run's alarms: they are derived from the whole run.
const alarmPause = 250 * time.Millisecond

// alarms are those that stand at some moment; a pointer to them stands for their content.
type alarms struct{ list []*raftlog.Alarm }

// alarmTopic is what the hub knows of a run's alarms while somebody watches them.
type alarmTopic struct {
	watchers int
	now      *alarms
	changed  chan struct{} // closed when now is replaced
}

// alarmWatch is one watcher of a run's alarms.
type alarmWatch struct {
	hub *hub
	run string
}

// watchAlarms adds a watcher of the alarms of a run, or of all runs when it is empty.
func (h *hub) watchAlarms(run string) *alarmWatch {
	s, _, _ := h.fsm.View()
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.alarms[run]
	if t == nil {
		t = &alarmTopic{now: &alarms{standing(s, run)}, changed: make(chan struct{})}
		h.alarms[run] = t
	}
	t.watchers++
	return &alarmWatch{h, run}
}

func (w *alarmWatch) leave() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	t := w.hub.alarms[w.run]
	if t.watchers--; t.watchers == 0 {
		delete(w.hub.alarms, w.run)
	}
}

// get returns the alarms that stand and a channel that is closed when others do.
func (w *alarmWatch) get() (*alarms, <-chan struct{}) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	t := w.hub.alarms[w.run]
	return t.now, t.changed
}

// lookForAlarms derives the watched alarms anew when entries were applied, until ctx ends.
func (h *hub) lookForAlarms(ctx context.Context) {
	for {
		_, _, changed := h.fsm.Progress()
		if h.alarmed() {
			s, _, _ := h.fsm.View()
			h.updateAlarms(s)
		}
		select {
		case <-time.After(alarmPause):
		case <-ctx.Done():
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) alarmed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alarms) > 0
}

func (h *hub) updateAlarms(s *state.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for run, t := range h.alarms {
		list := standing(s, run)
		if slices.EqualFunc(list, t.now.list, func(a, b *raftlog.Alarm) bool { return proto.Equal(a, b) }) {
			continue
		}
		t.now = &alarms{list}
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// standing returns the alarms of a run, or of all when it is empty.
func standing(s *state.State, run string) (out []*raftlog.Alarm) {
	if run != "" {
		return s.Alarms(run)
	}
	for _, r := range s.Runs() {
		out = append(out, s.Alarms(r.Id)...)
	}
	return out
}
