package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/outcome"
)

// TestSpecs checks that the example's experiments are accepted and fit what this program makes.
func TestSpecs(t *testing.T) {
	for _, name := range []string{"experiment.yaml", "latency.yaml", "small.yaml"} {
		t.Run(name, func(t *testing.T) {
			e, err := experiment.Load(filepath.Join("..", name), nil)
			require.NoError(t, err)
			env := e.Spec.Envs[0]
			require.Equal(t, maxTurns, env.Agent.MaxTurns)
			require.Equal(t, env.Agent.MaxTokens, env.Agent.MaxTurns*env.Agent.TurnTokens())
			require.Equal(t, outcome.Train, env.Limits.On.ByReason()[outcome.MaxTokens], "rambling costs")
			// <bos> read F2, then turns of <act> and sampled tokens, and an observation after each but the last.
			longest := 3 + env.Agent.MaxTurns*(1+env.Agent.TurnTokens()) + (env.Agent.MaxTurns-1)*env.Agent.MaxObservation
			require.LessOrEqual(t, longest, env.Agent.MaxContext)
			require.Equal(t, env.Tasks.Source, e.Spec.Eval.Suites[0].Tasks.Source)
			require.Equal(t, "eval", e.Spec.Eval.Suites[0].Tasks.Split)
			require.LessOrEqual(t, e.Spec.Rollout.Concurrency, (e.Spec.Lag.Max+1)*e.Spec.Trainer.GroupsPerStep*env.GroupSize)
		})
	}
}
