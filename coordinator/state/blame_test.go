package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// What takes all members of a group at once, such as a host that runs out of
// memory, is one failure of the task and no more.
func TestOneEventBlamesATaskOnce(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].GroupSize = 8 })
	for _, g := range m.lease(8) {
		require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(g, "env_crash"))
	}
	require.Len(t, m.r().Failures, 1)
	require.EqualValues(t, 1, m.r().Failures[0].Count)
	require.False(t, m.r().Failures[0].Quarantined)
	// A task that takes its sandboxes every time is found out by the third wave.
	for wave := 2; wave <= 3; wave++ {
		for _, g := range m.lease(8) {
			m.failEpisode(g, "env_crash")
		}
	}
	require.True(t, m.r().Failures[0].Quarantined)
}

// A job whose artifacts cannot be read neither comes back for ever nor keeps
// the others waiting: its episode is played again, and nobody is blamed.
func TestUnreadableArtifactsPlayTheEpisodeAgain(t *testing.T) {
	m := fleet(t)
	for _, g := range m.lease(2) {
		m.seal(g)
	}
	j := m.leaseJobs(1)[0]
	require.Equal(t, raftlog.Code_CODE_OK, m.failJob(j, "upload_failed"))
	ep := m.episode(j.Group, j.Index)
	require.EqualValues(t, 2, ep.Attempt)
	require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_QUEUED, ep.State)
	require.Empty(t, m.r().Failures)
	require.Len(t, m.leaseJobs(8), 1, "the other member's job")
}

// A job that is put back waits behind those that have waited longer.
func TestJobsAreJudgedInTheOrderTheyWaited(t *testing.T) {
	m := fleet(t)
	grants := m.lease(2)
	m.seal(grants[0])
	m.now += second
	m.seal(grants[1])
	first := m.leaseJobs(1)[0]
	require.Equal(t, grants[0].Index, first.Index)
	m.now += second
	require.Equal(t, raftlog.Code_CODE_OK, m.failJob(first, "host_lost"))
	require.Equal(t, grants[1].Index, m.leaseJobs(1)[0].Index)
}
