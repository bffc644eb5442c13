package state

import (
	"fmt"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

type attempt struct {
	group uint64
	index int32
	n     int32
}

// oracle follows one run from outside: it knows what was acknowledged and
// checks every event and every batch against it (invariants I1 to I5).
type oracle struct {
	t        tester
	run      string
	normal   bool // nothing was lost or rejected: nothing may go stale, straggle or be dropped
	fits     bool // groups are dropped, but none goes stale or straggles
	next     uint64
	sealed   map[attempt]*raftlog.Sealed // acknowledged and not yet resolved
	tokens   map[attempt]*raftlog.Sealed // all that was ever sealed
	current  map[uint64]map[int32]int32  // group and member: the attempt that counts
	admitted map[uint64]*raftlog.GroupAdmitted
	ended    map[uint64]string
	consumed map[uint64]int64
	steps    map[int64][]uint64
	settled  map[attempt]bool
	over     bool
	lineage  int64
	again    map[int64][]uint64 // steps that a rollback undid, and their batches
}

func newOracle(t tester, run string) *oracle {
	return &oracle{
		t: t, run: run, next: 1, sealed: map[attempt]*raftlog.Sealed{}, tokens: map[attempt]*raftlog.Sealed{},
		current: map[uint64]map[int32]int32{}, admitted: map[uint64]*raftlog.GroupAdmitted{}, ended: map[uint64]string{},
		consumed: map[uint64]int64{}, steps: map[int64][]uint64{}, settled: map[attempt]bool{}, lineage: 1, again: map[int64][]uint64{},
	}
}

// observe is told of every command that was applied.
func (o *oracle) observe(before, after *State, op *raftlog.Op, res *raftlog.Result) {
	o.t.Helper()
	if _, mirrors := op.GetOp().(*raftlog.Op_Mirrored); !mirrors {
		after.outbox.Ascend(seqKey(o.next), func(_ string, e *raftlog.Event) bool {
			require.Equal(o.t, o.next, e.Seq, "events have no gaps")
			o.next++
			require.False(o.t, o.over, "an event after the run's end")
			o.event(before, after, e)
			return true
		})
	}
	if b := res.GetTakeBatch(); b.GetReady() {
		o.batch(before, after, b)
	}
	r := after.Run(o.run)
	if r == nil {
		return
	}
	for _, g := range after.Groups(o.run) {
		if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE {
			low := o.lowest(g)
			if low < 0 {
				low = g.LiveAtAdmission
			}
			require.Equal(o.t, low, g.Bound, "group %d", g.Id)
		}
	}
	if o.normal {
		require.Zero(o.t, r.Counters.Stale+r.Counters.Straggler+r.Counters.GroupsDropped+r.Counters.AttemptsLost)
	}
}

func (o *oracle) event(before, after *State, e *raftlog.Event) {
	o.t.Helper()
	switch v := e.Event.(type) {
	case *raftlog.Event_GroupAdmitted:
		o.admit(after, v.GroupAdmitted)
	case *raftlog.Event_Sealed:
		k := attempt{v.Sealed.Group, v.Sealed.Index, v.Sealed.Attempt}
		require.NotContains(o.t, o.tokens, k, "sealed twice")
		o.sealed[k], o.tokens[k] = v.Sealed.Sealed, v.Sealed.Sealed
		o.current[k.group][k.index] = k.n
	case *raftlog.Event_Settled:
		o.settle(v.Settled)
	case *raftlog.Event_AttemptLost:
		l := v.AttemptLost
		k := attempt{l.Group, l.Index, l.Attempt}
		_, was := o.sealed[k]
		require.Equal(o.t, was, l.Sealed, "%+v", k)
		require.NotEmpty(o.t, l.Reason)
		delete(o.sealed, k)
		delete(o.current[k.group], k.index)
	case *raftlog.Event_GroupEnded:
		o.end(v.GroupEnded)
	case *raftlog.Event_StepCommitted:
		c := v.StepCommitted
		require.Equal(o.t, before.Run(o.run).Head, c.Step, "steps commit in order")
		require.NotContains(o.t, o.steps, c.Step)
		require.Len(o.t, c.Groups, int(after.Run(o.run).Config.GroupsPerStep))
		require.Equal(o.t, o.lineage, c.Lineage)
		if was, undone := o.again[c.Step]; undone {
			require.Equal(o.t, was, c.Groups, "step %d is trained again with its batch", c.Step)
			delete(o.again, c.Step)
		}
		o.steps[c.Step] = c.Groups
	case *raftlog.Event_RolledBack:
		o.rollBack(v.RolledBack)
	case *raftlog.Event_RunEnded:
		o.over = true
	}
}

// admit is invariant I1 at the moment of admission.
func (o *oracle) admit(after *State, a *raftlog.GroupAdmitted) {
	o.t.Helper()
	require.NotContains(o.t, o.admitted, a.Group)
	o.admitted[a.Group] = a
	o.current[a.Group] = map[int32]int32{}
	if a.Suite != "" {
		return
	}
	outstanding := 0
	for id, g := range o.admitted {
		if _, ended := o.ended[id]; !ended && g.Suite == "" {
			outstanding++
		}
	}
	r := after.Run(o.run)
	require.Equal(o.t, raftlog.VersionState_VERSION_STATE_LIVE, after.versionState(o.run, r.Live), "admitted for a superseded version")
	require.LessOrEqual(o.t, int64(outstanding), (int64(r.Config.LagMax)+1-(r.Head-r.Live))*int64(r.Config.GroupsPerStep), "pacing")
	require.LessOrEqual(o.t, int64(outstanding), (r.Config.Steps-r.Head)*int64(r.Config.GroupsPerStep), "more groups than steps are left for")
}

// settle is invariant I5: a reward comes from a verdict and from nothing else.
func (o *oracle) settle(v *raftlog.EpisodeSettled) {
	o.t.Helper()
	k := attempt{v.Group, v.Index, v.Attempt}
	judged := v.Verdict == "pass" || v.Verdict == "fail"
	require.Equal(o.t, judged, v.Reward != nil, "reward of %+v", v)
	require.False(o.t, o.settled[attempt{group: v.Group, index: v.Index}], "a member settles once")
	o.settled[attempt{group: v.Group, index: v.Index}] = true
	if judged {
		require.Contains(o.t, o.sealed, k, "judged before it was sealed")
		delete(o.sealed, k)
		return
	}
	require.Equal(o.t, "drop", v.Disposition)
	require.NotContains(o.t, o.sealed, k)
}

// end is invariant I3 and I4: every group ends once, for a reason, and is consumed by one committed step.
func (o *oracle) end(e *raftlog.GroupEnded) {
	o.t.Helper()
	require.NotContains(o.t, o.ended, e.Group)
	require.Contains(o.t, o.admitted, e.Group)
	o.ended[e.Group] = e.Outcome
	switch e.Outcome {
	case "consumed":
		require.Contains(o.t, o.steps[e.Step], e.Group, "the step that consumed it was committed")
		require.NotContains(o.t, o.consumed, e.Group)
		o.consumed[e.Group] = e.Step
	case "dropped":
		require.NotEmpty(o.t, e.Reason)
	default:
		require.Equal(o.t, "evaluated", e.Outcome)
		require.NotEmpty(o.t, o.admitted[e.Group].Suite)
	}
	for k := range o.sealed {
		require.NotEqual(o.t, e.Group, k.group, "member %d was sealed and is not accounted for", k.index)
	}
}

// rollBack takes back what the steps of the old lineage did, for invariant I4 is about the surviving one.
func (o *oracle) rollBack(b *raftlog.RolledBack) {
	o.t.Helper()
	require.Greater(o.t, b.Lineage, o.lineage)
	o.lineage = b.Lineage
	for n, groups := range o.steps {
		if n < b.To {
			continue
		}
		o.again[n] = groups
		delete(o.steps, n)
		for _, g := range groups {
			require.Equal(o.t, n, o.consumed[g])
			delete(o.consumed, g)
			delete(o.ended, g)
		}
	}
}

// lowest is the lowest version of a group's tokens, -1 when it has none.
func (o *oracle) lowest(g *raftlog.Group) int64 {
	low := int64(-1)
	for index, n := range o.current[g.Id] {
		s := o.tokens[attempt{g.Id, index, n}]
		if s.GetTokens() > 0 && (low < 0 || s.MinVersion < low) {
			low = s.MinVersion
		}
	}
	return low
}

// batch is invariant I2, and the rule that what stays behind still fits.
func (o *oracle) batch(before, after *State, b *raftlog.TakeBatchResult) {
	o.t.Helper()
	r := after.Run(o.run)
	lag := int64(r.Config.LagMax)
	require.Equal(o.t, r.Head, b.Step)
	require.Len(o.t, b.Groups, int(r.Config.GroupsPerStep))
	for _, g := range b.Groups {
		require.NotContains(o.t, o.ended, g.Group, "a batch of what has ended")
		require.Empty(o.t, o.admitted[g.Group].Suite, "an evaluation is never trained")
		for _, x := range g.Members {
			require.Equal(o.t, x.Verdict == "pass" || x.Verdict == "fail", x.Reward != nil)
			if x.Disposition != "drop" {
				require.NotNil(o.t, x.Reward, "in the statistics without a reward")
			}
			if s := o.tokens[attempt{g.Group, x.Index, x.Attempt}]; s.GetTokens() > 0 && x.Disposition != "drop" {
				require.GreaterOrEqual(o.t, s.MinVersion, b.Step-lag, "token beyond the bound")
				require.LessOrEqual(o.t, s.MaxVersion, b.Step)
			}
		}
	}
	if _, assigned := before.steps.Get(numberKey(o.run, b.Step)); assigned {
		require.Empty(o.t, changed(before, after, "group"), "the same batch again")
		return
	}
	due, open := map[int64]int64{}, map[int64]bool{} // what stays behind, by deadline
	for _, g := range after.outstanding(r) {
		if g.State != raftlog.GroupState_GROUP_STATE_ASSIGNED {
			due[g.Bound+lag]++
			open[g.Bound+lag] = open[g.Bound+lag] || g.State == raftlog.GroupState_GROUP_STATE_OPEN
		}
	}
	var behind int64
	waiting := false
	for d := int64(0); d <= r.Config.Steps+lag; d++ {
		behind += due[d]
		waiting = waiting || open[d]
		if behind > max(0, d-b.Step)*int64(r.Config.GroupsPerStep) {
			require.False(o.t, o.normal || o.fits || waiting, "%d groups are due by step %d, after step %d", behind, d, b.Step)
		}
	}
}

func changed(a, b *State, kind string) []string {
	var out []string
	for _, c := range changes(a, b) {
		if len(c) > len(kind) && c[:len(kind)+1] == kind+" " {
			out = append(out, c)
		}
	}
	return out
}

// done checks the books when a run has ended.
func (o *oracle) done(s *State) {
	o.t.Helper()
	r := s.Run(o.run)
	require.True(o.t, o.over, "state %s", StateName(r.State))
	require.NotEmpty(o.t, r.Reason)
	require.Empty(o.t, o.sealed, "acknowledged and never accounted for")
	require.Len(o.t, o.ended, len(o.admitted), "every group ended")
	require.EqualValues(o.t, len(o.consumed), r.Counters.GroupsConsumed)
	require.Len(o.t, o.steps, int(r.Head))
	if r.State == raftlog.RunState_RUN_STATE_SUCCEEDED && !r.Stopping {
		require.Equal(o.t, r.Config.Steps, r.Head, "success is the number of steps that was asked for")
	}
	if o.normal {
		for id, g := range o.admitted {
			if g.Suite == "" {
				require.Equal(o.t, "consumed", o.ended[id], "trained is what was dispatched")
			}
		}
	}
}

// replay applies a log to a new state, restoring it from its own records at one point, and compares.
func (m *machine) replay(restoreAt int) {
	m.t.Helper()
	s := New()
	if m.base != nil {
		s = m.base.Fork()
	}
	for i, e := range m.log {
		if i == restoreAt {
			s = restored(m.t, s)
		}
		s.Apply(e)
	}
	a, b := dump(m.t, m.s), dump(m.t, s)
	require.Equal(m.t, len(a), len(b))
	for i := range a {
		if string(a[i]) != string(b[i]) {
			require.Fail(m.t, fmt.Sprintf("record %d differs after a replay that was restored at %d", i, restoreAt))
		}
	}
}
