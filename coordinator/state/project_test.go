package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestBudgetEndsTheRun(t *testing.T) {
	for name, tc := range map[string]struct {
		budget func(*raftlog.RunConfig)
		spend  func(*machine)
		want   string
	}{
		"tokens": {
			func(c *raftlog.RunConfig) { c.BudgetTokens = 40 },
			func(m *machine) { m.complete(4) },
			"budget: 40 tokens were sampled, and it was given 40",
		},
		"sandboxes": {
			func(c *raftlog.RunConfig) { c.BudgetSandboxNs = 60 * second },
			func(m *machine) {
				g := m.lease(2)
				m.advance(20 * second)
				m.seal(g[0]) // 20 s
				m.failEpisode(g[1], "env_crash")
				j := m.leaseJobs(1)
				m.advance(20 * second)
				m.settle(j[0], 1)
			},
			"budget: sandboxes were leased for 1m0s, and it was given 1m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, tc.budget)
			tc.spend(m)
			require.True(t, m.tick())
			require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
			require.Equal(t, tc.want, m.r().Reason)
		})
	}
	m := newMachine(t)
	m.registerAll()
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: "r", Config: config(func(c *raftlog.RunConfig) { c.BudgetTokens = -1 })}}})
	require.Equal(t, raftlog.Code_CODE_INVALID, r.Code)
}

// What a project used is not forgotten with its runs.
func TestProjectCountsRemovedRuns(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Project = "p" })
	m.complete(3)
	m.advance(5 * second)
	one := m.s.Projects()
	require.Len(t, one, 1)
	require.Equal(t, "p", one[0].Name)
	require.EqualValues(t, 1, one[0].Runs)
	require.EqualValues(t, 30, one[0].Counters.Tokens)
	m.control("cancel", "")
	m.mirrorAll()
	want := m.s.Projects()[0]
	require.Equal(t, raftlog.Code_CODE_OK, m.control("remove", "").Code)
	require.Equal(t, want.String(), m.s.Projects()[0].String())
	m.create(config())
	names := []string{}
	for _, p := range restored(t, m.s).Projects() {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{DefaultProject, "p"}, names)
	// Every counter is summed: one that is added later must be, too.
	p, r := &raftlog.Project{Counters: &raftlog.Counters{}}, &raftlog.Run{Counters: &raftlog.Counters{}}
	fill(r.Counters.ProtoReflect(), 0)
	addRun(p, r)
	require.Equal(t, r.Counters.String(), p.Counters.String())
}
