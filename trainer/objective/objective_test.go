package objective

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rlfleet/rlfleet/outcome"
)

func ptr(x float64) *float64 { return &x }

// null stands for a missing value in the tables.
var null = math.NaN()

func members(d outcome.Disposition, rewards ...float64) []Member {
	out := make([]Member, len(rewards))
	for i, r := range rewards {
		out[i] = Member{Disposition: d}
		if !math.IsNaN(r) {
			out[i].Reward = ptr(r)
		}
	}
	return out
}

func requireAdvantages(t *testing.T, want []float64, got []Advantage) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		require.Equal(t, !math.IsNaN(w), got[i].Valid, "member %d", i)
		if got[i].Valid {
			require.InDelta(t, w, got[i].Value, 1e-4, "member %d", i)
		}
	}
}

var (
	grpo   = Estimator{Kind: KindGRPO, Std: true}
	drgrpo = Estimator{Kind: KindGRPO}
	rloo   = Estimator{Kind: KindRLOO}
)

func TestAdvantages(t *testing.T) {
	for _, c := range []struct {
		name    string
		e       Estimator
		rewards []float64
		want    []float64
	}{
		{"T22 mean-centred", drgrpo, []float64{1, null, 0, 0}, []float64{0.6667, null, -0.3333, -0.3333}},
		{"T22 ddof 1", grpo, []float64{1, null, 0, 0}, []float64{1.1547, null, -0.5774, -0.5774}},
		{"T22 leave one out", rloo, []float64{1, null, 0, 0}, []float64{1, null, -0.5, -0.5}},
		{"T23 first group", drgrpo, []float64{1, 2, 3, 4}, []float64{-1.5, -0.5, 0.5, 1.5}},
		{"T23 group of three equal", grpo, []float64{5, 5, 5}, []float64{0, 0, 0}},
		{"T23 last group", grpo, []float64{9, 10, 11, 12}, []float64{-1.1619, -0.3873, 0.3873, 1.1619}},
		{"T24 sample deviation", grpo, []float64{1, 0}, []float64{0.7071, -0.7071}},
		{"T27 zero variance is zero, not null", rloo, []float64{0, 0, 0}, []float64{0, 0, 0}},
		{"T27 equal rewards that do not sum exactly", grpo, []float64{0.1, 0.1, 0.1}, []float64{0, 0, 0}},
		{"T28 a missing reward is null", drgrpo, []float64{1, 0, null}, []float64{0.5, -0.5, null}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, st, err := c.e.Group(members(outcome.Train, c.rewards...))
			require.NoError(t, err)
			requireAdvantages(t, c.want, got)
			for i, a := range got {
				if st.ZeroVariance {
					require.Zero(t, a.Value, "member %d: exactly", i)
				}
			}
		})
	}
}

func TestAdvantagesFollowTheDispositions(t *testing.T) {
	m := []Member{
		{Reward: ptr(1), Disposition: outcome.Train},
		{Reward: ptr(0), Disposition: outcome.BaselineOnly},
		{Reward: ptr(1), Disposition: outcome.Mask},
		{Reward: ptr(1), Disposition: outcome.Drop},
		{Reward: nil, Disposition: outcome.BaselineOnly},
		{Reward: ptr(0), Disposition: outcome.Train},
	}
	got, st, err := drgrpo.Group(m)
	require.NoError(t, err)
	require.Equal(t, 3, st.N)
	requireAdvantages(t, []float64{2. / 3, null, null, null, null, -1. / 3}, got)
}

func TestGroupsThatCannotBeTrained(t *testing.T) {
	for _, e := range []Estimator{grpo, drgrpo, rloo} {
		_, _, err := e.Group(members(outcome.Train, 1))
		require.ErrorIs(t, err, ErrSingleton, "T24")
		_, _, err = e.Group(members(outcome.Train, 1, null, null))
		require.ErrorIs(t, err, ErrSingleton)
		got, st, err := e.Group(members(outcome.Train, null, null))
		require.NoError(t, err, "nothing is trained, nothing is wrong")
		require.Zero(t, st.N)
		requireAdvantages(t, []float64{null, null}, got)
		got, _, err = e.Group(members(outcome.BaselineOnly, 1))
		require.NoError(t, err)
		requireAdvantages(t, []float64{null}, got)
		_, _, err = e.Group([]Member{{Reward: ptr(math.Inf(1)), Disposition: outcome.Train}})
		require.ErrorIs(t, err, ErrNotFinite)
	}
	_, _, err := Estimator{Kind: "gae"}.Group(nil)
	require.ErrorIs(t, err, ErrKind)
	require.ErrorIs(t, Estimator{Kind: KindRLOO, Std: true}.Validate(), ErrKind)
}

// Faulted members, wherever they stand and whatever reward they carry, change no bit of the others.
func TestFaultedMembersChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom([]Estimator{grpo, drgrpo, rloo}).Draw(t, "estimator")
		rewards := rapid.SliceOfN(rapid.Float64Range(-5, 5), 2, 12).Draw(t, "rewards")
		clean := members(outcome.Train, rewards...)
		want, _, err := e.Group(clean)
		if err != nil {
			t.Fatal(err)
		}
		var mixed []Member
		var at []int
		for _, m := range clean {
			for range rapid.IntRange(0, 2).Draw(t, "faults") {
				mixed = append(mixed, rapid.SampledFrom([]Member{
					{Disposition: outcome.Drop},
					{Reward: ptr(9), Disposition: outcome.Drop},
					{Reward: ptr(-3), Disposition: outcome.Mask},
					{Disposition: outcome.Train},
				}).Draw(t, "fault"))
			}
			at = append(at, len(mixed))
			mixed = append(mixed, m)
		}
		got, _, err := e.Group(mixed)
		if err != nil {
			t.Fatal(err)
		}
		valid := 0
		for i, p := range at {
			if math.Float64bits(got[p].Value) != math.Float64bits(want[i].Value) || !got[p].Valid {
				t.Fatalf("member %d: %v became %v", i, want[i], got[p])
			}
		}
		for _, a := range got {
			if a.Valid {
				valid++
			}
		}
		if valid != len(clean) {
			t.Fatalf("%d of %d members have an advantage", valid, len(clean))
		}
	})
}

func TestT44_RewardComponents(t *testing.T) {
	part := func(w float64, v *float64, required bool) Component { return Component{w, v, required} }
	got, err := Rewards([][]Component{{part(1, ptr(1), true), part(0.3, nil, true)}, {part(1, ptr(1), true), part(0.3, ptr(1), true)}})
	require.NoError(t, err)
	require.Nil(t, got[0], "a required null makes the reward null, not 0.7 or 1")
	require.InDelta(t, 1.3, *got[1], 1e-12)

	got, err = Rewards([][]Component{{part(1, ptr(1), true), part(0.3, nil, false)}, {part(1, ptr(0), true), part(0.3, ptr(1), false)}})
	require.NoError(t, err)
	require.Equal(t, []float64{1, 0}, []float64{*got[0], *got[1]}, "an optional null is left out for the whole group")

	got, err = Rewards([][]Component{{part(1, nil, true), part(0.3, nil, false)}, {part(1, ptr(0), true), part(0.3, ptr(1), false)}})
	require.NoError(t, err)
	require.Nil(t, got[0])
	require.InDelta(t, 0.3, *got[1], 1e-12, "a member that is out does not change the others")

	_, err = Rewards([][]Component{{part(1, ptr(1), true)}, {}})
	require.ErrorIs(t, err, ErrShape)
	_, err = Rewards([][]Component{{part(1, ptr(math.NaN()), true)}})
	require.ErrorIs(t, err, ErrNotFinite)
}

func TestPPOToken(t *testing.T) {
	p := DefaultPPO()
	for _, c := range []struct {
		name             string
		ratio, advantage float64
		loss, grad       float64
		clip             Clip
	}{
		{"on policy", 1, 2, -2, -2, ClipNone},
		{"within", 1.1, 2, -2.2, -2.2, ClipNone},
		{"good and already likelier", 1.5, 2, -2.4, 0, ClipRatio},
		{"good and less likely is pulled back", 0.5, 2, -1, -1, ClipNone},
		{"bad and already less likely", 0.5, -2, 1.6, 0, ClipRatio},
		{"bad and likelier is pushed down", 1.5, -2, 3, 3, ClipNone},
		{"bad and far likelier: dual", 4, -2, 6, 0, ClipDual},
		{"no advantage", 3, 0, 0, 0, ClipNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			loss, grad, clip := p.Token(-1+math.Log(c.ratio), -1, c.advantage)
			require.InDelta(t, c.loss, loss, 1e-12)
			require.InDelta(t, c.grad, grad, 1e-12)
			require.Equal(t, c.clip, clip)
		})
	}
	asymmetric := PPO{Low: 0.2, High: 0.28}
	loss, _, clip := asymmetric.Token(math.Log(1.25), 0, 1)
	require.InDelta(t, -1.25, loss, 1e-12)
	require.Equal(t, ClipNone, clip)
	loss, grad, clip := asymmetric.Token(math.Log(4), 0, -1)
	require.InDelta(t, 4, loss, 1e-12)
	require.InDelta(t, 4, grad, 1e-12, "without the dual clip")
	require.Equal(t, ClipNone, clip)
	loss, grad, _ = asymmetric.Token(0, -100, -1)
	require.InDelta(t, math.Exp(20), loss, 1e-3, "log-ratios are bounded at ±20")
	require.Zero(t, grad)
	require.ErrorIs(t, PPO{Low: -0.1}.Validate(), ErrKind)
	require.ErrorIs(t, PPO{Dual: 0.5}.Validate(), ErrKind)
	require.NoError(t, asymmetric.Validate())
}

func TestPPOGradientIsTheDerivative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := PPO{Low: 0.2, High: 0.28, Dual: rapid.SampledFrom([]float64{0, 3}).Draw(t, "dual")}
		mu := rapid.Float64Range(-5, -0.01).Draw(t, "mu")
		logp := mu + rapid.Float64Range(-2, 2).Draw(t, "x")
		a := rapid.Float64Range(-3, 3).Draw(t, "advantage")
		const h = 1e-6
		up, _, c1 := p.Token(logp+h, mu, a)
		down, _, c2 := p.Token(logp-h, mu, a)
		_, grad, c := p.Token(logp, mu, a)
		if c1 != c || c2 != c {
			return // the step crosses a kink
		}
		if d := (up - down) / (2 * h); math.Abs(d-grad) > 1e-4*(1+math.Abs(d)) {
			t.Fatalf("derivative %g, gradient %g", d, grad)
		}
	})
}

func TestAggregates(t *testing.T) {
	// Rollout a became two rows (T25): it counts once.
	rows := []Row{{"a", 2}, {"b", 4}, {"a", 6}, {"c", 0}}
	totals := Sum(rows)
	require.Equal(t, Totals{Tokens: 12, Rollouts: 2}, totals)
	for a, want := range map[Aggregate][]float64{
		TokenMean:      {1. / 12, 1. / 12, 1. / 12, 0},
		SeqMeanMean:    {1. / 16, 1. / 8, 1. / 16, 0},
		SeqMeanSum:     {0.5, 0.5, 0.5, 0},
		SeqMeanSumNorm: {0.05, 0.05, 0.05, 0},
	} {
		got, err := a.Weights(rows, totals, 10)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 1e-12, string(a))
	}
	// The denominators are the batch's, not the rank's.
	got, err := TokenMean.Weights(rows[:1], totals, 0)
	require.NoError(t, err)
	require.InDelta(t, 1./12, got[0], 1e-12)
	_, err = SeqMeanSumNorm.Weights(rows, totals, 0)
	require.ErrorIs(t, err, ErrKind)
	_, err = Aggregate("mean").Weights(rows, totals, 1)
	require.ErrorIs(t, err, ErrKind)
	_, err = TokenMean.Weights(nil, Totals{}, 1)
	require.ErrorIs(t, err, ErrShape)
}

func TestMeasure(t *testing.T) {
	var m, first, second Measure
	for i, r := range []float64{1, 1, 1, 5} {
		part := &first
		if i > 1 {
			part = &second
		}
		clip := ClipNone
		if r > 1 {
			clip = ClipRatio
		}
		a := float64(1)
		if i == 0 {
			a = -1
		}
		m.Add(math.Log(r)-2, -2, a, 0.5, clip)
		part.Add(math.Log(r)-2, -2, a, 0.5, clip)
	}
	first.Merge(second)
	first.Merge(Measure{})
	for _, got := range []Measure{m, first} {
		require.InDelta(t, 0.571429, got.ESS(), 1e-6, "T9")
		require.InDelta(t, 2, got.MeanRatio(), 1e-12, "T9")
		require.InDelta(t, (4-math.Log(5))/4, got.KL(), 1e-12)
		require.InDelta(t, 0.5, got.Entropy(), 1e-12)
		require.InDelta(t, 1./3, got.ClipPositive(), 1e-12)
		require.Zero(t, got.ClipNegative())
		low, high := got.LogRatioRange()
		require.InDelta(t, 0, low, 1e-12)
		require.InDelta(t, math.Log(5), high, 1e-12)
	}
	require.Zero(t, Measure{}.ESS())
	var tails Measure
	tails.Add(-5, -1, 1, 0, ClipNone)
	tails.Add(-1, -2, 1, 0, ClipNone)
	low, high := tails.LogRatioRange()
	require.InDelta(t, -4, low, 1e-12, "T11")
	require.InDelta(t, 1, high, 1e-12)
}
