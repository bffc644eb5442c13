package progress

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trajectory"
)

func TestAudit(t *testing.T) {
	sealed := func(settled bool, lost string) *trajectory.Attempt {
		a := &trajectory.Attempt{Sealed: &raftlog.Sealed{}}
		if settled {
			a.Settled = &raftlog.EpisodeSettled{}
		}
		if lost != "" {
			a.Lost = &raftlog.AttemptLost{Reason: lost}
		}
		return a
	}
	group := func(outcome, reason string, a *trajectory.Attempt) *trajectory.Group {
		g := &trajectory.Group{Attempts: []*trajectory.Attempt{a}}
		if outcome != "" {
			g.End = &raftlog.GroupEnded{Outcome: outcome, Reason: reason}
		}
		return g
	}
	for _, c := range []struct {
		name  string
		group *trajectory.Group
		ended bool
		lost  int64
	}{
		{"settled and consumed", group("consumed", "", sealed(true, "")), true, 0},
		{"settled and evaluated", group("evaluated", "", sealed(true, "")), true, 0},
		{"consumed without it", group("consumed", "", sealed(false, "")), true, 1},
		{"given up with a reason", group("consumed", "", sealed(false, "verifier_crash")), true, 0},
		{"dropped with a reason", group("dropped", "straggler", sealed(false, "")), true, 0},
		{"dropped without one", group("dropped", "", sealed(false, "")), true, 1},
		{"forgotten", group("", "", sealed(true, "")), true, 1},
		{"still open", group("", "", sealed(false, "")), false, 0},
		{"never sealed", group("", "", &trajectory.Attempt{}), true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &trajectory.Run{Groups: []*trajectory.Group{c.group}}
			if c.ended {
				r.State = "succeeded"
			}
			lost, twice := Audit(r)
			require.Equal(t, c.lost, lost)
			require.Zero(t, twice)
		})
	}
	step := func(groups ...uint64) *trajectory.TrainStep {
		return &trajectory.TrainStep{StepCommitted: &raftlog.StepCommitted{Groups: groups}}
	}
	_, twice := Audit(&trajectory.Run{Steps: []*trajectory.TrainStep{step(1, 2), step(3, 2), step(4)}})
	require.EqualValues(t, 1, twice)
}
