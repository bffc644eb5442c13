package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

const (
	mirrorMany    = 1000                   // waiting events at which the pace is dropped
	mirrorObject  = 1000                   // most events of one object
	mirrorTake    = 8 * mirrorObject       // events looked at in one round
	mirrorBackoff = 100 * time.Millisecond // first pause after a failure; doubles up to mirrorPause
	mirrorPause   = 5 * time.Second
)

// Lag says how far the store is behind the state.
type Lag struct {
	Waiting uint64    // events not yet in the store
	Since   time.Time // when writing began to fail; zero when it does not
	Err     error     // why
}

// mirror writes committed events to the store, in order, and tells the state
// how far it got. It is the leader's; Apply never waits for it.
type mirror struct {
	store   ManifestStore
	every   time.Duration
	fsm     *fsm.FSM
	metrics *metrics
	warn    func(msg string, args ...any)

	mu    sync.Mutex // guards since, err
	since time.Time
	err   error
}

func newMirror(cfg Config, f *fsm.FSM, m *metrics) *mirror {
	return &mirror{store: cfg.Mirror, every: cfg.MirrorEvery, fsm: f, metrics: m, warn: cfg.Logger.Warn}
}

// run mirrors until ctx ends; commit tells the state.
func (m *mirror) run(ctx context.Context, commit func(context.Context, *raftlog.Op) error) {
	if m.store == nil {
		return
	}
	ends := map[string]uint64{} // last event of each run in the store, as far as this reign knows
	pause := mirrorBackoff
	var last time.Time
	for {
		if !m.await(ctx, last) {
			return
		}
		last = time.Now()
		err := m.round(ctx, ends, commit)
		m.note(err)
		if err == nil {
			pause = mirrorBackoff
			continue
		}
		if ctx.Err() != nil {
			return
		}
		m.metrics.mirrorBad.Inc()
		m.warn("events cannot be written to the store", "error", err, "again_in", pause)
		clear(ends) // what was written is found again in the store
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, mirrorPause)
	}
}

// await waits until events wait, and until it is time unless there are many. It returns false when ctx ends.
func (m *mirror) await(ctx context.Context, last time.Time) bool {
	for {
		clock, _, changed := m.fsm.Progress()
		n := waiting(clock)
		rest := m.every - time.Since(last)
		if n > mirrorMany || (n > 0 && rest <= 0) {
			return ctx.Err() == nil
		}
		var due <-chan time.Time
		if n > 0 {
			due = time.After(rest)
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return false
		}
	}
}

func waiting(c *raftlog.Clock) uint64 { return c.GetNextEvent() - 1 - c.GetMirrored() }

// round writes one object per run that has events, more when they are many, and commits how far it got.
func (m *mirror) round(ctx context.Context, ends map[string]uint64, commit func(context.Context, *raftlog.Op) error) error {
	s, _, _ := m.fsm.View()
	events := s.Outbox(mirrorTake)
	if len(events) == 0 {
		return nil
	}
	var order []string
	byRun := map[string][]*raftlog.Event{}
	for _, e := range events {
		if byRun[e.Run] == nil {
			order = append(order, e.Run)
		}
		byRun[e.Run] = append(byRun[e.Run], e)
	}
	for _, run := range order {
		if err := m.write(ctx, run, byRun[run], s.Clock().GetEpoch(), ends); err != nil {
			return err
		}
	}
	upTo := events[len(events)-1].Seq
	m.metrics.mirrored.Add(float64(len(events)))
	if err := commit(ctx, &raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: upTo}}}); err != nil {
		return fmt.Errorf("coordinator: mirror up to event %d: %w", upTo, err)
	}
	return nil
}

// write appends a run's events to its chain of objects, after what is there already.
func (m *mirror) write(ctx context.Context, run string, events []*raftlog.Event, epoch uint64, ends map[string]uint64) error {
	if events[0].GetRunCreated() != nil {
		delete(ends, run) // a name may come back after its run was removed
	}
	if _, known := ends[run]; !known {
		end, err := chainEnd(ctx, m.store, run)
		if err == nil && end.Last > 0 {
			err = sameHistory(ctx, m.store, run, events[0], end.Last)
		}
		if err != nil {
			return err
		}
		ends[run] = end.Last
	}
	for {
		for len(events) > 0 && events[0].Seq <= ends[run] { // written before a crash, or by another leader
			events = events[1:]
		}
		if len(events) == 0 {
			return nil
		}
		part := events[:min(len(events), mirrorObject)]
		o, err := newManifest(ends[run], epoch, part)
		if err != nil {
			return err
		}
		b, err := o.encode()
		if err != nil {
			return err
		}
		key := ManifestKey(run, o.First)
		if err := failpoint.Around(failpoint.MirrorPutBefore, failpoint.MirrorPutAfter, func() error { return m.store.Put(ctx, key, b) }); err != nil {
			found, getErr := readManifest(ctx, m.store, key)
			if getErr != nil { // nothing is there: the store failed
				return fmt.Errorf("coordinator: mirror %s: %w", key, errors.Join(err, getErr))
			}
			o = found // written between Put and Mirrored, maybe with fewer events
		}
		ends[run] = o.Last
	}
}

func (m *mirror) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.since, m.err = time.Time{}, nil
	case m.err == nil:
		m.since, m.err = time.Now(), err
	default:
		m.err = err
	}
}

// MirrorLag says how far the store is behind, and why.
func (n *Node) MirrorLag() Lag {
	clock, _, _ := n.fsm.Progress()
	n.mirror.mu.Lock()
	defer n.mirror.mu.Unlock()
	return Lag{Waiting: waiting(clock), Since: n.mirror.since, Err: n.mirror.err}
}
