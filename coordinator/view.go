package coordinator

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// viewChunk is about how many bytes of records go into one message of a View.
const viewChunk = 256 << 10

// selection is what a View asks for.
type selection struct {
	state *state.State
	run   string // empty: all
	kinds []pb.Kind
}

func (v selection) wants(k pb.Kind) bool { return len(v.kinds) == 0 || slices.Contains(v.kinds, k) }

// records yields the selected records: those of no run first, then run by run.
func (v selection) records(yield func(*raftlog.Record) bool) {
	s := v.state
	if v.wants(pb.Kind_KIND_CLOCK) && !yield(&raftlog.Record{Record: &raftlog.Record_Clock{Clock: s.Clock()}}) {
		return
	}
	if v.wants(pb.Kind_KIND_NODE) {
		for _, n := range s.Nodes() {
			if !yield(&raftlog.Record{Record: &raftlog.Record_Node{Node: n}}) {
				return
			}
		}
	}
	if v.wants(pb.Kind_KIND_MEMBER) {
		for _, m := range s.Members() {
			if !yield(&raftlog.Record{Record: &raftlog.Record_Member{Member: m}}) {
				return
			}
		}
	}
	if v.wants(pb.Kind_KIND_TOKEN) {
		for _, t := range s.Tokens() {
			t = proto.CloneOf(t)
			t.Sum = nil // nobody needs it to look at tokens
			if !yield(&raftlog.Record{Record: &raftlog.Record_Token{Token: t}}) {
				return
			}
		}
	}
	for _, r := range v.runs() {
		if !v.ofRun(r, yield) {
			return
		}
	}
}

func (v selection) runs() []*raftlog.Run {
	if v.run == "" {
		return v.state.Runs()
	}
	return one(v.state.Run)(v.run)
}

func (v selection) alarms() (out []*raftlog.Alarm) {
	if v.wants(pb.Kind_KIND_ALARM) {
		for _, r := range v.runs() {
			out = append(out, v.state.Alarms(r.Id)...)
		}
	}
	return out
}

// ofRun yields the selected records of a run and reports whether to go on.
func (v selection) ofRun(r *raftlog.Run, yield func(*raftlog.Record) bool) bool {
	s, id := v.state, r.Id
	return (!v.wants(pb.Kind_KIND_RUN) || yield(&raftlog.Record{Record: &raftlog.Record_Run{Run: r}})) &&
		each(v, pb.Kind_KIND_VERSION, s.Versions, id, yield, func(x *raftlog.PolicyVersion) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Version{Version: x}}
		}) &&
		each(v, pb.Kind_KIND_GROUP, s.Groups, id, yield, func(x *raftlog.Group) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Group{Group: x}}
		}) &&
		each(v, pb.Kind_KIND_EPISODE, s.Episodes, id, yield, func(x *raftlog.Episode) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Episode{Episode: x}}
		}) &&
		each(v, pb.Kind_KIND_JOB, s.Jobs, id, yield, func(x *raftlog.VerifyJob) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Job{Job: x}}
		}) &&
		each(v, pb.Kind_KIND_STEP, s.Steps, id, yield, func(x *raftlog.Step) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Step{Step: x}}
		}) &&
		each(v, pb.Kind_KIND_GANG, one(s.Gang), id, yield, func(x *raftlog.Gang) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Gang{Gang: x}}
		}) &&
		each(v, pb.Kind_KIND_PUBLISH, v.publish, id, yield, func(x *raftlog.Publish) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Publish{Publish: x}}
		}) &&
		each(v, pb.Kind_KIND_EVAL, s.Evals, id, yield, func(x *raftlog.EvalResult) *raftlog.Record {
			return &raftlog.Record{Record: &raftlog.Record_Eval{Eval: x}}
		})
}

// publish finds a run's publication among all records: the state has no other way to it.
func (v selection) publish(run string) (out []*raftlog.Publish) {
	v.state.Records(func(r *raftlog.Record) bool {
		if p := r.GetPublish(); p != nil && p.Run == run {
			out = append(out, p)
		}
		return len(out) == 0
	})
	return out
}

// one makes a list of a record that may be missing.
func one[R any](get func(string) *R) func(string) []*R {
	return func(run string) []*R {
		if r := get(run); r != nil {
			return []*R{r}
		}
		return nil
	}
}

func each[R any](v selection, k pb.Kind, list func(string) []R, run string, yield func(*raftlog.Record) bool, wrap func(R) *raftlog.Record) bool {
	if !v.wants(k) {
		return true
	}
	for _, r := range list(run) {
		if !yield(wrap(r)) {
			return false
		}
	}
	return true
}

// send streams the selection in chunks; an empty one is still one message, with the index.
func (v selection) send(index uint64, stale bool, send func(*pb.ViewResponse) error) error {
	out, size, sent := &pb.ViewResponse{Index: index, Stale: stale, Alarms: v.alarms()}, 0, false
	var err error
	v.records(func(r *raftlog.Record) bool {
		out.Records = append(out.Records, r)
		if size += proto.Size(r); size < viewChunk {
			return true
		}
		err = send(out)
		out, size, sent = &pb.ViewResponse{Index: index, Stale: stale}, 0, true
		return err == nil
	})
	if err == nil && (len(out.Records) > 0 || !sent) {
		err = send(out)
	}
	return err
}
