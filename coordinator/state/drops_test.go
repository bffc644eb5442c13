package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A task comes back as often as maxRequeues says, whichever of its groups are
// dropped; training it once gives it as many chances again.
func TestRequeuesAreCountedByTaskAndLength(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) {
		c.GroupsPerStep, c.Envs[0].GroupSize, c.Envs[0].ShortGroup, c.Envs[0].MaxAttempts, c.MaxRequeues = 1, 1, "drop", 1000, 2
		c.Envs[0].Tasks = c.Envs[0].Tasks[:1]
		c.LagMax, c.Steps, c.TtlNs = 0, 100, 600*second
	})
	g := m.join()
	fail := func() *raftlog.TaskDrops {
		require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(m.lease(1)[0], "env_crash"))
		return m.s.Drops(m.run)[0]
	}
	require.EqualValues(t, 1, fail().Times)
	require.EqualValues(t, 2, fail().Times)
	require.Len(t, m.r().Requeues, 1)
	d := fail()
	require.EqualValues(t, 2, d.Times)
	require.EqualValues(t, 1, d.GivenUp)
	require.Empty(t, m.r().Requeues, "it was drawn anew")
	require.EqualValues(t, []int32{3}, d.Lengths, "nothing was sampled")
	m.complete(1)
	m.step(g)
	m.publishNow()
	require.Zero(t, m.s.Drops(m.run)[0].Times)
	require.EqualValues(t, 1, fail().Times)

	m.complete(1) // 10 tokens
	m.advance(600 * second)
	d = m.s.Drops(m.run)[0]
	require.EqualValues(t, []int32{4, 0, 0, 0, 1}, d.Lengths, "8 to 15 tokens")
	require.Len(t, restored(t, m.s).Drops(m.run), 1)
	m.lease(1)
	m.control("cancel", "")
	require.Equal(t, d, m.s.Drops(m.run)[0], "that says nothing of the task")
	m.mirrorAll()
	m.control("remove", "")
	require.Empty(t, m.s.Drops(m.run))
}
