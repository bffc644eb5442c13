package trainer_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/trainer"
	"github.com/rlfleet/rlfleet/trainer/tiny"
)

// With a real model: a checkpoint holds all that training needs to go on, and
// replaying a step gives the committed checkpoint bit for bit.
func TestTinyResumesAndReplaysBitForBit(t *testing.T) {
	m, err := model.New(model.DefaultConfig(64), 3)
	require.NoError(t, err)
	files, err := m.Files()
	require.NoError(t, err)
	tokenizer := map[string][]byte{model.TokenizerFile: []byte("{}")}
	maps.Copy(files, tokenizer)
	backend := func() trainer.Backend {
		b, err := tiny.New(tiny.DefaultConfig())
		require.NoError(t, err)
		return b
	}
	run := trainer.NewTwoSteps(t, files)
	undisturbed := run.Train(t, true, backend())
	require.Len(t, undisturbed, 3)
	require.NotEqual(t, undisturbed[1], undisturbed[2])
	require.Equal(t, undisturbed, run.Train(t, false, backend(), backend(), backend()))
	for n := range int64(2) {
		require.Equal(t, undisturbed[n+1], run.Replay(t, backend(), n))
	}
}
