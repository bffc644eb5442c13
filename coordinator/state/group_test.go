package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func four(rule string, keep int32) func(*raftlog.RunConfig) {
	return func(c *raftlog.RunConfig) {
		c.Envs[0].GroupSize, c.Envs[0].ShortGroup, c.Envs[0].KeepMin, c.Envs[0].MaxAttempts = 4, rule, keep, 10
	}
}

func ended(s *State) []*raftlog.GroupEnded {
	return events(s, func(e *raftlog.Event) *raftlog.GroupEnded { return e.GetGroupEnded() })
}

func TestShortGroupReplace(t *testing.T) {
	m := fleet(t, four("replace", 0))
	grants := m.lease(4)
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[2], "env_crash"))
	again := m.lease(1)[0]
	require.Equal(t, grants[2].Index, again.Index)
	for _, g := range []*raftlog.EpisodeGrant{grants[0], grants[1], grants[3], again} {
		m.seal(g)
	}
	m.judge(1)
	g := m.group(1)
	require.Equal(t, raftlog.GroupState_GROUP_STATE_COMPLETE, g.State)
	for _, ep := range m.s.members(g) {
		require.Equal(t, "train", ep.Disposition)
	}
	require.Empty(t, m.r().Failures, "a success forgives")
}

// Kept short: the member ends without a reward and bounds nothing, also when version 0 is long gone.
func TestShortGroupKeep(t *testing.T) {
	m := fleet(t, four("keep", 3), func(c *raftlog.RunConfig) { c.LagMax, c.Steps, c.GroupsPerStep = 0, 9, 1 })
	gang := m.join()
	for range 2 { // versions 1 and 2
		m.complete(4)
		m.step(gang)
		m.publishNow()
	}
	grants := m.lease(4)
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[0], "env_crash"))
	id := grants[0].Group
	ep := m.episode(id, 0)
	require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_SETTLED, ep.State)
	require.Equal(t, "indeterminate", ep.Verdict)
	require.Equal(t, "drop", ep.Disposition)
	require.Nil(t, ep.Reward)
	require.EqualValues(t, 1, m.r().Counters.EpisodesIndeterminate)

	// The next one falls below keepMin and is replaced.
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[1], "env_crash"))
	require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_QUEUED, m.episode(id, 1).State)
	again := m.lease(1)[0]
	for _, g := range []*raftlog.EpisodeGrant{grants[2], grants[3], again} {
		m.seal(g)
	}
	require.EqualValues(t, 2, m.group(id).Bound)
	m.judge(1)
	b := m.step(gang)
	require.Len(t, b.Groups, 1, "not stale")
	require.Equal(t, "drop", b.Groups[0].Members[0].Disposition)
	require.Nil(t, b.Groups[0].Members[0].Reward)
	require.Zero(t, m.r().Counters.Stale)
}

func TestKeptMemberWhoseVerifierFailedCountsOnce(t *testing.T) {
	m := fleet(t, four("keep", 2), func(c *raftlog.RunConfig) { c.Envs[0].VerifyRetries = 0 })
	m.seal(m.lease(1)[0])
	require.Equal(t, raftlog.Code_CODE_OK, m.failJob(m.leaseJobs(1)[0], "verifier_crash"))
	c := m.r().Counters
	require.EqualValues(t, 1, c.EpisodesIndeterminate)
	require.EqualValues(t, 1, c.EpisodesSettled)
	require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_SETTLED, m.episode(1, 0).State)
}

// Dropped whole, its task comes back up to maxRequeues times, and what was sealed is accounted for.
func TestShortGroupDrop(t *testing.T) {
	m := fleet(t, four("drop", 0), func(c *raftlog.RunConfig) { c.GroupsPerStep, c.LagMax = 1, 0 })
	var task int32
	for round := range int32(3) {
		grants := m.lease(4)
		if round == 0 {
			task = grants[0].Task
		}
		require.Equal(t, task, grants[0].Task, "round %d", round)
		m.seal(grants[1])
		m.seal(grants[2])
		m.settle(m.leaseJobs(1)[0], 1)
		m.leaseJobs(1)
		require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[3], "env_crash"))
		g := m.group(grants[0].Group)
		require.Equal(t, raftlog.GroupState_GROUP_STATE_DROPPED, g.State)
		require.Equal(t, "short: env_crash", g.Reason)
		require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(grants[0], sealed("stop", 0, 0)))
	}
	require.NotEqual(t, task, m.lease(1)[0].Task, "the task was given up after two requeues")
	require.EqualValues(t, 3, m.r().Counters.GroupsDropped)
	lost := map[uint64][]string{}
	for _, l := range events(m.s, func(e *raftlog.Event) *raftlog.AttemptLost { return e.GetAttemptLost() }) {
		if l.Sealed {
			lost[l.Group] = append(lost[l.Group], l.Reason)
		}
	}
	require.Equal(t, map[uint64][]string{1: {"stale_cancelled"}, 2: {"stale_cancelled"}, 3: {"stale_cancelled"}}, lost,
		"the sealed member that nobody will judge")
	require.EqualValues(t, 3, m.r().Counters.AttemptsLost, "members that go with their group are not lost attempts")
}

// After maxAttempts failures with no success between them the task is quarantined.
func TestQuarantine(t *testing.T) {
	for name, tc := range map[string]struct {
		reasons []string // in turn; "ok" is a judged episode
		want    bool
	}{
		"environment":                 {[]string{"env_crash", "env_timeout", "env_crash"}, true},
		"task":                        {[]string{"task_setup_failed", "unsolvable", "task_setup_failed"}, true},
		"verifier":                    {[]string{"verifier_crash", "reward_missing", "verifier_timeout"}, true},
		"mixed":                       {[]string{"env_crash", "reward_missing", "unsolvable"}, true},
		"two are not enough":          {[]string{"env_crash", "env_crash"}, false},
		"a success forgives":          {[]string{"env_crash", "env_crash", "ok", "env_crash", "env_crash"}, false},
		"a platform loss never":       {[]string{"worker_lost", "host_lost", "engine_error", "upload_failed", "lease_expired", "platform_timeout"}, false},
		"a platform loss no forgiver": {[]string{"env_crash", "worker_lost", "env_crash", "drained", "env_crash"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) {
				c.Envs[0].Tasks = c.Envs[0].Tasks[:2]
				c.Envs[0].GroupSize, c.GroupsPerStep, c.Envs[0].VerifyRetries = 9, 1, 0
			})
			for _, reason := range tc.reasons {
				g := m.lease(1)[0]
				require.EqualValues(t, 1, g.Group)
				class := map[bool]string{true: "verify", false: "act"}[reason == "ok" || reason == "verifier_crash" || reason == "reward_missing" || reason == "verifier_timeout"]
				if class == "act" {
					require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(g, reason))
					continue
				}
				m.seal(g)
				j := m.leaseJobs(1)[0]
				if reason == "ok" {
					m.settle(j, 0)
				} else {
					require.Equal(t, raftlog.Code_CODE_OK, m.failJob(j, reason))
				}
			}
			q := events(m.s, func(e *raftlog.Event) *raftlog.TaskQuarantined { return e.GetQuarantined() })
			require.Equal(t, tc.want, len(q) == 1)
			require.Equal(t, tc.want, m.group(1).State == raftlog.GroupState_GROUP_STATE_DROPPED)
			if tc.want {
				require.Equal(t, "files-0", q[0].Task.Id)
				require.Contains(t, m.group(1).Reason, "task quarantined")
				for range 4 {
					require.EqualValues(t, 1, m.lease(1)[0].Task, "never drawn again")
				}
			}
		})
	}
}

// Two open groups of one task: the second failure past the limit drops its group and says nothing twice.
func TestQuarantineIsSaidOnce(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) {
		c.Envs[0].Tasks, c.Envs[0].MaxAttempts = c.Envs[0].Tasks[:1], 1
	})
	grants := m.lease(8)
	for _, g := range grants {
		m.failEpisode(g, "env_crash")
	}
	require.Len(t, events(m.s, func(e *raftlog.Event) *raftlog.TaskQuarantined { return e.GetQuarantined() }), 1)
	require.Len(t, ended(m.s), 4)
	require.Empty(t, m.leaseResult(1).Grants)
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State, "no task is left")
	require.Contains(t, m.r().Reason, "every task is quarantined")
}

func TestGroupTTL(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.NoProgressNs, c.BatchDeadlineNs = 0, 0 })
	m.complete(2)
	m.advance(3600*second - 1)
	require.Equal(t, raftlog.GroupState_GROUP_STATE_COMPLETE, m.group(1).State)
	m.advance(1)
	require.Equal(t, raftlog.GroupState_GROUP_STATE_DROPPED, m.group(1).State)
	require.Contains(t, m.group(1).Reason, "lag.ttl")
	require.EqualValues(t, 1, m.r().Counters.GroupsDropped)
	task := m.group(1).Task
	require.Equal(t, task, m.lease(1)[0].Task, "onStale: requeue")
}

// Time that a run stands paused does not age what it has.
func TestPauseDoesNotAgeGroups(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.BatchDeadlineNs, c.NoProgressNs = 0, 0 })
	m.complete(2)
	m.advance(3000 * second)
	m.control("pause", "overnight")
	m.advance(8 * 3600 * second)
	require.Equal(t, raftlog.Code_CODE_OK, m.control("resume", "").Code)
	m.advance(599 * second)
	require.Equal(t, raftlog.GroupState_GROUP_STATE_COMPLETE, m.group(1).State)
	m.advance(2 * second)
	require.Equal(t, raftlog.GroupState_GROUP_STATE_DROPPED, m.group(1).State)
}
