package state

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestSettle(t *testing.T) {
	m := fleet(t)
	g := m.lease(1)[0]
	m.seal(g)
	j := m.leaseJobs(5)[0]
	require.Equal(t, "sha256:art", j.Artifacts)
	require.Equal(t, "stop", j.EndReason)
	require.Equal(t, g.TaskRef, j.Task)
	require.Equal(t, "host-1", j.Host)
	older := proto.CloneOf(j)
	older.Fence--
	next := proto.CloneOf(j)
	next.Attempt++
	for name, tc := range map[string]struct {
		job     *raftlog.JobGrant
		verdict string
		reward  *float64
		code    raftlog.Code
	}{
		"an older fence":   {older, "pass", proto.Float64(1), raftlog.Code_CODE_FENCED},
		"another attempt":  {next, "pass", proto.Float64(1), raftlog.Code_CODE_FENCED},
		"indeterminate":    {j, "indeterminate", nil, raftlog.Code_CODE_INVALID},
		"no verdict":       {j, "", proto.Float64(1), raftlog.Code_CODE_INVALID},
		"no reward":        {j, "pass", nil, raftlog.Code_CODE_INVALID},
		"not a number":     {j, "fail", proto.Float64(math.NaN()), raftlog.Code_CODE_INVALID},
		"not finite":       {j, "pass", proto.Float64(math.Inf(1)), raftlog.Code_CODE_INVALID},
		"an unknown group": {&raftlog.JobGrant{Run: "r", Group: 99, Attempt: 1, Fence: j.Fence}, "pass", proto.Float64(1), raftlog.Code_CODE_FENCED},
		"an unknown run":   {&raftlog.JobGrant{Run: "none", Group: 1, Attempt: 1, Fence: j.Fence}, "pass", proto.Float64(1), raftlog.Code_CODE_FENCED},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.code, m.settleAs(tc.job, tc.verdict, tc.reward)) })
	}
	m.settle(j, 0.5)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.settleAs(j, "fail", proto.Float64(0)), "settled for good")
	ep := m.episode(g.Group, g.Index)
	require.Equal(t, "pass", ep.Verdict)
	require.Equal(t, "train", ep.Disposition)
	require.Equal(t, 0.5, ep.GetReward())
	c := m.r().Counters
	require.EqualValues(t, 1, c.EpisodesSettled)
	require.EqualValues(t, 1, c.EpisodesPassed)
	require.EqualValues(t, 10, c.Tokens)
	ev := events(m.s, func(e *raftlog.Event) *raftlog.EpisodeSettled { return e.GetSettled() })
	require.Len(t, ev, 1)
	require.Equal(t, 0.5, ev[0].GetReward())
	require.Equal(t, "stop", ev[0].EndReason)
	host, _ := m.s.nodes.Get("host/host-1")
	require.Zero(t, host.VerifiersReserved)
}

func TestDispositionOfLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want string
		on           map[string]string
	}{
		"default mask":                 {"max_tokens", "mask", nil},
		"default train":                {"max_turns", "train", nil},
		"overridden":                   {"max_turns", "baseline_only", map[string]string{"max_turns": "baseline_only"}},
		"model reasons are not limits": {"stop", "train", map[string]string{"stop": "mask"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].LimitsOn = tc.on })
			g := m.lease(1)[0]
			require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(g, sealed(tc.reason, 0, 0)))
			m.judge(0)
			require.Equal(t, tc.want, m.episode(g.Group, g.Index).Disposition)
			require.Equal(t, tc.want == "mask", m.r().Counters.Masked == 1)
		})
	}
}

// A verifier that cannot decide is retried; then the verdict is indeterminate,
// the attempt lost and the member played again. It is never a reward.
func TestVerifierRetriesThenIndeterminate(t *testing.T) {
	for _, reason := range []string{"verifier_timeout", "verifier_crash", "reward_missing", "malformed_reward", "env_crash", "task_setup_failed"} {
		t.Run(reason, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].VerifyRetries = 2 })
			g := m.lease(1)[0]
			m.seal(g)
			for try := range int32(3) {
				j := m.leaseJobs(1)[0]
				require.Equal(t, try, j.Tries)
				require.Equal(t, raftlog.Code_CODE_OK, m.failJob(j, reason))
				require.Equal(t, raftlog.Code_CODE_FENCED, m.failJob(j, reason))
			}
			require.Empty(t, m.s.Jobs(m.run))
			ep := m.episode(g.Group, g.Index)
			require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_QUEUED, ep.State)
			require.EqualValues(t, 2, ep.Attempt)
			require.Nil(t, ep.Reward)
			require.Nil(t, ep.Sealed)
			c := m.r().Counters
			require.EqualValues(t, 1, c.EpisodesIndeterminate)
			require.Zero(t, c.EpisodesSettled)
			lost := events(m.s, func(e *raftlog.Event) *raftlog.AttemptLost { return e.GetAttemptLost() })
			require.Len(t, lost, 1)
			require.True(t, lost[0].Sealed)
			require.Equal(t, reason, lost[0].Reason)
			require.EqualValues(t, 1, m.r().Failures[0].Count, "once, not once a retry")
		})
	}
}

func TestPlatformFailuresOfVerifiersAreFree(t *testing.T) {
	m := fleet(t)
	m.seal(m.lease(1)[0])
	for range 20 {
		require.Equal(t, raftlog.Code_CODE_OK, m.failJob(m.leaseJobs(1)[0], "host_lost"))
	}
	require.Equal(t, raftlog.Code_CODE_INVALID, m.failJob(m.leaseJobs(1)[0], "nonsense"))
	require.Zero(t, m.s.Jobs(m.run)[0].Tries)
	require.Empty(t, m.r().Failures)
}

func TestVerifierLeaseExpires(t *testing.T) {
	m := fleet(t)
	m.seal(m.lease(1)[0])
	j := m.leaseJobs(1)[0]
	m.advance(LeaseTTL, "verify/r/000000000001/000000")
	require.Equal(t, raftlog.JobState_JOB_STATE_QUEUED, m.s.Jobs(m.run)[0].State)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.settleAs(j, "pass", proto.Float64(1)))
	k := m.leaseJobs(1)[0]
	require.Zero(t, k.Tries)
	m.settle(k, 1)
}
