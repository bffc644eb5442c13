package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// readChain reads what the cluster left of a run in the store, and says where the chain is broken.
func readChain(ctx context.Context, s store.ObjectStore, run string) ([]*raftlog.Event, []string) {
	var events []*raftlog.Event
	var bad []string
	prev := uint64(0)
	for info, err := range s.List(ctx, run+"/manifest/") {
		if err != nil {
			return events, append(bad, err.Error())
		}
		b, err := s.Get(ctx, info.Key)
		if err != nil {
			return events, append(bad, err.Error())
		}
		var m struct {
			First, Last, Prev uint64
			Events            []json.RawMessage
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return events, append(bad, fmt.Sprintf("%s: %v", info.Key, err))
		}
		if m.Prev != prev {
			bad = append(bad, fmt.Sprintf("manifest: %s goes on after event %d, and the object before ends with %d", info.Key, m.Prev, prev))
		}
		prev = m.Last
		for _, raw := range m.Events {
			e := &raftlog.Event{}
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, e); err != nil {
				return events, append(bad, fmt.Sprintf("%s: %v", info.Key, err))
			}
			if n := len(events); n > 0 && e.Seq <= events[n-1].Seq {
				bad = append(bad, fmt.Sprintf("manifest: event %d after event %d", e.Seq, events[n-1].Seq))
			}
			events = append(events, e)
		}
	}
	return events, bad
}

// found is what the record of a run says, counted.
type found struct {
	sealed   map[string]int // by key, attempt and shard
	attempts map[string]int // sealed, by key and attempt
	settled  map[string]int // by key, attempt and shard
	members  map[string]int // settled, by key
	steps    map[string]int // by number and manifest
	consumed map[uint64]int64
	oldest   map[string]int64 // oldest version of what is sealed, by key
	bad      []string
}

func (f *found) say(format string, args ...any) { f.bad = append(f.bad, fmt.Sprintf(format, args...)) }

// count reads the record: what is in it twice is wrong whoever was told what.
func count(events []*raftlog.Event) *found {
	f := &found{
		sealed: map[string]int{}, attempts: map[string]int{}, settled: map[string]int{}, members: map[string]int{},
		steps: map[string]int{}, consumed: map[uint64]int64{}, oldest: map[string]int64{},
	}
	next := int64(0)
	for _, e := range events {
		switch x := e.Event.(type) {
		case *raftlog.Event_Sealed:
			s, k := x.Sealed, key(x.Sealed.Group, x.Sealed.Index)
			f.sealed[acked(k, s.Attempt, s.Sealed.Steps.Object)]++
			if f.attempts[acked(k, s.Attempt, "")]++; f.attempts[acked(k, s.Attempt, "")] > 1 {
				f.say("duplicated: attempt %d of %s is sealed twice", s.Attempt, k)
			}
			f.oldest[k] = s.Sealed.MinVersion
		case *raftlog.Event_Settled:
			s, k := x.Settled, key(x.Settled.Group, x.Settled.Index)
			f.settled[acked(k, s.Attempt, s.VerdictRow.GetObject())]++
			if f.members[k]++; f.members[k] > 1 {
				f.say("duplicated: %s is settled twice", k)
			}
		case *raftlog.Event_StepCommitted:
			s := x.StepCommitted
			if s.Step != next {
				f.say("steps: %d comes where %d should", s.Step, next)
			}
			next = s.Step + 1
			f.steps[fmt.Sprint(s.Step, s.Manifest)]++
			f.consume(s)
		}
	}
	return f
}

func (f *found) consume(s *raftlog.StepCommitted) {
	for _, g := range s.Groups {
		if before, twice := f.consumed[g]; twice {
			f.say("duplicated: group %d is trained by step %d and by step %d", g, before, s.Step)
		}
		f.consumed[g] = s.Step
		for i := range int32(groupSize) {
			v, is := f.oldest[key(g, i)]
			if !is {
				f.say("step %d trains group %d, whose member %d was never sealed", s.Step, g, i)
			} else if s.Step-v > lagMax {
				f.say("lag: step %d trains group %d with tokens of version %d", s.Step, g, v)
			}
		}
	}
}

func acked(key string, attempt int32, object string) string {
	return fmt.Sprintf("%s attempt %d %s", key, attempt, object)
}

// sweep compares the record with the journal of what clients were told.
func sweep(events []*raftlog.Event, ops []op, steps []commit) []string {
	f := count(events)
	for _, o := range ops {
		if o.Object == "" {
			continue
		}
		in, what := f.sealed, "a sealed episode"
		if o.Kind == opSettle {
			in, what = f.settled, "a verdict"
		}
		n := in[acked(o.Key, o.Attempt, o.Object)]
		switch {
		case o.Answer == ok && n == 0:
			f.say("lost: %s of %s attempt %d was acknowledged and is not in the record", what, o.Key, o.Attempt)
		case o.Answer == refused && n > 0:
			f.say("%s of %s attempt %d was refused and is in the record", what, o.Key, o.Attempt)
		}
	}
	for _, c := range steps {
		if f.steps[fmt.Sprint(c.Step, c.Manifest)] == 0 {
			f.say("lost: step %d was acknowledged with %s and is not in the record", c.Step, c.Manifest)
		}
	}
	return f.bad
}

// fences looks at grants: none twice, and one that was asked for after another was answered is higher.
func fences(ops []op) []string {
	var bad []string
	var grants []op
	seen := map[uint64]string{}
	for _, o := range ops {
		if o.Answer != ok || o.Kind != opGrant && o.Kind != opJob && o.Kind != opRegister {
			continue
		}
		if k, twice := seen[o.Fence]; twice {
			bad = append(bad, fmt.Sprintf("fence %d was given to %s and to %s", o.Fence, k, o.Key))
		}
		seen[o.Fence] = o.Key
		grants = append(grants, o)
	}
	ended := slices.Clone(grants)
	slices.SortFunc(grants, func(a, b op) int { return int(a.Call - b.Call) })
	slices.SortFunc(ended, func(a, b op) int { return int(a.Return - b.Return) })
	highest, n := uint64(0), 0
	for _, g := range grants {
		for ; n < len(ended) && ended[n].Return < g.Call; n++ {
			highest = max(highest, ended[n].Fence)
		}
		if g.Fence <= highest {
			bad = append(bad, fmt.Sprintf("fence %d of %s was granted after fence %d was known", g.Fence, g.Key, highest))
		}
	}
	return bad
}

// holders looks for two workers that took themselves for the holder of one episode at the same time.
func holders(holds []held) []string {
	var bad []string
	by := map[string][]held{}
	for _, x := range holds {
		by[x.Key] = append(by[x.Key], x)
	}
	for k, xs := range by {
		slices.SortFunc(xs, func(a, b held) int { return int(a.From - b.From) })
		for i := range xs[:len(xs)-1] {
			if xs[i+1].From < xs[i].To {
				bad = append(bad, fmt.Sprintf("double-held: %s by fence %d until %s and by fence %d from %s", k, xs[i].Fence, xs[i].To, xs[i+1].Fence, xs[i+1].From))
			}
		}
	}
	return bad
}

// left looks at the state after every client has gone: no lease without a
// holder, no sandbox without a lease, nothing that waits for a node that left.
func left(records []*raftlog.Record) []string {
	var bad []string
	for _, r := range records {
		if e := r.GetEpisode(); e != nil && e.State == raftlog.EpisodeState_EPISODE_STATE_LEASED {
			bad = append(bad, fmt.Sprintf("%s is leased by %s, which has left", key(e.Group, e.Index), e.Lease.GetHolder()))
		}
		if j := r.GetJob(); j != nil && j.State == raftlog.JobState_JOB_STATE_LEASED {
			bad = append(bad, fmt.Sprintf("the verify job of %s is leased by %s, which has left", key(j.Group, j.Index), j.Lease.GetHolder()))
		}
		if n := r.GetNode(); n != nil && (n.AgentsReserved != 0 || n.VerifiersReserved != 0) {
			bad = append(bad, fmt.Sprintf("host %s has %d and %d sandboxes reserved for nobody", n.Name, n.AgentsReserved, n.VerifiersReserved))
		}
		if g := r.GetGang(); g.GetLease() != nil {
			bad = append(bad, "the gang is held by "+g.Lease.Holder+", which has left")
		}
	}
	return bad
}

// tell makes one text of findings; long lists are cut.
func tell(bad []string) string {
	if len(bad) > 20 {
		bad = append(bad[:20:20], fmt.Sprintf("and %d more", len(bad)-20))
	}
	return strings.Join(bad, "\n")
}
