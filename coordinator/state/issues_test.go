package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Each test is named after a report about another system that a state machine
// can get right or wrong.

// The buffer stood at 127 of 128 because a worker's task had failed without a word.
func TestSkyRL1173_SilentTaskIsReplaced(t *testing.T) {
	m := fleet(t)
	g := m.join()
	grants := m.lease(8)
	for _, x := range grants[1:] {
		m.seal(x)
	}
	m.judge(1)
	// The worker lives and beats; only this one episode it has forgotten.
	m.advance(LeaseTTL, lease.Episode("r", 1, 0))
	again := m.lease(1)[0]
	require.EqualValues(t, 1, again.Group)
	m.seal(again)
	m.judge(1)
	require.True(t, m.take(g).Ready)
}

// One member that never returns wedged the step, and resuming drew the same task for ever.
func TestNeMoRL3238_StragglerDoesNotWedge(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.EpisodeDeadlineNs, c.Steps, c.NoProgressNs = 0, 0, 9, 0 })
	g := m.join()
	poisoned := int32(-1)
	drawn := 0
	for m.r().Head < 3 {
		for _, x := range m.leaseResult(16).Grants {
			if poisoned < 0 {
				poisoned = x.Task
			}
			if x.Task == poisoned {
				if x.Index == 0 {
					drawn++
				}
				continue // never comes back
			}
			m.seal(x)
		}
		m.judge(1)
		if b := m.take(g); b.Ready {
			m.commit(g, b.Step)
			m.publishNow()
		} else {
			m.advance(600 * second)
		}
	}
	require.Equal(t, 3, drawn, "once and two requeues")
	require.EqualValues(t, 3, m.r().Counters.Straggler)
}

// Sixty-four nodes idled for hours after every collector had died.
func TestNeMoRL3488_AllProducersDead(t *testing.T) {
	m := fleet(t)
	m.join()
	m.lease(4)
	m.leave(RoleRollout)
	var names []string
	for _, a := range m.s.Alarms(m.run) {
		names = append(names, a.Name)
	}
	require.Equal(t, []string{"no-rollout"}, names, "at once")
	require.Contains(t, m.s.Why(m.run), "a rollout worker: none is ready")
	m.advance(900 * second)
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
	require.Contains(t, m.r().Reason, "a rollout worker: none is ready")
}

// The end of a data set's epoch was a deadlock.
func TestNeMoRL2899_EpochWraps(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		t.Run(fmt.Sprintf("shuffle=%v", shuffle), func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) {
				c.LagMax, c.GroupsPerStep, c.Steps, c.Envs[0].GroupSize = 0, 4, 9, 1
				c.Envs[0].Tasks, c.Envs[0].Shuffle = c.Envs[0].Tasks[:3], shuffle
			})
			g := m.join()
			seen := map[int32]int{}
			for range 3 {
				for _, x := range m.lease(4) {
					seen[x.Task]++
					m.seal(x)
				}
				m.judge(1)
				m.step(g)
				m.publishNow()
			}
			require.Equal(t, map[int32]int{0: 4, 1: 4, 2: 4}, seen)
		})
	}
}

// Lag 0 evicted everything while the generator was still updating.
func TestTorchforge557_LagZeroAdmitsOnlyWhatItCanTrain(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax = 0 })
	g := m.join()
	for range 3 {
		m.complete(4)
		require.Empty(t, m.leaseResult(1).Grants)
		m.step(g)
		if terminal(m.r().State) {
			break
		}
		require.Empty(t, m.leaseResult(1).Grants, "the new version is not live")
		m.publishNow()
	}
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
	require.Zero(t, m.r().Counters.Stale+m.r().Counters.GroupsDropped)
}

// A resume set the version to 0, so that all rollouts were outdated; or inflated
// the capacity, because the counter began at 0 and the version did not.
func TestCosmosRL503_AReaL1345_NothingRestartsAtZero(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Steps = 9 })
	g := m.join()
	for range 4 {
		m.complete(4)
		m.step(g)
		m.publishNow()
	}
	m.lease(3)
	before := *m
	m.s = restored(t, m.s)
	require.Equal(t, before.s.room(before.r()), m.s.room(m.r()))
	require.EqualValues(t, 4, m.r().Live)
	require.EqualValues(t, 4, m.r().Head)
	m.registerFresh()
	x := m.lease(1)[0]
	require.EqualValues(t, 4, x.Live)
	require.Equal(t, "m4", m.join().Manifest)
	require.LessOrEqual(t, len(m.leaseResult(100).Grants), 7)
}

// Workers started before the checkpoint was loaded and filled the queue with the base model's data.
func TestTRL5293_NoLeaseBeforeTheVersionIsLive(t *testing.T) {
	m := newMachine(t)
	m.registerAll()
	m.create(config())
	require.Empty(t, m.leaseResult(4).Grants)
	m.join()
	require.Empty(t, m.leaseResult(4).Grants)
	m.publishNow()
	require.Len(t, m.leaseResult(4).Grants, 4)
}

// Weight transfer hung for ever; the fleet must go on with what it serves.
func TestTRL6796_PublicationHasADeadline(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	m.step(g)
	p := m.leasePublish()
	m.advance(119 * second)
	require.Equal(t, "another publisher", m.leasePublish().WaitsFor, "heartbeats keep it until then")
	require.Contains(t, m.s.Why(m.run), "step 1")
	m.advance(2 * second)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(p, true, "", "engine-1").Code)
	n, _ := m.s.nodes.Get("engine/engine-1")
	require.Zero(t, n.Version, "the old version keeps serving")
	require.True(t, m.leasePublish().Ready)
}

// Errors of rollouts were tolerated, and with them an engine that was dead.
func TestART315_ToleratedErrorsDoNotHideADeadEngine(t *testing.T) {
	m := fleet(t)
	m.leave(RoleEngine)
	require.Empty(t, m.leaseResult(1).Grants)
	require.Equal(t, "no-engine", m.s.Alarms(m.run)[0].Name)
	m.advance(900 * second)
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
	require.Contains(t, m.r().Reason, "an engine: none is ready")
}

// A crash lost the whole buffer, or what was generated and not yet trained.
func TestVerl7579_OpenRLHF1322_RestartKeepsWhatIsGenerated(t *testing.T) {
	m := fleet(t)
	m.join()
	grants := m.lease(8)
	for _, x := range grants[:6] {
		m.seal(x)
	}
	for _, j := range m.leaseJobs(4) {
		m.settle(j, 1)
	}
	m.s = restored(t, m.s)
	m.registerFresh()
	m.judge(1) // what was sealed is judged
	for _, x := range m.lease(2) {
		require.EqualValues(t, 4, x.Group, "only what was never sealed is played again")
		require.EqualValues(t, 2, x.Attempt)
		m.seal(x)
	}
	m.judge(1)
	g := m.join()
	require.Equal(t, []uint64{1, 2}, ids(m.step(g)))
	require.Equal(t, []uint64{3, 4}, ids(m.step(g)))
	require.Len(t, events(m.s, func(e *raftlog.Event) *raftlog.EpisodeSealed { return e.GetSealed() }), 8, "nothing sealed was lost or made twice")
}

// A third of the data, the long episodes of it, was skipped over restarts.
func TestNeMoRL3599_RestartsDoNotPreferShortEpisodes(t *testing.T) {
	w := newWorld(t, 5, simulated(2, 1, 20))
	n := 0
	w.every(15, func() {
		w.s = restored(t, w.s)
		if n++; n%3 == 0 {
			w.revive(RoleRollout)
		}
	})
	w.play(200_000)
	require.Greater(t, n, 15)
	require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, w.r().State, w.r().Reason)
	require.Zero(t, w.r().Counters.GroupsDropped)
	require.Equal(t, dispatched(w), trained(w))
}

// A resume at an epoch boundary did nothing and was a success.
func TestVerl7401_SuccessIsTheNumberOfSteps(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	m.step(g)
	m.step(g)
	m.s = restored(t, m.s)
	m.s.finish(m.run)
	require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
	require.False(t, m.take(g).Ended)
}

// Half-written checkpoints were picked up: a version is what a commit has named.
func TestPrimeRL1712_OnlyCommittedManifestsAreVisible(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	m.take(g)
	require.Equal(t, raftlog.Code_CODE_INVALID, m.commitAs(g, 0, "").Code)
	m.register(RoleTrainer, "trainer-1", 2)
	require.Equal(t, "m0", m.join().Manifest)
	require.Len(t, m.s.Versions(m.run), 1)
}

// A restarted trainer served step 0, and workers took it.
func TestMarin1829_VersionsNeverFall(t *testing.T) {
	m := fleet(t)
	g := m.join()
	m.complete(8)
	m.step(g)
	m.publishNow()
	require.Equal(t, raftlog.Code_CODE_OK, m.commitAs(g, 0, "m1").Code, "only as the repeat that it is")
	require.EqualValues(t, 1, m.r().Head)
	require.Equal(t, "a committed version", m.leasePublish().WaitsFor)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(&raftlog.LeasePublishResult{Version: 0, Fence: 1}, true, "", "engine-1").Code)
	require.EqualValues(t, 1, m.r().Live)
}

// A task that had timed out was claimed again; then its late result crashed the training.
func TestAgentLightning218_LateResultIsFencedNotFatal(t *testing.T) {
	m := fleet(t)
	old := m.lease(1)[0]
	m.advance(LeaseTTL, lease.Episode("r", 1, 0))
	again := m.lease(1)[0]
	require.Equal(t, old.Index, again.Index)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(old, sealed("stop", 0, 0)))
	m.seal(again)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(old, sealed("stop", 0, 0)))
	m.judge(1)
}

// Nine resets of ten failed and were trained as 0.
func TestGym2552_ResetFailuresAreNoRewards(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].MaxAttempts, c.LagMax = 3, 0 })
	for i := 0; !terminal(m.r().State); i++ {
		for _, x := range m.leaseResult(4).Grants {
			if i++; i%10 == 0 {
				m.seal(x)
				m.judge(1)
				continue
			}
			m.failEpisode(x, "env_crash")
		}
	}
	require.Equal(t, raftlog.RunState_RUN_STATE_FAILED, m.r().State)
	require.Contains(t, m.r().Reason, "every task is quarantined")
	for _, f := range m.r().Failures {
		require.True(t, f.Quarantined)
		require.Contains(t, f.Reason, "env_crash: because", "the cause is named")
	}
	for _, e := range events(m.s, func(e *raftlog.Event) *raftlog.EpisodeSettled { return e.GetSettled() }) {
		require.Equal(t, 1.0, e.GetReward(), "the only rewards are those of the episodes that were played")
	}
}

// Verifier timeouts were trained as failures, and -1 of a dead grader was read as a reward.
func TestRLLM710_VerifierFailuresAreDistinctAndNoRewards(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].VerifyRetries, c.Envs[0].MaxAttempts = 0, 99 })
	reasons := []string{"verifier_timeout", "verifier_crash", "reward_missing", "malformed_reward", "env_crash"}
	for _, reason := range reasons {
		m.seal(m.lease(1)[0])
		j := m.leaseJobs(1)[0]
		require.Equal(t, raftlog.Code_CODE_INVALID, m.settleAs(j, "error", proto.Float64(-1)))
		require.Equal(t, raftlog.Code_CODE_OK, m.failJob(j, reason))
	}
	var got []string
	for _, l := range events(m.s, func(e *raftlog.Event) *raftlog.AttemptLost { return e.GetAttemptLost() }) {
		got = append(got, l.Reason)
	}
	require.Equal(t, reasons, got)
	require.Zero(t, m.r().Counters.EpisodesSettled)
}

// Exceptions were returned as normal ends of an episode.
func TestUniRL214_FailuresCannotBeSealed(t *testing.T) {
	m := fleet(t)
	x := m.lease(1)[0]
	for _, reason := range []string{"env_crash", "worker_lost", "engine_error", "unsolvable", "cancelled", "", "error"} {
		require.Equal(t, raftlog.Code_CODE_INVALID, m.sealAs(x, sealed(reason, 0, 0)), reason)
	}
}

// One failed rollout, or one crash of a container, ended the step or the run.
func TestSkyRL1613_Tinker497_OneFailureIsOneFailure(t *testing.T) {
	for _, rule := range []string{"replace", "keep", "drop"} {
		t.Run(rule, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].ShortGroup, c.Envs[0].KeepMin = rule, 1 })
			g := m.join()
			grants := m.lease(8)
			require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[0], "env_crash"))
			for _, x := range grants[1:] {
				m.sealAs(x, sealed("stop", 0, 0)) // the sibling's is refused when its group was dropped
			}
			m.judge(1)
			for len(m.leaseResult(0).Grants) == 0 && m.s.counts[m.run].queued > 0 {
				m.complete(1)
			}
			require.True(t, m.take(g).Ready)
			require.Equal(t, raftlog.RunState_RUN_STATE_RUNNING, m.r().State)
		})
	}
}

// Training went on with empty epochs, and estimators ran on incomplete groups.
func TestNeMoRL2305_Molt48_NoBatchOfLessThanWholeGroups(t *testing.T) {
	m := fleet(t)
	g := m.join()
	for _, x := range m.lease(8)[:4] {
		b := m.take(g)
		require.False(t, b.Ready)
		require.Empty(t, b.Groups)
		m.seal(x)
		m.judge(1)
	}
	b := m.take(g)
	require.True(t, b.Ready)
	for _, x := range b.Groups {
		require.Len(t, x.Members, 2)
		for _, e := range x.Members {
			require.NotEmpty(t, e.Verdict)
		}
	}
}

// A completed group was dropped when it came late: pacing makes room for it instead.
func TestSlime2238_Marin8955_LateGroupsAreTrained(t *testing.T) {
	w := newWorld(t, 11, simulated(4, 1, 15))
	w.watch.normal = true
	w.play(100_000)
	require.Equal(t, dispatched(w), trained(w))
	require.Zero(t, w.r().Counters.Stale)
}

// Samples dropped as stale pinned the cursor: the cursor is what was drawn, whatever became of it.
func TestTRL7294_DropsDoNotPinTheCursor(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.Envs[0].ShortGroup, c.MaxRequeues = "drop", 0 })
	last := int32(-1)
	for range 8 {
		x := m.lease(1)[0]
		require.Greater(t, x.Task, last)
		last = x.Task
		m.failEpisode(x, "env_crash")
	}
}
