package trainer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trainer/objective"
	"github.com/rlfleet/rlfleet/trajectory"
)

// twoSteps records two batches of two groups each.
func twoSteps(t *testing.T, s store.ObjectStore) [][]*raftlog.BatchGroup {
	t.Helper()
	late := trained(0)
	late.v, late.w = 0, 1 // straddles a switch
	return [][]*raftlog.BatchGroup{
		{record(t, s, 2, trained(1), trained(0)), record(t, s, 1, trained(1), trained(1), trained(0))},
		{record(t, s, 3, trained(1), late), record(t, s, 4, trained(0), trained(0))},
	}
}

func TestTrainsToTheEnd(t *testing.T) {
	s := newMemory()
	c := newCoordinator(putPolicy(t, s), twoSteps(t, s)...)
	b := newToy()
	var acked []Commit
	w := worker(t, s, c, b, func(_ *Config, d *Deps) { d.OnCommit = func(c Commit) { acked = append(acked, c) } })
	require.NoError(t, w.Run(t.Context()))

	require.Len(t, c.commits, 2)
	require.Equal(t, 1, b.loads, "the model stays in memory between steps")
	require.False(t, c.holder, "the gang is let go")
	require.Len(t, acked, 2)
	require.Equal(t, []uint64{1, 2}, acked[0].Groups)
	for i, a := range acked {
		require.Equal(t, policy.Version(i+1), a.Version)
		require.Equal(t, c.versions[i+1], a.Manifest)
	}
	first := b.batches[0].Samples
	require.Len(t, first, 5)
	for i, name := range []string{"r/000000000001/000000/1", "r/000000000001/000001/1", "r/000000000001/000002/1", "r/000000000002/000000/1", "r/000000000002/000001/1"} {
		require.Equal(t, name, first[i].Episode, "samples come by group and member")
		require.Equal(t, []bool{false, false, false, true, true, false, false, false, true, true}, first[i].LossMask)
		require.Len(t, first[i].Tokens, 10)
		require.Equal(t, 4, first[i].LossTokens())
	}

	m, files, err := loadCheckpoint(t.Context(), s, testRun, c.versions[2])
	require.NoError(t, err)
	require.Equal(t, policy.Version(2), m.manifest.Version)
	require.Equal(t, policy.Digest(c.commits[1].Ledger), m.manifest.Ledger)
	require.True(t, m.manifest.Full)
	require.Equal(t, "{}", string(files["tokenizer.json"]), "files that no step changes stay")
	require.Len(t, files, 3)
	puts := 0
	for _, k := range s.puts {
		if strings.Contains(k, policy.DigestOf([]byte("{}")).Hex()) {
			puts++
		}
	}
	require.Equal(t, 1, puts, "an unchanged file is not written again")
}

func TestMetrics(t *testing.T) {
	s := newMemory()
	long, masked := trained(1), member{disposition: outcome.Mask, reward: ptr(1.0), end: outcome.MaxTokens}
	long.end = outcome.MaxTurns
	batches := [][]*raftlog.BatchGroup{
		{record(t, s, 1, trained(0), trained(1))},
		{record(t, s, 2, trained(1), long, masked, member{disposition: outcome.Drop}), record(t, s, 3, trained(0), trained(1))},
	}
	c := newCoordinator(putPolicy(t, s), batches...)
	require.NoError(t, worker(t, s, c, newToy(), nil).Run(t.Context()))
	got := c.commits[1].Metrics
	want := map[string]float64{
		RewardMean: 0.75, RewardStd: 0.4330127018922193, LengthP50: 4, LengthP95: 4, Truncated: 2. / 5, ZeroVariance: 0.5, Masked: 1. / 6,
		LagMean: 1, LagMax: 1, Tokens: 16, Entropy: 1, ESS: 1,
	}
	for name, v := range want {
		require.InDelta(t, v, got[name], 1e-12, name)
	}
	require.NotContains(t, got, GradNorm, "a value that is not finite is left out")
	for name := range got {
		require.Contains(t, MetricNames, name)
	}
	require.Len(t, got, len(MetricNames)-1)
}

// A trainer dies between training and commit: the next one is given the same
// batch and makes the same checkpoint.
func TestSameBatchAgainIsTheSameCheckpoint(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)

	undisturbed := newCoordinator(init, batches...)
	require.NoError(t, worker(t, s, undisturbed, newToy(), nil).Run(t.Context()))

	crash := fmt.Errorf("power cut: %w", client.ErrInvalid)
	for step := range int64(2) {
		c := newCoordinator(init, batches...)
		died := ""
		c.onCommit = func(s *raftlog.CommitStep) error {
			if s.Step == step && died == "" {
				died = s.Manifest
				return crash
			}
			return nil
		}
		require.ErrorIs(t, worker(t, s, c, newToy(), nil).Run(t.Context()), crash)
		require.NotEmpty(t, died)
		require.NoError(t, worker(t, s, c, newToy(), nil).Run(t.Context()))
		require.Equal(t, died, c.commits[step].Manifest)
		require.Equal(t, undisturbed.versions, c.versions)
		require.Equal(t, undisturbed.commits[1].Ledger, c.commits[1].Ledger)
	}
}

// The lease is lost in the middle of a step: nothing of it is committed, and the
// worker starts again from the committed head and not from what it holds.
func TestLostGangRejoinsFromHead(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)
	want := newCoordinator(init, batches...)
	require.NoError(t, worker(t, s, want, newToy(), nil).Run(t.Context()))

	cases := map[string]func(c *coordinator, b *toy){
		"notice during training": func(c *coordinator, b *toy) {
			b.during = func() {
				if len(b.batches) == 2 {
					c.lose()
				}
			}
		},
		"refused at commit": func(c *coordinator, b *toy) {
			c.onCommit = func(*raftlog.CommitStep) error {
				if len(b.batches) == 2 {
					c.mu.Lock()
					c.epoch++ // somebody else joined and left
					c.mu.Unlock()
				}
				return nil
			}
		},
		"conflict at commit": func(c *coordinator, b *toy) {
			c.onCommit = func(*raftlog.CommitStep) error {
				if len(b.batches) == 2 {
					return client.ErrConflict
				}
				return nil
			}
		},
	}
	for name, disturb := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, b := newCoordinator(init, batches...), newToy()
				disturb(c, b)
				require.NoError(t, worker(t, s, c, b, nil).Run(t.Context()))
				require.Equal(t, want.versions, c.versions)
				require.Equal(t, 2, b.loads)
				require.Equal(t, uint64(2), c.commits[1].Epoch-boolean(name == "refused at commit"))
			})
		})
	}
}

func boolean(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// A coordinator that does not answer for a while is waited for. A commit without
// an answer is proposed again as it was, whether it had happened or not.
func TestCoordinatorIsAway(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)
	want := newCoordinator(init, batches...)
	require.NoError(t, worker(t, s, want, newToy(), nil).Run(t.Context()))
	for _, applied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, b := newCoordinator(init, batches...), newToy()
			c.away = map[string]int{"join": 2, "take": 3, "commit": 4}
			c.applied = applied
			require.NoError(t, worker(t, s, c, b, nil).Run(t.Context()))
			require.Equal(t, want.versions, c.versions)
			require.Len(t, c.commits, 2)
			require.Len(t, b.batches, 2, "nothing is trained twice")
			require.Equal(t, 1, b.loads)
			require.Equal(t, map[string]int{"join": 0, "take": 0, "commit": 0}, c.away)
		})
	}
}

func TestWaitsForABatch(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)
	synctest.Test(t, func(t *testing.T) {
		c, b := newCoordinator(init, batches...), newToy()
		c.ready = 0
		done := make(chan error)
		w := worker(t, s, c, b, nil)
		go func() { done <- w.Run(t.Context()) }()
		synctest.Wait()
		require.Equal(t, []string{"store", "groups: 0 of 1 complete"}, c.waits)
		c.complete()
		synctest.Wait()
		require.Len(t, c.commits, 1)
		c.complete()
		require.NoError(t, <-done)
		require.Len(t, c.commits, 2)
	})
}

func TestStopsWhenTold(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)
	synctest.Test(t, func(t *testing.T) {
		c := newCoordinator(init, batches...)
		c.ready = 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		w := worker(t, s, c, newToy(), nil)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		require.False(t, c.holder)
	})
}

// A second trainer waits for the gang and finds the run ended.
func TestOneGangAtATime(t *testing.T) {
	s := newMemory()
	init := putPolicy(t, s)
	batches := twoSteps(t, s)
	synctest.Test(t, func(t *testing.T) {
		c := newCoordinator(init, batches...)
		c.holder = true // another trainer's
		done := make(chan error)
		idle := newToy()
		w := worker(t, s, c, idle, nil)
		go func() { done <- w.Run(t.Context()) }()
		synctest.Wait()
		require.Zero(t, idle.loads)
		c.mu.Lock()
		c.versions = append(c.versions, "sha256:1", "sha256:2")
		c.mu.Unlock()
		c.complete()
		require.NoError(t, <-done)
		require.Zero(t, idle.loads)
	})
}

func TestBatchWithoutTokensKeepsTheWeights(t *testing.T) {
	s := newMemory()
	m := member{disposition: outcome.Mask, reward: ptr(1.0), end: outcome.MaxTokens}
	c := newCoordinator(putPolicy(t, s), []*raftlog.BatchGroup{record(t, s, 1, m, m)})
	b := newToy()
	require.NoError(t, worker(t, s, c, b, nil).Run(t.Context()))
	require.Empty(t, b.batches)
	require.Len(t, c.commits, 1)
	require.NotContains(t, c.commits[0].Metrics, RewardMean, "no reward is not a reward of 0")
	m0, f0, err := loadCheckpoint(t.Context(), s, testRun, c.versions[0])
	require.NoError(t, err)
	m1, f1, err := loadCheckpoint(t.Context(), s, testRun, c.versions[1])
	require.NoError(t, err)
	require.Equal(t, f0["weights"], f1["weights"])
	require.NotEqual(t, m0.digest, m1.digest)
}

func TestReplayGivesTheCommittedCheckpoint(t *testing.T) {
	s := newMemory()
	c := newCoordinator(putPolicy(t, s), twoSteps(t, s)...)
	require.NoError(t, worker(t, s, c, newToy(), nil).Run(t.Context()))
	c.mirror(t, s)
	before := len(s.puts)
	cfg := DefaultConfig(testRun)
	cfg.LagMax = 1
	for n := range int64(2) {
		got, err := Replay(t.Context(), s, cfg, newToy(), n)
		require.NoError(t, err)
		require.Equal(t, c.versions[n+1], got)
	}
	require.Len(t, s.puts, before, "a replay writes nothing")

	_, err := Replay(t.Context(), s, cfg, newToy(), 2)
	require.ErrorIs(t, err, store.ErrNotFound)
	cfg.Advantage = objective.Estimator{Kind: objective.KindRLOO}
	_, err = Replay(t.Context(), s, cfg, newToy(), 0)
	require.ErrorIs(t, err, ErrBatch)
	require.ErrorContains(t, err, "advantage_scalar")
}

func TestLedger(t *testing.T) {
	s := newMemory()
	late := trained(0)
	late.v, late.w = 0, 1
	unscored := member{disposition: outcome.Train}
	c := newCoordinator(putPolicy(t, s),
		[]*raftlog.BatchGroup{record(t, s, 1, trained(0), trained(0))},
		[]*raftlog.BatchGroup{record(t, s, 2, trained(1), late, unscored, member{disposition: outcome.BaselineOnly, reward: ptr(1.0)})},
	)
	require.NoError(t, worker(t, s, c, newToy(), nil).Run(t.Context()))
	read := func(n int) []trajectory.LedgerRow {
		r, err := trajectory.Load[trajectory.LedgerRow](t.Context(), s, testRun, policy.Digest(c.commits[n].Ledger))
		require.NoError(t, err)
		rows, err := r.All()
		require.NoError(t, err)
		return rows
	}
	flat := read(0)
	require.Len(t, flat, 2)
	for _, r := range flat {
		require.Equal(t, ptr(0.0), r.AdvantageScalar, "equal rewards give an explicit 0 (trap T27)")
	}
	rows := read(1)
	require.Len(t, rows, 3, "one row for each sample in the loss")
	a, b, null := rows[0], rows[1], rows[2]
	require.Equal(t, "r/1", a.BatchID)
	require.Equal(t, int32(3), a.GroupMembersUsed, "the baseline member counts")
	require.InDelta(t, 2./3, *a.GroupMean, 1e-15)
	require.Equal(t, trajectory.Trained, a.Outcome)
	require.Equal(t, int64(10), a.NTokens)
	require.Equal(t, int64(4), a.NLossTokens)
	require.Equal(t, int64(1), a.StalenessMax)
	require.Equal(t, 1.0, a.StalenessMean)
	require.Equal(t, 0.5, b.StalenessMean, "half of its tokens are of version 1")
	require.Equal(t, int32(10), b.BinOffset)
	require.Nil(t, null.AdvantageScalar, "no reward is not an advantage of 0 (trap T28)")
	require.Equal(t, trajectory.DroppedInfra, null.Outcome)
	require.Zero(t, null.NLossTokens)
}
