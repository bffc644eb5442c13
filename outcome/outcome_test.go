package outcome

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableIsComplete(t *testing.T) {
	require.Len(t, table, len(EndReasons), "each reason is in the enumeration once")
	for _, r := range EndReasons {
		class, err := Class(EndReason(r))
		require.NoError(t, err, r)
		require.True(t, slices.Contains(EndClasses, string(class)), r)
	}
	_, err := Class("lucky")
	require.Error(t, err)
}

// I5: what is not the model's doing never reaches statistics or loss, whatever verdict comes with it.
func TestI5_OnlyJudgedEpisodesTrain(t *testing.T) {
	everything := map[EndReason]Disposition{}
	for _, r := range EndReasons {
		everything[EndReason(r)] = Train
	}
	for _, reason := range EndReasons {
		r := EndReason(reason)
		class, err := Class(r)
		require.NoError(t, err)
		for _, v := range append(slices.Clone(Verdicts), "") {
			d := Decide(r, Verdict(v), everything)
			blameless := class == ClassModel || class == ClassLimit
			judged := Verdict(v) == Pass || Verdict(v) == Fail
			if !blameless && class != ClassVerifier || !judged {
				require.Equal(t, Drop, d, "%s judged %q", r, v)
			}
			if blameless && judged {
				require.True(t, d.InStatistics(), "%s judged %q", r, v)
			}
		}
		require.Equal(t, blamelessOrVerifier(class), Judged(r), r)
	}
}

func blamelessOrVerifier(c EndClass) bool {
	return c == ClassModel || c == ClassLimit || c == ClassVerifier
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name string
		r    EndReason
		v    Verdict
		on   map[EndReason]Disposition
		want Disposition
	}{
		{"a plain stop", Stop, Fail, nil, Train},
		{"a limit masks by default, also an accidental pass (T30)", ContextOverflow, Pass, nil, Mask},
		{"the experiment decides about limits", MaxTokens, Fail, map[EndReason]Disposition{MaxTokens: Train}, Train},
		{"but not about what the model did", Stop, Fail, map[EndReason]Disposition{Stop: Mask}, Train},
		{"its own memory is its own doing", SandboxLimit, Fail, nil, Train},
		{"a timeout keeps its verdict and is masked (T29)", WallClock, Pass, nil, Mask},
		{"no verdict is no zero (T28)", Stop, Indeterminate, nil, Drop},
		{"an unknown reason trains nothing", "lucky", Pass, nil, Drop},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, Decide(c.r, c.v, c.on)) })
	}
	require.True(t, BaselineOnly.InStatistics())
	require.False(t, BaselineOnly.InLoss())
	require.False(t, Mask.InStatistics())
}
