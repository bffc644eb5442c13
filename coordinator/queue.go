package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// appender is the part of raft that the queue needs.
type appender interface {
	Apply(data []byte, timeout time.Duration) raft.ApplyFuture
}

// pending is a proposal on its way; done receives exactly one answer.
type pending struct {
	proposal *raftlog.Proposal
	size     int
	work     int
	since    time.Time   // of a patient one: when it came
	done     chan answer // capacity 1: a caller that left blocks nobody
}

type answer struct {
	result *raftlog.Result
	err    error
}

// sent is a log entry on its way.
type sent struct {
	future raft.ApplyFuture
	group  []*pending
	at     time.Time
}

// queue puts many proposals into each log entry. It takes what is there and
// never waits for more: while an entry is being written the next one gathers.
// Only patient proposals wait, for company, in the waiting room (patience.go).
type queue struct {
	cfg     Config
	log     appender
	reign   func() (*reign, error)  // who stamps now; an error when this node may not
	wait    func(raft.Future) error // for the future, or for raft's end
	metrics *metrics
	in      chan *pending
	calm    chan *pending             // patient ones, on their way to the waiting room
	hurry   chan struct{}             // capacity 1: the waiting room is to be emptied now
	slots   chan struct{}             // one for each entry on its way, at most InFlight
	flight  chan sent                 // entries on their way, in order; never blocks
	since   atomic.Pointer[time.Time] // when the one that is answered next left
	stop    chan struct{}

	mu     sync.RWMutex // guards closed; held for reading while a proposal enters
	closed bool
}

func newQueue(cfg Config, log appender, r func() (*reign, error), wait func(raft.Future) error, m *metrics) *queue {
	return &queue{
		cfg: cfg, log: log, reign: r, wait: wait, metrics: m,
		in: make(chan *pending, cfg.Queue), calm: make(chan *pending, cfg.Queue), hurry: make(chan struct{}, 1),
		slots: make(chan struct{}, cfg.InFlight), flight: make(chan sent, cfg.InFlight), stop: make(chan struct{}),
	}
}

// propose commits one proposal and returns the result of the state machine.
// When ctx ends first the outcome is unknown.
func (q *queue) propose(ctx context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	w := &pending{proposal: p, size: proto.Size(p), work: work(p.Op), done: make(chan answer, 1)}
	if w.size > q.cfg.MaxMessage {
		return nil, fmt.Errorf("coordinator: propose: %d bytes, at most %d are taken: %w", w.size, q.cfg.MaxMessage, ErrInvalid)
	}
	if err := q.enter(w); err != nil {
		return nil, fmt.Errorf("coordinator: propose: %w", err)
	}
	select {
	case a := <-w.done:
		return a.result, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("coordinator: propose: %w: %w", ctx.Err(), ErrUnknown)
	}
}

func (q *queue) enter(w *pending) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return ErrStopped
	}
	if patient(w.proposal) && q.cfg.Patience > 0 {
		w.since = time.Now()
		select {
		case q.calm <- w:
			q.metrics.calm.Inc()
			return nil
		default: // so many wait that an entry leaves anyway
		}
	}
	select {
	case q.in <- w:
		return nil
	default:
		q.metrics.refused.Inc()
		return ErrQueueFull
	}
}

// close lets nothing more in; send and settle end when what is in has been answered.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.stop)
	}
}

// send is the one goroutine that fills and appends log entries, until close
// and then until nothing waits.
func (q *queue) send() {
	defer close(q.flight)
	w := newWaitingRoom(q.cfg, q.metrics.calm.Dec)
	defer w.timer.Stop()
	for {
		first, more := q.await(w)
		if !more {
			return
		}
		q.slots <- struct{}{} // gather after the wait: more is there then
		q.append(q.gather(first, w))
	}
}

// await returns when an entry has to leave: with the proposal that cannot
// wait, or with nil when only patient ones are there and have waited long
// enough. It returns false when the queue is closed and empty.
func (q *queue) await(w *waitingRoom) (first *pending, more bool) {
	for {
		select {
		case first = <-q.in:
			return first, true
		case p := <-q.calm:
			w.add(p)
		case <-w.timer.C:
			return nil, true
		case <-q.hurry:
			w.next = time.Time{}
			if w.admit(q.calm); len(w.list) > 0 {
				return nil, true
			}
		case <-q.stop:
			select {
			case first = <-q.in:
				return first, true
			default:
			}
			w.next = time.Time{}
			w.admit(q.calm)
			return nil, len(w.list) > 0
		}
	}
}

// gather takes what waits, up to the limits of an entry. Patient proposals
// come last, unless their time is up: then no number of others keeps them out.
func (q *queue) gather(first *pending, w *waitingRoom) []*pending {
	var group []*pending
	size, work := 0, 0
	room := func() bool {
		return len(group) < q.cfg.BatchCount && size < q.cfg.BatchBytes && work < q.cfg.BatchWork
	}
	add := func(p *pending) { group, size, work = append(group, p), size+p.size, work+p.work }
	if first != nil {
		add(first)
	}
	w.admit(q.calm)
	now := time.Now()
	before := len(w.list)
	for room() && w.overdue(now) {
		add(w.pop())
	}
	for waits := true; waits && room(); {
		select {
		case p := <-q.in:
			add(p)
		default:
			waits = false
		}
	}
	for room() && w.open(now) {
		add(w.pop())
	}
	if len(w.list) < before {
		w.next = now.Add(patientPause)
	}
	w.rest()
	return group
}

// append sends a group on its way, or answers it and gives its slot back.
func (q *queue) append(group []*pending) {
	b, err := q.encode(group)
	if err != nil && len(group) > 1 && !errors.Is(err, errNoReign) { // find the culprit; the others are innocent
		for i := range group {
			if i > 0 {
				q.slots <- struct{}{}
			}
			q.append(group[i : i+1])
		}
		return
	}
	if err != nil {
		fail(group, err)
		<-q.slots
		return
	}
	q.metrics.entry(group)
	at := time.Now()
	q.flight <- sent{future: q.log.Apply(b, 0), group: group, at: at}
}

var errNoReign = errors.New("cannot stamp an entry")

func (q *queue) encode(group []*pending) ([]byte, error) {
	r, err := q.reign()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoReign, err)
	}
	e := &raftlog.Entry{NowNs: r.now(), Term: r.term, Proposals: make([]*raftlog.Proposal, len(group))}
	for i, p := range group {
		e.Proposals[i] = p.proposal
	}
	b, err := fsm.EncodeEntry(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return b, nil
}

// oldest is how long the entry that is to be answered next has been on its way; 0 when none is.
func (q *queue) oldest() time.Duration {
	if at := q.since.Load(); at != nil {
		return time.Since(*at)
	}
	return 0
}

// settle is the one goroutine that answers proposals, in the order of the log.
func (q *queue) settle() {
	for s := range q.flight {
		q.since.Store(&s.at)
		err := q.wait(s.future)
		q.since.Store(nil)
		<-q.slots
		q.metrics.commit.Observe(time.Since(s.at).Seconds())
		if err == nil {
			err, _ = s.future.Response().(error) // the machine stopped at or before this entry
		}
		if err != nil {
			if Classify(err) == Unknown {
				err = fmt.Errorf("%w: %w", err, ErrUnknown)
			}
			fail(s.group, err)
			continue
		}
		results, ok := s.future.Response().([]*raftlog.Result)
		if !ok || len(results) != len(s.group) {
			fail(s.group, fmt.Errorf("%d results for %d proposals: %w", len(results), len(s.group), ErrUnknown))
			continue
		}
		failpoint.At(failpoint.AnswerBefore)
		for i, p := range s.group {
			p.done <- answer{result: results[i]}
		}
	}
}

func fail(group []*pending, err error) {
	for _, p := range group {
		p.done <- answer{err: fmt.Errorf("coordinator: propose: %w", err)}
	}
}
