package fsm

import (
	"container/list"
	"errors"
	"sync"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// ErrGap says that changes between a watcher's revision and now are no longer
// known: it has to begin again with the records as they are.
var ErrGap = errors.New("what changed since then is no longer known")

// What the feed keeps at most.
const (
	feedCount = 1 << 15
	feedBytes = 16 << 20
)

// feed keeps the records that were changed last, each once and as it is now, in
// the order of their last change. So the memory it takes depends neither on how
// often they change nor on how many watchers there are nor on how slow they are.
type feed struct {
	count, limit int // bounds: records, bytes

	mu    sync.Mutex // guards everything below
	epoch uint64     // times a snapshot was restored by hand; revisions of another epoch mean nothing here
	floor uint64     // every change after it is known
	index uint64     // of the last entry
	order *list.List // of *latest, oldest change first
	byKey map[feedKey]*list.Element
	bytes int
}

type feedKey struct {
	kind state.Kind
	key  string
}

type latest struct {
	state.Change
	index uint64
	bytes int
}

func newFeed(count, limit int) *feed {
	f := &feed{count: count, limit: limit}
	f.reset(0, 0)
	return f
}

// reset forgets everything: the state is now that of a snapshot.
func (f *feed) reset(index, epoch uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index, f.floor, f.epoch, f.bytes = index, index, epoch, 0
	f.order, f.byKey = list.New(), map[feedKey]*list.Element{}
}

// add notes what the entry at index changed.
func (f *feed) add(index uint64, changes []state.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	for _, c := range changes {
		k := feedKey{c.Kind, c.Key}
		e := f.byKey[k]
		if e == nil {
			e = f.order.PushBack(&latest{})
			f.byKey[k] = e
		} else {
			f.order.MoveToBack(e)
		}
		l := e.Value.(*latest) //nolint:forcetypeassert // nothing else is in it
		f.bytes -= l.bytes
		*l = latest{Change: c, index: index, bytes: weight(c)}
		f.bytes += l.bytes
	}
	for f.order.Len() > f.count || f.bytes > f.limit && f.order.Len() > 0 {
		l := f.order.Remove(f.order.Front()).(*latest) //nolint:forcetypeassert // nothing else is in it
		delete(f.byKey, feedKey{l.Kind, l.Key})
		f.bytes -= l.bytes
		f.floor = l.index
	}
}

// since returns the records that changed after a revision, as they are now, in
// the order of their last change, and the revision that they bring a watcher to.
func (f *feed) since(revision, epoch uint64) ([]state.Change, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch != f.epoch || revision < f.floor {
		return nil, 0, ErrGap
	}
	known, n := f.order.Back(), 0
	for ; known != nil && known.Value.(*latest).index > revision; n++ { //nolint:forcetypeassert // nothing else is in it
		known = known.Prev()
	}
	out := make([]state.Change, 0, n)
	next := f.order.Front()
	if known != nil {
		next = known.Next()
	}
	for ; next != nil; next = next.Next() {
		out = append(out, next.Value.(*latest).Change) //nolint:forcetypeassert // nothing else is in it
	}
	return out, max(revision, f.index), nil
}

// weight is about how many bytes of memory a kept record takes that the state
// may no longer hold. The spec and the config of a run are shared by all its records.
func weight(c state.Change) int {
	n := 300 + 2*len(c.Key) // the list, the map and the fixed part of the record
	switch r := c.Record.GetRecord().(type) {
	case *raftlog.Record_Run:
		n += 300 + len(r.Run.Reason) + len(r.Run.Progress) + 64*(len(r.Run.Cursors)+len(r.Run.Requeues)+len(r.Run.Failures))
	case *raftlog.Record_Version:
		n += len(r.Version.Manifest) + len(r.Version.Reason)
	case *raftlog.Record_Group:
		n += len(r.Group.Reason)
	case *raftlog.Record_Step:
		n += 8*len(r.Step.Groups) + len(r.Step.Manifest) + len(r.Step.Ledger) + 48*len(r.Step.Metrics)
	case *raftlog.Record_Node:
		n += len(r.Node.Address) + 64*len(r.Node.Labels)
	}
	return n
}
