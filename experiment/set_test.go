package experiment

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSet_Overrides(t *testing.T) {
	e, err := Load("testdata/files.yaml", []string{
		"spec.envs[0].groupSize=8",
		"spec.envs[0].rewards[0].verifier.timeout=5s",
		"spec.envs[0].environment.limits={memory: 1Gi, cpu: 0.5}",
		"spec.trainer.optimizer.betas[1]=0.99",
		"spec.trainer.algorithm.aggregate=seq-mean-token-sum",
		"metadata.labels.owner=a b: c",
		"metadata.name=007",
		"spec.stopWhen.evalReward=0.5",
		"spec.lag.max=3",
		"spec.lag.max=1",
		"spec.eval.suites[0].passAt=[1]",
	})
	require.NoError(t, err)
	v := e.Spec.Envs[0]
	require.Equal(t, 8, v.GroupSize)
	require.Equal(t, "5s", v.Rewards[0].Verifier.Timeout.String())
	require.Equal(t, Size(1<<30), v.Environment.Limits.Memory)
	require.Equal(t, CPU(500), v.Environment.Limits.CPU)
	require.Equal(t, 64, v.Environment.Limits.PIDs, "keys that are not given stay")
	require.Equal(t, [2]float64{0.9, 0.99}, e.Spec.Trainer.Optimizer.Betas)
	require.Equal(t, Aggregate{Kind: "seq-mean-token-sum"}, e.Spec.Trainer.Algorithm.Aggregate)
	require.Equal(t, map[string]string{"team": "demo", "owner": "a b: c"}, e.Metadata.Labels)
	require.Equal(t, "007", e.Metadata.Name, "a text is taken as it is")
	require.Equal(t, 0.5, e.Spec.StopWhen.EvalReward)
	require.Equal(t, 1, e.Spec.Lag.Max, "the last override of a field wins")
	require.Equal(t, "--set", e.Origin("spec.envs[0].groupSize").String())
	require.Equal(t, "testdata/files.yaml:33", e.Origin("spec.envs[0].tasks.maxAttempts").String())
}

func TestSet_SuppliesRequiredKeys(t *testing.T) {
	e, err := resolve([]byte("kind: Experiment\n"), "x.yaml", []string{"apiVersion=rlfleet/v1", "metadata.name=a", "spec.envs=[{name: b}]", "spec.envs[0].weight=2"})
	require.NoError(t, err)
	require.Equal(t, 2.0, e.Spec.Envs[0].Weight)
}

func TestSet_OpensWhatIsNull(t *testing.T) {
	_, err := resolve([]byte(shortest), "x.yaml", []string{"spec.policy.lora.rank=4"})
	require.Equal(t, "lora: {rank, alpha, targets} is not in this build; it has: null", sole(t, err).Msg)
	_, err = resolve([]byte(shortest), "x.yaml", []string{"spec.policy.lora.rank=4", "spec.policy.lora=null"})
	require.NoError(t, err)
}

func TestSet_Refuses(t *testing.T) {
	for _, c := range []struct{ name, set, path, says string }{
		{"no value", "spec.lag.max", "", "--set: an override has a path and a value (found spec.lag.max, want path=value, such as spec.lag.max=0)"},
		{"no path", "=3", "", "an override has a path and a value"},
		{"misspelt key", "spec.lag.mx=3", "spec.lag.mx", `--set: spec.lag.mx: unknown key "mx"; did you mean "max"?`},
		{"index beyond the list", "spec.envs[1].weight=3", "spec.envs[1]", "spec.envs has no such element (found index 1, want an index below 1)"},
		{"wrong type", "spec.lag.max=few", "spec.lag.max", `--set: spec.lag.max: found text "few", want an integer of at least 0`},
		{"out of range", "spec.lag.max=-1", "spec.lag.max", "found integer -1"},
		{"empty value", "spec.lag.max=", "spec.lag.max", "found nothing (null)"},
		{"empty name", "metadata.name=", "metadata.name", `found text ""`},
		{"word out of the enumeration", "spec.envs[0].tasks.order=random", "spec.envs[0].tasks.order", "want shuffle or sequential"},
		{"wrong type inside", "spec.lag={max: few}", "spec.lag.max", `found text "few"`},
		{"misspelt key inside", "spec.lag={mx: 1}", "spec.lag.mx", `did you mean "max"?`},
		{"duplicate key inside", "spec.lag={max: 1, max: 2}", "spec.lag", "duplicate key"},
		{"not YAML", "spec.lag={max", "spec.lag", "not valid YAML"},
		{"below a number", "spec.steps.x=1", "spec.steps", "does not lead to a field"},
		{"below a text", "spec.storage[0]=1", "spec.storage", "does not lead to a field"},
		{"key of a list", "spec.envs.weight=1", "spec.envs", "does not lead to a field"},
		{"two dots", "spec..steps=1", "spec", "the path of an override is malformed"},
		{"dot first", ".spec.steps=1", "", "the path of an override is malformed"},
		{"index without end", "spec.envs[0=1", "spec.envs", "the path of an override is malformed"},
		{"second bracket glued", "spec.envs[0]weight=1", "spec.envs[0]", "the path of an override is malformed"},
		{"not in this build", "spec.envs[0].environment.runtime=gvisor", "spec.envs[0].environment.image", "host with runtime gvisor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := resolve([]byte(shortest), "x.yaml", []string{c.set})
			all := Errors(err)
			require.NotEmpty(t, all)
			require.Equal(t, "--set", all[0].File)
			require.Zero(t, all[0].Line)
			require.Contains(t, err.Error(), c.says)
			var paths []string
			for _, e := range all {
				paths = append(paths, e.Path)
			}
			require.Contains(t, paths, c.path)
		})
	}
}

func TestSet_ErrorsComeAfterThoseOfTheFile(t *testing.T) {
	_, err := resolve([]byte(head+"  envs: [{name: a}]\n  steps: 0\n"), "x.yaml", []string{"spec.lag.max=-1"})
	all := Errors(err)
	require.Len(t, all, 2)
	require.Equal(t, "x.yaml", all[0].File)
	require.Equal(t, "--set", all[1].File)
}
