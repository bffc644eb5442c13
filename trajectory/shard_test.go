package trajectory

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
)

// newSealed records n episodes of 1 to 4 turns.
func newSealed(t testing.TB, n int) (Sealed, []Episode, [][]Step) {
	r := rand.New(rand.NewPCG(5, 6))
	rec := NewRecording(testMeta)
	episodes, steps := make([]Episode, n), make([][]Step, n)
	for i := range n {
		steps[i] = newSteps(EpisodeID(testMeta.Run, uint64(i), 0, 1), 1+i%4, policy.Version(i%3), r)
		episodes[i] = newEpisode(uint64(i), 0, steps[i])
		require.NoError(t, rec.Add(episodes[i], steps[i]))
	}
	require.Equal(t, n, rec.Len())
	s, err := rec.Close()
	require.NoError(t, err)
	require.Len(t, s.Refs, n)
	return s, episodes, steps
}

func TestRecording_RoundTrip(t *testing.T) {
	s, episodes, steps := newSealed(t, 50)
	sr, err := Open[Step](s.Steps.Data, s.Steps.Digest)
	require.NoError(t, err)
	er, err := Open[Episode](s.Episodes.Data, s.Episodes.Digest)
	require.NoError(t, err)
	require.Equal(t, Meta{Run: "run-1", Writer: "test", Created: testTime, LogprobsMode: ProcessedLogprobs}, sr.Meta())

	var all []Step
	for i, ref := range s.Refs {
		rows, err := sr.Read(ref.Steps)
		require.NoError(t, err)
		require.Equal(t, normal(steps[i]), normal(rows))
		require.NoError(t, CheckSteps(rows))
		all = append(all, rows...)

		got, err := er.Read(ref.Row)
		require.NoError(t, err)
		want := episodes[i]
		want.StepsRef = ref.Steps
		want.Sidecars = nil
		require.Equal(t, []Episode{want}, got)
	}
	rows, err := sr.All()
	require.NoError(t, err)
	require.Equal(t, all, rows)
	require.Equal(t, s.Steps.Rows, len(rows))
}

// normal replaces the nil and empty lists that mean the same where null is not allowed.
func normal(steps []Step) []Step {
	out := make([]Step, len(steps))
	for i, s := range steps {
		if len(s.PolicySpans) == 0 {
			s.PolicySpans = nil
		}
		if s.Sampling != nil && len(s.Sampling.Stop) == 0 {
			c := *s.Sampling
			c.Stop = nil
			s.Sampling = &c
		}
		out[i] = s
	}
	return out
}

func TestRecording_SameInputSameBytes(t *testing.T) {
	a, _, _ := newSealed(t, 20)
	b, _, _ := newSealed(t, 20)
	require.Equal(t, a.Steps.Digest, b.Steps.Digest)
	require.Equal(t, a.Episodes.Digest, b.Episodes.Digest)
}

func TestWriter_OtherTables(t *testing.T) {
	v := NewWriter[Verdict](testMeta)
	verdicts := []Verdict{newVerdict("run-1/e", 1), newVerdict("run-1/e", 0), newVerdict("run-1/f", 0.25)}
	verdicts[1].StepRewards = []StepReward{{Step: 2, Value: 0.5}, {Step: 4, Value: -0.5}}
	verdicts[2].StepRewards = []StepReward{}
	for _, r := range verdicts {
		require.NoError(t, v.Append(r))
	}
	roundTrip(t, v, verdicts)

	l := NewWriter[LedgerRow](testMeta)
	ledger := []LedgerRow{newLedgerRow("run-1/e"), newLedgerRow("run-1/f")}
	ledger[1].Outcome, ledger[1].AdvantageScalar, ledger[1].GroupMembersUsed, ledger[1].GroupMean, ledger[1].GroupStd = DroppedInfra, nil, 0, nil, nil
	for _, r := range ledger {
		require.NoError(t, l.Append(r))
	}
	roundTrip(t, l, ledger)

	a := NewWriter[Annotation](testMeta)
	notes := []Annotation{
		{EpisodeID: "run-1/e", Step: ptr(int32(2)), Producer: ByTrainer, At: testTime, Entropy: []float32{1, 2}, MaskCode: []int8{0, -1}},
		{EpisodeID: "run-1/e", Producer: ByHuman, At: testTime, Key: ptr("note"), ValueJSON: ptr(`"good"`)},
	}
	for _, r := range notes {
		require.NoError(t, a.Append(r))
	}
	roundTrip(t, a, notes)
}

func newLedgerRow(episode string) LedgerRow {
	return LedgerRow{
		BatchID: "run-1/4", TrainerStep: 4, PolicyVersionTrained: 4, Lineage: 1, EpisodeID: episode, NTokens: 40, NLossTokens: 20,
		AdvantageScalar: ptr(0.5), GroupID: GroupID("run-1", 1), GroupMembersUsed: 16, GroupMean: ptr(0.25), GroupStd: ptr(0.4),
		StalenessMax: 2, StalenessMean: 1.5, Outcome: Trained, Weight: 1,
	}
}

func roundTrip[R Row](t *testing.T, w *Writer[R], want []R) {
	t.Helper()
	s, err := w.Close()
	require.NoError(t, err)
	require.Equal(t, len(want), s.Rows)
	r, err := Open[R](s.Data, s.Digest)
	require.NoError(t, err)
	got, err := r.All()
	require.NoError(t, err)
	require.Equal(t, want, got)
	for i := range want {
		one, err := r.Read(s.Refs[i].Ref)
		require.NoError(t, err)
		require.Equal(t, want[i:i+1], one)
	}
}

// An episode larger than a batch goes on in the next one; its reference still reads it whole.
func TestWriter_BatchesAreCapped(t *testing.T) {
	w := NewWriter[Step](testMeta)
	w.soft, w.hard = 1<<16, 1<<18
	var want [][]Step
	for e := range 3 {
		id := EpisodeID("run-1", uint64(e), 0, 1)
		steps := []Step{newStep(id, 0, User, 5)}
		for i := int32(1); i < 6; i++ {
			n := 1 << 12
			if e == 1 {
				n = 1 << 14 // 5 × 200 kB
			}
			ids, lps := make([]int32, n), make([]float32, n)
			steps = append(steps, newSampled(id, i, i-1, 1, ids, lps))
		}
		want = append(want, steps)
		require.NoError(t, appendEpisode(w, steps))
	}
	s, err := w.Close()
	require.NoError(t, err)
	require.Equal(t, int32(1), s.Refs[1].Ref.Batch, "batches end between episodes")
	require.Zero(t, s.Refs[1].Ref.Row)
	require.Greater(t, s.Refs[2].Ref.Batch, s.Refs[1].Ref.Batch+1, "the large episode takes several batches")
	r, err := Open[Step](s.Data, s.Digest)
	require.NoError(t, err)
	for i, ref := range s.Refs {
		got, err := r.Read(ref.Ref)
		require.NoError(t, err)
		require.Len(t, got, len(want[i]))
		require.NoError(t, CheckSteps(got))
		require.Equal(t, len(want[i][3].TokenIDs), len(got[3].TokenIDs))
	}
}

func TestReader_NeverShort(t *testing.T) {
	s, _, _ := newSealed(t, 8)
	data, d := s.Steps.Data, s.Steps.Digest

	t.Run("cut", func(t *testing.T) {
		for _, n := range []int{0, 1, 7, 8, 100, len(data) / 4, len(data) / 2, len(data) - 100, len(data) - 1} {
			_, err := Open[Step](data[:n], d)
			require.ErrorIs(t, err, ErrCorrupt, "%d bytes", n)
			if n >= len(data)/2 {
				require.ErrorContains(t, err, "lost: the rows of run-1/000000000000/000000/1, ")
				require.ErrorContains(t, err, "and 3 more")
			}
		}
	})
	t.Run("flipped", func(t *testing.T) {
		for i := 0; i < len(data); i += 97 {
			bad := append([]byte(nil), data...)
			bad[i] ^= 1 << (i % 8)
			_, err := Open[Step](bad, d)
			require.ErrorIs(t, err, ErrCorrupt, "byte %d", i)
		}
	})
	t.Run("reference outside", func(t *testing.T) {
		r, err := Open[Step](data, d)
		require.NoError(t, err)
		for _, ref := range []Ref{{Object: d, Batch: 9, Rows: 1}, {Object: d, Row: 1000, Rows: 1}, {Object: d, Rows: 1000}} {
			_, err := r.Read(ref)
			require.ErrorIs(t, err, ErrCorrupt, "%+v", ref)
		}
		for _, ref := range []Ref{{Object: digest("other"), Rows: 1}, {Object: d, Batch: -1, Rows: 1}, {Object: d, Rows: -1}} {
			_, err := r.Read(ref)
			require.ErrorIs(t, err, ErrInvalid, "%+v", ref)
		}
	})
}

func TestOpen_OtherFiles(t *testing.T) {
	s, _, _ := newSealed(t, 2)
	_, err := Open[Step](s.Episodes.Data, s.Episodes.Digest)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, "it holds episodes")
	for _, data := range [][]byte{nil, []byte("hello"), []byte("ARROW1 is how this text starts, and it ends with ARROW1")} {
		_, err := Open[Step](data, policy.DigestOf(data))
		require.ErrorIs(t, err, ErrForeign, "%q", data)
	}
	_, err = Open[Step](s.Steps.Data, "sha256:0")
	require.ErrorIs(t, err, policy.ErrDigest)

	newer := bytes.Clone(s.Steps.Data)
	replace(newer, "steps/1", "steps/2")
	_, err = Open[Step](newer, policy.DigestOf(newer))
	require.ErrorIs(t, err, ErrNewer)
	require.ErrorContains(t, err, "schema steps/2, this program reads up to steps/1")
}

func replace(data []byte, from, to string) {
	for i := 0; i+len(from) <= len(data); i++ {
		if string(data[i:i+len(from)]) == from {
			copy(data[i:], to)
		}
	}
}
