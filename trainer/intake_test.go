package trainer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trainer/objective"
	"github.com/rlfleet/rlfleet/trajectory"
)

func newTestStep(s store.ObjectStore) *step {
	cfg := DefaultConfig(testRun)
	cfg.LagMax = 1
	t := newStep(cfg, s, newToy())
	t.context = 64
	return t
}

func batchOf(n int64, groups ...*raftlog.BatchGroup) *raftlog.TakeBatchResult {
	return &raftlog.TakeBatchResult{Ready: true, Step: n, Groups: groups}
}

// Faulted members change no bit of the others' advantages (invariant I5, trap T22).
func TestFaultedMembersLeaveTheOthersAlone(t *testing.T) {
	s := newMemory()
	rewards := []float64{1, 0.3, 0, 0.1}
	var clean []member
	for _, r := range rewards {
		clean = append(clean, trained(r))
	}
	faults := []member{
		{disposition: outcome.Drop},
		{disposition: outcome.Mask, reward: ptr(1.0), end: outcome.MaxTokens},
		{disposition: outcome.Train}, // its reward is null
	}
	for _, kind := range []objective.Estimator{{Kind: objective.KindGRPO, Std: true}, {Kind: objective.KindGRPO}, {Kind: objective.KindRLOO}} {
		st := newTestStep(s)
		st.cfg.Advantage = kind
		want, err := st.group(record(t, s, 1, clean...))
		require.NoError(t, err)
		for at := range len(clean) + 1 {
			mixed := append(append(append([]member{}, clean[:at]...), faults...), clean[at:]...)
			got, err := st.group(record(t, s, 2, mixed...))
			require.NoError(t, err)
			require.Equal(t, want.stats, got.stats)
			kept := append(append([]objective.Advantage{}, got.advantages[:at]...), got.advantages[at+len(faults):]...)
			for i := range kept {
				require.True(t, kept[i].Valid)
				require.Equal(t, math.Float64bits(want.advantages[i].Value), math.Float64bits(kept[i].Value))
			}
			for _, a := range got.advantages[at : at+len(faults)] {
				require.False(t, a.Valid)
			}
		}
	}
}

// A member alone has nobody to be compared with: it is left out, and it is not a division by zero (trap T24).
func TestLoneMemberIsNotTrained(t *testing.T) {
	s := newMemory()
	got, err := newTestStep(s).intake(t.Context(), batchOf(0, record(t, s, 1, trained(1), member{disposition: outcome.Drop})))
	require.NoError(t, err)
	require.Len(t, got.samples, 1)
	require.Equal(t, trajectory.DroppedZeroAdv, got.samples[0].outcome)
	require.False(t, got.samples[0].scored)
}

func TestRefusesTokensOutsideTheBound(t *testing.T) {
	s := newMemory()
	cases := []struct {
		name string
		step int64
		v, w policy.Version
		ok   bool
	}{
		{"exactly at the bound", 5, 4, 5, true},
		{"older by one", 5, 3, 5, false},
		{"older in the last message only", 5, 5, 3, false},
		{"newer than the step", 5, 5, 6, false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			m := trained(1)
			m.v, m.w = tc.v, tc.w
			_, err := newTestStep(s).intake(t.Context(), batchOf(tc.step, record(t, s, 1, m)))
			if tc.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrBound)
			require.ErrorContains(t, err, "episode r/000000000001/000000/1")
			require.ErrorContains(t, err, "lag.max is 1")
		})
	}
}

// What is not in the loss is not read: a masked member's shard may be gone, and its tokens may be old.
func TestReadsOnlyTheLoss(t *testing.T) {
	s := newMemory()
	old := member{disposition: outcome.Mask, reward: ptr(1.0), end: outcome.MaxTokens}
	g := record(t, s, 1, trained(1), trained(0))
	away := record(t, newMemory(), 1, trained(1), trained(0), old)
	g.Members = append(g.Members, away.Members[2])
	s.gets = nil
	got, err := newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.NoError(t, err)
	require.Len(t, got.samples, 2)
	require.Len(t, s.gets, 1, "a shard is fetched once")
}

func TestMissingAndDamagedShards(t *testing.T) {
	s := newMemory()
	g := record(t, s, 1, trained(1), trained(0))
	key := store.ObjectKey(testRun, policy.Digest(g.Members[0].Sealed.Steps.Object), trajectory.Steps.Kind())
	good := s.objects[key]

	delete(s.objects, key)
	_, err := newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.ErrorIs(t, err, ErrBatch)
	require.ErrorContains(t, err, "trainer: read episode r/000000000001/000000/1: shard "+g.Members[0].Sealed.Steps.Object+" is missing from the store: restore the object from a copy")

	s.objects[key] = append([]byte{}, good...)
	s.objects[key][len(good)/2] ^= 1
	_, err = newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.ErrorIs(t, err, ErrBatch)
	require.ErrorContains(t, err, "is damaged: restore the object from a copy")

	s.objects[key] = good
	g.Members[0].Sealed.Steps, g.Members[1].Sealed.Steps = g.Members[1].Sealed.Steps, g.Members[0].Sealed.Steps
	_, err = newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.ErrorIs(t, err, ErrBatch)
	require.ErrorContains(t, err, "not its own")

	g.Members[0].Sealed.Steps = nil
	_, err = newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.ErrorIs(t, err, ErrBatch)

	_, err = newTestStep(s).intake(t.Context(), batchOf(0, record(t, s, 2, trained(1)), record(t, s, 2, trained(1))))
	require.ErrorIs(t, err, ErrBatch, "a group twice")
}

func TestDamagedCheckpoint(t *testing.T) {
	for name, spoil := range map[string]func(s *memory, key string){
		"is missing from the store": func(s *memory, key string) { delete(s.objects, key) },
		"is damaged":                func(s *memory, key string) { s.objects[key] = []byte("12345678") },
	} {
		s := newMemory()
		c := newCoordinator(putPolicy(t, s), twoSteps(t, s)...)
		spoil(s, store.ObjectKey(testRun, policy.DigestOf(make([]byte, 8)), blob))
		err := worker(t, s, c, newToy(), nil).Run(t.Context())
		require.ErrorIs(t, err, ErrCheckpoint)
		require.ErrorContains(t, err, "version 0, file weights")
		require.ErrorContains(t, err, name)
		require.False(t, c.holder)
	}
	s := newMemory()
	c := newCoordinator(putPolicy(t, s), twoSteps(t, s)...)
	c.versions = append([]policy.Digest{policy.DigestOf(nil)}, c.versions...)
	require.Error(t, worker(t, s, c, newToy(), nil).Run(t.Context()))
}

// rewritten has a second branch that shares the first two messages with the first.
func rewritten(id string) []trajectory.Step {
	steps := conversation(id, 0, 0, 20)
	fork := message(id, 4, 1, trajectory.User, 0, 30)
	fork.ParentStep, fork.Branch = ptr(int32(1)), 1
	answer := message(id, 5, 1, trajectory.Assistant, 0, 31)
	answer.Branch = 1
	return append(steps, fork, answer)
}

func TestBranches(t *testing.T) {
	s := newMemory()
	m := trained(1)
	m.steps = rewritten
	g := record(t, s, 1, m, trained(0))
	got, err := newTestStep(s).intake(t.Context(), batchOf(0, g))
	require.NoError(t, err)
	require.Len(t, got.samples, 3)
	first, second := got.samples[0], got.samples[1]
	require.Equal(t, 4, first.LossTokens())
	require.Equal(t, 2, second.LossTokens(), "a shared message is trained in its first branch only (trap T26)")
	require.Equal(t, []bool{false, false, false, false, false, false, false, false, true, true}, second.LossMask)
	require.Equal(t, []float32{-0.25 * 31, -0.5}, second.Logprobs)
	require.Equal(t, 0.5, first.Weight, "an episode has one unit of weight (trap T25)")
	require.Equal(t, 0.5, second.Weight)
	require.Equal(t, 1.0, got.samples[2].Weight)
	require.Equal(t, 2, got.groups[0].stats.N, "statistics are over episodes, not branches (trap T25)")

	context := newTestStep(s)
	context.cfg.ContextOnly = []bool{true}
	got, err = context.intake(t.Context(), batchOf(0, g))
	require.NoError(t, err)
	require.Len(t, got.samples, 2)
	require.Equal(t, 1.0, got.samples[0].Weight)
}

func TestWhatIsNeverTrained(t *testing.T) {
	s := newMemory()
	unknown := trained(1)
	unknown.steps = func(id string) []trajectory.Step {
		steps := conversation(id, 0, 0, 20)
		steps[2].TokenIDs, steps[2].LossMask = nil, nil
		return steps
	}
	silent := trained(0)
	silent.steps = func(id string) []trajectory.Step { return conversation(id, 0, 0, 20)[:1] }
	st := newTestStep(s)
	got, err := st.intake(t.Context(), batchOf(0, record(t, s, 1, unknown, silent, trained(0))))
	require.NoError(t, err)
	require.Equal(t, trajectory.DroppedInfra, got.samples[0].outcome, "the context of its tokens is not known")
	require.False(t, got.samples[1].trained(), "nothing was sampled")
	require.True(t, got.samples[2].trained())
	require.Equal(t, 3, got.groups[0].stats.N, "all were judged")

	st.context = 9
	got, err = st.intake(t.Context(), batchOf(0, record(t, s, 2, trained(0), trained(1))))
	require.NoError(t, err)
	require.Equal(t, trajectory.DroppedOverlong, got.samples[0].outcome, "a long sample is left out whole (trap T40)")
	require.Len(t, got.samples[0].Tokens, 10)
}
