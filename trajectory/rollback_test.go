package trajectory

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// undo puts before the commit of step 1 a first one, with all that a state
// machine says of it, and a rollback to version 1.
func undo(events []*raftlog.Event) (before, after []*raftlog.Event) {
	for i, e := range events {
		c := e.GetStepCommitted()
		if c.GetStep() != 1 {
			continue
		}
		before = append(before, events[:i]...)
		old := proto.CloneOf(c)
		old.Manifest, old.Ledger = string(digest("lost")), string(digest("lost"))
		before = append(before, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: old}})
		for _, g := range c.Groups {
			before = append(before, &raftlog.Event{Event: &raftlog.Event_GroupEnded{GroupEnded: &raftlog.GroupEnded{Group: g, Outcome: "consumed", Step: 1}}})
		}
		before = append(before,
			&raftlog.Event{Event: &raftlog.Event_EvalDone{EvalDone: &raftlog.EvalDone{Suite: "held-out", Version: 2, Scored: 7, Reward: 9}}},
			&raftlog.Event{Event: &raftlog.Event_RolledBack{RolledBack: &raftlog.RolledBack{To: 1, Lineage: 2, Reason: "the trainer is gone"}}},
			&raftlog.Event{Event: &raftlog.Event_VersionChanged{VersionChanged: &raftlog.VersionChanged{Version: 2, State: "superseded", Reason: "the trainer is gone"}}})
		return before, events[i:]
	}
	return events, nil
}

// A batch that was trained, given up and trained again was trained once.
func TestVerify_RolledBackAndTrainedAgain(t *testing.T) {
	p := newPlan()
	p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
		before, after := undo(events)
		after[0].GetStepCommitted().Lineage = 2
		return append(before, after...)
	}
	for i := range p.ledgers[1] {
		p.ledgers[1][i].Lineage = 2
	}
	s := p.write(t)
	acks := filepath.Join(t.TempDir(), "acks")
	journal, err := NewAckJournal(acks)
	require.NoError(t, err)
	require.NoError(t, journal.Committed("run-1", 1, digest("lost"), digest("lost")))
	require.NoError(t, journal.Close())
	rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{AcksFile: acks})
	require.NoError(t, err)
	require.Empty(t, rep.Findings)
	require.Equal(t, 2, rep.Steps)
	require.Equal(t, 1, rep.Acks, "what was acknowledged is in the record, if not in the lineage")
	r, err := OpenRun(t.Context(), s, "run-1")
	require.NoError(t, err)
	require.Equal(t, "superseded", r.Versions[2].State)
	require.Equal(t, "the trainer is gone", r.Versions[2].Reason)
	require.Equal(t, "live", r.Versions[3].State)
	require.Len(t, r.Evals, 1)
}

// Given up and never trained again, its groups are dropped with the run; that they are silent would be a finding.
func TestVerify_RolledBackAndEnded(t *testing.T) {
	for name, how := range map[string]string{"dropped": "dropped", "forgotten": ""} {
		t.Run(name, func(t *testing.T) {
			p := newPlan()
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				before, after := undo(events)
				for _, e := range after {
					switch end := e.GetGroupEnded(); {
					case e.GetStepCommitted() != nil || e.GetVersionChanged() != nil:
						continue
					case end.GetStep() == 1 && how == "":
						continue
					case end.GetStep() == 1:
						end.Outcome, end.Reason, end.Step = how, "run cancelled", -1
					}
					before = append(before, e)
				}
				return before
			}
			rep, err := Verify(t.Context(), p.write(t), "run-1", VerifyOptions{})
			require.NoError(t, err)
			require.Equal(t, 1, rep.Steps)
			if how != "" {
				require.Empty(t, rep.Findings)
				return
			}
			require.NotEmpty(t, rep.Findings)
			require.Contains(t, rep.String(), "neither consumed nor dropped")
		})
	}
}
