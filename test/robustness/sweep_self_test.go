package robustness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// record is the record of one group that was trained, and what its clients were told.
func record() (events []*raftlog.Event, ops []op, steps []commit) {
	add := func(e *raftlog.Event) {
		e.Seq = uint64(len(events) + 1)
		events = append(events, e)
	}
	for i := range int32(groupSize) {
		add(&raftlog.Event{Event: &raftlog.Event_Sealed{Sealed: &raftlog.EpisodeSealed{
			Group: 1, Index: i, Attempt: 1, Sealed: &raftlog.Sealed{MinVersion: 3, Steps: &raftlog.RowRef{Object: "s"}},
		}}})
		add(&raftlog.Event{Event: &raftlog.Event_Settled{Settled: &raftlog.EpisodeSettled{Group: 1, Index: i, Attempt: 1, VerdictRow: &raftlog.RowRef{Object: "v"}}}})
		ops = append(ops,
			op{Kind: opSeal, Key: key(1, i), Attempt: 1, Object: "s", Answer: ok},
			op{Kind: opSettle, Key: key(1, i), Attempt: 1, Object: "v", Answer: ok})
	}
	for n := range int64(4) {
		s := &raftlog.StepCommitted{Step: n, Manifest: "m"}
		if n == 3 {
			s.Groups = []uint64{1}
		}
		add(&raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: s}})
		steps = append(steps, commit{Step: n, Manifest: "m"})
	}
	return events, ops, steps
}

// A sweep that finds nothing proves nothing: these records must not pass.
func TestSweep(t *testing.T) {
	events, ops, steps := record()
	require.Empty(t, sweep(events, ops, steps))
	for want, spoil := range map[string]func(events []*raftlog.Event, ops []op, steps []commit) ([]*raftlog.Event, []op, []commit){
		"lost: a sealed episode": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return e, append(o, op{Kind: opSeal, Key: key(7, 1), Attempt: 1, Object: "s", Answer: ok}), s
		},
		"lost: a verdict": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			e[1] = &raftlog.Event{Seq: 2}
			return e, o, s
		},
		"lost: step 1": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			s[1].Manifest = "other"
			return e, o, s
		},
		"was refused and is in the record": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			o[0].Answer = refused
			return e, o, s
		},
		"is sealed twice": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return append(e, e[0]), o, s
		},
		"is settled twice": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return append(e, e[1]), o, s
		},
		"comes where 4 should": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return append(e, e[len(e)-1]), o, s
		},
		"group 1 is trained by step 3 and by step 4": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return append(e, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{Step: 4, Groups: []uint64{1}}}}), o, s
		},
		"lag: step 3": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			e[0].GetSealed().Sealed.MinVersion = 0
			return e, o, s
		},
		"was never sealed": func(e []*raftlog.Event, o []op, s []commit) ([]*raftlog.Event, []op, []commit) {
			return append(e, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{Step: 4, Groups: []uint64{9}}}}), o, s
		},
	} {
		t.Run(want, func(t *testing.T) {
			require.Contains(t, tell(sweep(spoil(record()))), want)
		})
	}
}

func TestFences(t *testing.T) {
	grant := func(fence uint64, call, back time.Duration) op {
		return op{Kind: opGrant, Key: "k", Fence: fence, Answer: ok, Call: call, Return: back}
	}
	require.Empty(t, fences([]op{grant(2, 0, 10), grant(1, 5, 12), grant(3, 13, 14)}), "at the same time in any order")
	require.Contains(t, tell(fences([]op{grant(2, 0, 10), grant(1, 11, 12)})), "was granted after fence 2")
	require.Contains(t, tell(fences([]op{grant(2, 0, 10), grant(2, 0, 12)})), "was given to k and to k")
}

func TestHolders(t *testing.T) {
	require.Empty(t, holders([]held{{Key: "a", Fence: 1, From: 0, To: 5}, {Key: "a", Fence: 2, From: 5, To: 9}, {Key: "b", Fence: 3, From: 1, To: 8}}))
	require.Contains(t, tell(holders([]held{{Key: "a", Fence: 2, From: 4, To: 9}, {Key: "a", Fence: 1, From: 0, To: 5}})), "double-held: a by fence 1")
}

func TestLeft(t *testing.T) {
	require.Empty(t, left([]*raftlog.Record{{Record: &raftlog.Record_Episode{Episode: &raftlog.Episode{State: raftlog.EpisodeState_EPISODE_STATE_QUEUED}}}}))
	require.Len(t, left([]*raftlog.Record{
		{Record: &raftlog.Record_Episode{Episode: &raftlog.Episode{State: raftlog.EpisodeState_EPISODE_STATE_LEASED}}},
		{Record: &raftlog.Record_Job{Job: &raftlog.VerifyJob{State: raftlog.JobState_JOB_STATE_LEASED}}},
		{Record: &raftlog.Record_Node{Node: &raftlog.Node{AgentsReserved: 1}}},
		{Record: &raftlog.Record_Gang{Gang: &raftlog.Gang{Lease: &raftlog.Lease{Holder: "t"}}}},
	}), 4)
}
