package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// The ways a watch ends that are its own.
var (
	ErrResync  = errors.New("begin the watch again without a revision")
	ErrWatches = errors.New("too many watches are open: try again later")
)

// The pace and the limits of a watch.
const (
	watchPause    = 20 * time.Millisecond // least time between two messages: what changes meanwhile is sent once
	watchProgress = 5 * time.Second       // a receiver hears of the newest revision so often, also when nothing of its changed
	watchCheck    = time.Second
)

// watchLimits are what a test makes shorter.
type watchLimits struct {
	stall      time.Duration // how long a receiver may take for one message
	leaderless time.Duration // how long a node that knows no leader, or is behind a revision, serves
	watchers   int           // at a time
}

func defaultWatchLimits() watchLimits {
	return watchLimits{stall: 10 * time.Second, leaderless: 5 * time.Second, watchers: 1024}
}

type watchedKind struct {
	kind   pb.Kind
	record state.Kind // empty where it is not a record
	usual  bool       // without being asked for
}

// watchable are the kinds that a Watch can follow.
var watchable = []watchedKind{
	{pb.Kind_KIND_RUN, state.KindRun, true},
	{pb.Kind_KIND_VERSION, state.KindVersion, true},
	{pb.Kind_KIND_GROUP, state.KindGroup, true},
	{pb.Kind_KIND_ALARM, "", true},
	{pb.Kind_KIND_STEP, state.KindStep, false},
	{pb.Kind_KIND_EVAL, state.KindEval, false},
	{pb.Kind_KIND_NODE, state.KindNode, false},
}

// watcher is one Watch. Nothing is kept for it but its revision: what it has
// not seen comes from the feed, which all watchers share.
type watcher struct {
	node     *Node
	run      string
	kinds    []pb.Kind
	revision uint64
	epoch    uint64
	known    map[string]bool // runs whose spec and config it has
	alarms   *alarms         // as sent last; nil: none were
	sent     time.Time
	send     func(*pb.WatchResponse) error
}

// Watch implements the RPC. Any node serves it from what it has applied. It ends
// with RESYNC when the receiver is too slow or comes too late, and with
// NOT_LEADER when this node is cut off, so that the receiver asks another.
func (s service) Watch(req *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.WatchResponse]) error {
	n := s.node
	w := &watcher{node: n, run: req.Run, revision: req.After, epoch: req.Epoch, known: map[string]bool{}, sent: time.Now()}
	var err error
	if w.kinds, err = kindsOf(req.Kinds); err != nil {
		return s.refuse(fmt.Errorf("coordinator: watch: %w", err))
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(n.stopping, cancel)()
	leave, err := n.hub.enter(ctx, stream.Send, w)
	if err != nil {
		return s.refuse(fmt.Errorf("coordinator: watch: %w", err))
	}
	defer leave()
	if err = w.follow(ctx); errors.Is(err, fsm.ErrGap) {
		err = fmt.Errorf("%w: %w", err, ErrResync)
	}
	if errors.Is(err, ErrResync) {
		n.metrics.resyncs.Inc()
	}
	switch {
	case stream.Context().Err() != nil:
		return stream.Context().Err()
	case n.stopping.Err() != nil:
		err = ErrStopped
	}
	return s.refuse(fmt.Errorf("coordinator: watch: %w", err))
}

func kindsOf(asked []pb.Kind) (out []pb.Kind, err error) {
	for _, k := range asked {
		if !slices.ContainsFunc(watchable, func(w watchedKind) bool { return w.kind == k }) {
			return nil, fmt.Errorf("%s cannot be watched, only runs, versions, groups, steps, evals, nodes and alarms: %w", k, ErrInvalid)
		}
	}
	for _, w := range watchable {
		if len(asked) == 0 && w.usual || slices.Contains(asked, w.kind) {
			out = append(out, w.kind)
		}
	}
	return out, nil
}

// follow sends the records as they are, unless the receiver has a revision, and then what changes.
func (w *watcher) follow(ctx context.Context) error {
	n := w.node
	standing := n.hub.watchAlarms(w.run)
	defer standing.leave()
	if w.revision == 0 {
		if err := w.begin(standing); err != nil {
			return err
		}
	}
	check := time.NewTicker(watchCheck)
	defer check.Stop()
	cutOff := time.Now()
	for {
		_, applied, changed := n.fsm.Progress()
		alarmed, err := w.update(standing)
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-alarmed:
		case <-check.C:
			if _, leader := n.raft.LeaderWithID(); leader != "" && applied >= w.revision {
				cutOff = time.Now()
			}
			if late := time.Since(cutOff) > n.hub.limits.leaderless; late && applied < w.revision {
				return fmt.Errorf("this node is behind revision %d: %w", w.revision, ErrResync)
			} else if late {
				return ErrNotLeader
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin sends the records as they are. Only they are held while that lasts, not the state.
func (w *watcher) begin(standing *alarmWatch) error {
	s, index, _ := w.node.fsm.View()
	var records []*raftlog.Record
	selection{state: s, run: w.run, kinds: w.kinds}.records(func(r *raftlog.Record) bool {
		records = append(records, r)
		return true
	})
	w.epoch = s.Clock().GetEpoch()
	first := &pb.WatchResponse{Snapshot: true}
	if w.wants(pb.Kind_KIND_ALARM) {
		w.alarms, _ = standing.get()
		first.Alarms, first.AlarmsChanged = w.alarms.list, true
	}
	return w.sendAll(first, records, nil, index)
}

// update sends what changed since the watcher's revision, if that is anything of its own.
func (w *watcher) update(standing *alarmWatch) (alarmed <-chan struct{}, err error) {
	changes, upTo, err := w.node.fsm.Since(w.revision, w.epoch)
	if err != nil {
		return nil, err
	}
	var records []*raftlog.Record
	var removed []*pb.Removed
	for _, c := range changes {
		switch k := w.kindOf(c); {
		case k == pb.Kind_KIND_UNSPECIFIED:
		case c.Record == nil:
			removed = append(removed, &pb.Removed{Kind: k, Key: readable(c)})
			delete(w.known, c.Key) // a run's key is its id
		default:
			records = append(records, c.Record)
		}
	}
	m := &pb.WatchResponse{}
	if w.wants(pb.Kind_KIND_ALARM) {
		var now *alarms
		if now, alarmed = standing.get(); now != w.alarms {
			w.alarms, m.Alarms, m.AlarmsChanged = now, now.list, true
		}
	}
	if len(records) == 0 && len(removed) == 0 && !m.AlarmsChanged && (upTo == w.revision || time.Since(w.sent) < watchProgress) {
		w.revision = upTo
		return alarmed, nil
	}
	return alarmed, w.sendAll(m, records, removed, upTo)
}

func (w *watcher) wants(k pb.Kind) bool { return slices.Contains(w.kinds, k) }

// kindOf returns the kind of a change that the watcher asked for, or UNSPECIFIED. Nodes belong to every run.
func (w *watcher) kindOf(c state.Change) pb.Kind {
	for _, x := range watchable {
		if x.record != c.Kind || !w.wants(x.kind) {
			continue
		}
		if run, _, _ := strings.Cut(c.Key, "/"); w.run == "" || run == w.run || c.Kind == state.KindNode {
			return x.kind
		}
	}
	return pb.Kind_KIND_UNSPECIFIED
}

// readable is a key of the state as people write it, "run/12": without the zeros that make keys sort.
func readable(c state.Change) string {
	parts := strings.SplitN(c.Key, "/", 3)
	if c.Kind == state.KindNode || len(parts) < 2 {
		return c.Key
	}
	if n, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
		parts[1] = strconv.FormatInt(n, 10)
	}
	return strings.Join(parts, "/")
}

// sendAll sends records in messages of a bounded size; only the last one has the revision.
func (w *watcher) sendAll(m *pb.WatchResponse, records []*raftlog.Record, removed []*pb.Removed, upTo uint64) error {
	m.Removed = removed
	size := 0
	for _, r := range records {
		r = w.lean(r)
		bytes := proto.Size(r)
		if size > 0 && size+bytes > viewChunk {
			m.Epoch = w.epoch
			if err := w.send(m); err != nil {
				return err
			}
			m, size = &pb.WatchResponse{}, 0
		}
		m.Records, size = append(m.Records, r), size+bytes
	}
	m.Revision, m.Epoch = upTo, w.epoch
	w.revision, w.sent = upTo, time.Now()
	return w.send(m)
}

// lean leaves out of a run what never changes and the receiver has: the spec and the config are by far the largest part.
func (w *watcher) lean(r *raftlog.Record) *raftlog.Record {
	run := r.GetRun()
	if run == nil {
		return r
	}
	if !w.known[run.Id] {
		w.known[run.Id] = true
		return r
	}
	out := &raftlog.Run{}
	from, to := run.ProtoReflect(), out.ProtoReflect()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "spec" && f.Name() != "config" {
			to.Set(f, v)
		}
		return true
	})
	return &raftlog.Record{Record: &raftlog.Record_Run{Run: out}}
}
