package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/experiment"
)

const smallSpec = "apiVersion: rlfleet/v1\nkind: Experiment\nmetadata: {name: small}\nspec:\n  envs:\n  - name: files\n"

// runExperiment runs the command and returns what it wrote to standard output.
func runExperimentCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := experimentCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestExperimentCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "small.yaml")
	require.NoError(t, os.WriteFile(file, []byte(smallSpec), 0o600))

	out, err := runExperimentCommand(t, "validate", file)
	require.NoError(t, err)
	require.Regexp(t, `experiment small is valid \(sha256:[0-9a-f]{64}\)\n$`, out)

	out, err = runExperimentCommand(t, "validate", file, "--set", "spec.lag.max=-1", "--set", "spec.steps=0")
	require.Empty(t, out)
	require.Len(t, experiment.Errors(err), 2)
	require.ErrorContains(t, err, "--set: spec.lag.max: found integer -1, want an integer of at least 0")

	out, err = runExperimentCommand(t, "show", "--defaults", file, "--set", "spec.lag.max=0")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^    max: 0 +# --set$`, out)
	require.Regexp(t, `(?m)^  steps: 150 +# default$`, out)

	out, err = runExperimentCommand(t, "show", file, "-o", "json")
	require.NoError(t, err)
	var values []experiment.Value
	require.NoError(t, json.Unmarshal([]byte(out), &values))
	require.Contains(t, values, experiment.Value{Path: "metadata.name", Value: "small", From: file + ":3"})

	_, err = runExperimentCommand(t, "show", file, "-o", "xml")
	require.ErrorContains(t, err, "want yaml or json")

	out, err = runExperimentCommand(t, "schema")
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(out)))
}
