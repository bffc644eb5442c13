package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/trajectory"
)

// Each test here is a fault that users of other systems reported, as
// repository and number, brought about in the run of faults_test.go.

// A reward file, tests and expectations that the agent plants in its own sandbox are worth nothing.
func TestDawn14_Verifiers2152_PlantedRewardsAreWorthNothing(t *testing.T) {
	for _, p := range of(t, "plants") {
		require.NotNil(t, p.Settled, p.ID)
		require.NotNil(t, p.Settled.Reward, p.ID)
		require.Equal(t, p.last == "answer 1" && p.Sealed.EndReason == "stop", *p.Settled.Reward == 1, p.ID)
	}
}

// The agent cannot read what will judge it.
func TestOpenEnv972_SlopCodeBench30_TestsAreOutOfReach(t *testing.T) {
	for _, p := range of(t, "peeks") {
		for _, s := range p.tools {
			require.Equal(t, int32(3), *s.ToolResult.ExitCode, "%s saw something: %s", p.ID, *s.Content)
		}
	}
}

// What the tests leave running cannot change the reward after they have ended.
func TestHUD526_RewardWrittenLater(t *testing.T) {
	for _, p := range of(t, "honest-late") {
		if p.Settled != nil && p.Settled.Reward != nil {
			require.Equal(t, p.last == "answer 1" && p.Sealed.EndReason == "stop", *p.Settled.Reward == 1, p.ID)
		}
	}
}

// A timeout ends the command itself, its children, and what it left behind.
func TestInspect2779_TimeoutEndsTheProcesses(t *testing.T) {
	for _, p := range of(t, "hangs") {
		require.Equal(t, "wall_clock_agent", p.Sealed.EndReason, p.ID)
		require.Equal(t, trajectory.ToolTimeout, p.tools[len(p.tools)-1].ToolResult.Status, p.ID)
		require.Equal(t, "mask", p.Settled.Disposition, p.ID)
	}
	for _, p := range of(t, "hangs-behind") {
		require.NotEqual(t, "wall_clock_agent", p.Sealed.EndReason, "%s waited for what runs behind", p.ID)
	}
	require.Empty(t, left("1000.25"))
}

// A flood is counted, cut and answered, and the episode goes on.
func TestInspect1914_OutputFlood(t *testing.T) {
	for _, p := range of(t, "floods") {
		r := p.tools[0].ToolResult
		require.Equal(t, trajectory.ToolError, r.Status, p.ID)
		require.True(t, r.Truncated, p.ID)
		require.Greater(t, r.BytesTotal, int64(1<<20), p.ID)
		require.LessOrEqual(t, r.BytesKept, int64(8<<10), p.ID)
	}
}

// A fork bomb stays within its sandbox's own processes; the answer is still taken.
func TestGVisor2490_ForkBomb(t *testing.T) {
	for _, p := range of(t, "bombs") {
		require.NotNil(t, p.Settled, p.ID)
		require.NotNil(t, p.Settled.Reward, p.ID)
	}
}

// Memory that a command takes beyond its limit is a result that the agent sees.
func TestVerl2105_MemoryLimit(t *testing.T) {
	for _, p := range of(t, "memory") {
		require.Equal(t, trajectory.ToolError, p.tools[0].ToolResult.Status, p.ID)
		require.NotNil(t, p.Settled, p.ID)
	}
}

// A disk that the agent fills is the agent's: the episode ends at its limit, is
// judged without an answer, and no platform failure repeats it.
func TestSWEbench144_NoSpaceLeft(t *testing.T) {
	for _, name := range []string{"disk", "inodes"} {
		for _, p := range of(t, name) {
			require.Equal(t, int32(1), p.Attempt.Attempt, p.ID)
			require.Equal(t, "train", p.Settled.Disposition, p.ID)
			require.Zero(t, *p.Settled.Reward, p.ID)
		}
	}
}

// A link in the answer's place leads nowhere: what it points to is not handed in.
func TestCompilerExplorer6026_LinkOut(t *testing.T) {
	for _, p := range of(t, "link") {
		require.Equal(t, p.last == "answer 1" && p.Sealed.EndReason == "stop", *p.Settled.Reward == 1, p.ID)
	}
}

// Tests that die, hang, flood or leave no number each end differently, and in no reward.
func TestRLLM710_Tunix2073_NoRewardIsNoZero(t *testing.T) {
	runFaults(t)
	ends := map[string]bool{}
	for _, r := range faulted.rows {
		for _, x := range verifierFaults {
			if r.Task == x.name {
				require.Nil(t, r.Reward, r.Episode)
				ends[r.End] = true
			}
		}
	}
	for _, end := range []string{"verifier_crash", "verifier_timeout", "malformed_reward", "reward_missing"} {
		require.True(t, ends[end], end)
	}
}
