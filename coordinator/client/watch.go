package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Update is one step of a watch of records.
type Update struct {
	Begin    bool              // forget what came before: the records that follow are all there are
	Revision uint64            // log index that the records so far are of; 0 when more of the same moment follows
	Records  []*raftlog.Record // as they are now
	Removed  []RecordKey       // that are no more
	Alarms   []*raftlog.Alarm  // all that stand, when AlarmsChanged
	// AlarmsChanged says that Alarms replaces what was known of alarms.
	AlarmsChanged bool
}

// RecordKey names a record; Key is "RUN", "RUN/NUMBER", "RUN/VERSION/SUITE" or "ROLE/NAME".
type RecordKey struct {
	Kind pb.Kind
	Key  string
}

// KeyOf names a record of the kinds that can be watched; it is empty for others.
func KeyOf(r *raftlog.Record) RecordKey {
	switch v := r.GetRecord().(type) {
	case *raftlog.Record_Run:
		return RecordKey{pb.Kind_KIND_RUN, v.Run.Id}
	case *raftlog.Record_Version:
		return RecordKey{pb.Kind_KIND_VERSION, fmt.Sprintf("%s/%d", v.Version.Run, v.Version.Version)}
	case *raftlog.Record_Group:
		return RecordKey{pb.Kind_KIND_GROUP, fmt.Sprintf("%s/%d", v.Group.Run, v.Group.Id)}
	case *raftlog.Record_Step:
		return RecordKey{pb.Kind_KIND_STEP, fmt.Sprintf("%s/%d", v.Step.Run, v.Step.Step)}
	case *raftlog.Record_Eval:
		return RecordKey{pb.Kind_KIND_EVAL, fmt.Sprintf("%s/%d/%s", v.Eval.Run, v.Eval.Version, v.Eval.Suite)}
	case *raftlog.Record_Node:
		return RecordKey{pb.Kind_KIND_NODE, v.Node.Role + "/" + v.Node.Name}
	}
	return RecordKey{}
}

// Records yields the records of a run, or of every run when it is empty, and
// then those that change, until ctx ends or the client is closed. No kinds are
// runs, versions, groups and alarms; steps, evals and nodes, which belong to
// every run, can be asked for. Lost connections are made again and go on where
// they were; when that is not possible, or the loop was too slow, an Update with
// Begin starts over. The error is the last thing yielded and says that asking
// again is of no use.
func (c *Client) Records(ctx context.Context, run string, kinds ...pb.Kind) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.stopping, cancel)()
		w := recordWatch{request: &pb.WatchRequest{Run: run, Kinds: kinds}, whole: map[string]*raftlog.Run{}}
		pause := firstPause
		denials := map[int]bool{}
		for ctx.Err() == nil {
			service, number := c.peers.current()
			before := w.received
			more, err := w.follow(ctx, service, func(u Update) bool { return yield(u, nil) })
			if !more || ctx.Err() != nil {
				return
			}
			if w.received > before {
				pause = firstPause
				clear(denials)
			}
			v, detail, kind := judge(err)
			if v == denied {
				denials[number] = true
			}
			switch {
			case detail.GetReason() == pb.Reason_REASON_RESYNC:
				w.request.After, w.request.Epoch = 0, 0
			case detail.GetReason() == pb.Reason_REASON_QUEUE_FULL: // of watches: another node may have room
				c.peers.leave(number, "")
			case v == final || v == denied && len(denials) == c.peers.size():
				yield(Update{}, fmt.Errorf("client: Watch: %w: %s", kind, auth.Sentence(err)))
				return
			case v != again:
				c.peers.leave(number, detail.GetLeaderAddress())
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// recordWatch is where a watch is, over all its connections.
type recordWatch struct {
	request  *pb.WatchRequest
	received int
	whole    map[string]*raftlog.Run // with what later records of a run leave out
}

// follow passes one stream on until it ends; more is false when the receiver wants no more.
func (w *recordWatch) follow(ctx context.Context, s pb.CoordinatorClient, yield func(Update) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.Watch(ctx, w.request)
	if err != nil {
		return true, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return true, err
		}
		w.received++
		u := Update{Begin: m.Snapshot, Revision: m.Revision, Records: m.Records, Alarms: m.Alarms, AlarmsChanged: m.AlarmsChanged}
		if m.Snapshot {
			clear(w.whole)
		}
		for _, r := range m.Records {
			w.complete(r.GetRun())
		}
		for _, r := range m.Removed {
			u.Removed = append(u.Removed, RecordKey{r.Kind, r.Key})
			if r.Kind == pb.Kind_KIND_RUN {
				delete(w.whole, r.Key)
			}
		}
		if !yield(u) {
			return false, nil
		}
		if m.Revision > 0 { // of a moment that takes several messages, only the last has one
			w.request.After, w.request.Epoch = m.Revision, m.Epoch
		}
	}
}

// complete puts back what a run keeps for life: it is sent once a stream.
func (w *recordWatch) complete(r *raftlog.Run) {
	switch known := w.whole[r.GetId()]; {
	case r == nil:
	case r.Config != nil || known == nil:
		w.whole[r.Id] = &raftlog.Run{Spec: r.Spec, Config: r.Config}
	default:
		r.Spec, r.Config = known.Spec, known.Config
	}
}
