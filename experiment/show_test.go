package experiment

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShow_RoundTrip(t *testing.T) {
	for name, sets := range map[string][]string{
		"sample":    nil,
		"odd texts": {"metadata.labels={a: 'null', b: \"1e3\", c: 'x: y', d: \"q\\\"\\n#\", e: '', f: 'ü – 字', 'k k': \"\\u0085\\u2028\"}"},
		"numbers":   {"spec.trainer.lr.value=1e-07", "spec.trainer.optimizer.weightDecay=1e21", "spec.trainer.algorithm.entropy=0.30000000000000004"},
		"preset":    {"spec.trainer.algorithm.preset=dr-grpo", "spec.trainer.algorithm.aggregate=token-mean"},
		"lists":     {"spec.envs=[{name: a, rewards: [{name: s, weight: 2}]}, {name: b, tasks: {split: x}}]", "spec.eval.suites[0].env=a", "spec.eval.suites[0].passAt=[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Load("testdata/files.yaml", sets)
			require.NoError(t, err)
			for form, text := range map[string]string{"yaml": e.Show(true), "json": string(e.Canonical())} {
				again, err := Parse([]byte(text), "elsewhere/y.yaml")
				require.NoError(t, err, "%s:\n%s", form, text)
				require.Equal(t, e.Spec, again.Spec, form)
				require.Equal(t, e.Metadata, again.Metadata, form)
				require.Equal(t, e.Digest(), again.Digest(), form)
			}
		})
	}
}

func TestShow_NamesOrigins(t *testing.T) {
	e, err := resolve([]byte(shortest), "x.yaml", []string{"spec.trainer.algorithm.preset=rloo", "spec.trainer.algorithm.loss.high=0.28", "spec.trainer.optimizer.betas[0]=0.8"})
	require.NoError(t, err)
	for _, want := range []string{
		"name: files # x.yaml:6", "seed: 7 # default", "preset: rloo # --set", "high: 0.28 # --set",
		"kind: rloo # preset rloo", "std: false # preset rloo", "low: 0.2 # preset rloo", "entropy: 0.005 # default", "betas: [0.8, 0.95] # --set",
	} {
		require.Contains(t, strings.Join(strings.Fields(e.Show(true)), " "), want)
	}
	brief := e.Show(false)
	require.NotContains(t, brief, "default")
	require.NotContains(t, brief, "deadlines")
	require.Contains(t, brief, "- name: files")

	lines := strings.Split(strings.TrimSpace(e.Show(true)), "\n")
	require.Greater(t, len(lines), 120)
	for _, l := range lines {
		require.True(t, strings.HasSuffix(l, ":") || strings.Contains(l, "  # "), "no origin: %s", l)
	}
}

func TestValues(t *testing.T) {
	e, err := Load("testdata/files.yaml", []string{"spec.lag.max=0"})
	require.NoError(t, err)
	all := e.Values(true)
	byPath := map[string]Value{}
	for _, v := range all {
		byPath[v.Path] = v
	}
	require.Len(t, byPath, len(all), "each field once")
	require.Equal(t, Value{"spec.lag.max", "0", "--set"}, byPath["spec.lag.max"])
	require.Equal(t, Value{"spec.policy.lora", "null", "testdata/files.yaml:13"}, byPath["spec.policy.lora"])
	require.Equal(t, Value{"spec.envs[0].agent.maxObservation", "128", "default"}, byPath["spec.envs[0].agent.maxObservation"])
	require.Equal(t, Value{"spec.envs[0].agent.timeout", "1m", "testdata/files.yaml:50"}, byPath["spec.envs[0].agent.timeout"])
	require.Less(t, len(e.Values(false)), len(all))
}

func TestDigest_IgnoresFormAndPlace(t *testing.T) {
	a, err := Parse([]byte(shortest), "a/x.yaml")
	require.NoError(t, err)
	b, err := Parse([]byte("{spec: {envs: [{\"name\": files}], seed: 7, deadlines: {batch: 600s}}, # same\n kind: Experiment, metadata: {name: files}, apiVersion: rlfleet/v1}\n"), "/b/y.yaml")
	require.NoError(t, err)
	require.Equal(t, a.Digest(), b.Digest())
	require.NoError(t, a.Digest().Validate())
	c, err := resolve([]byte(shortest), "a/x.yaml", []string{"spec.seed=8"})
	require.NoError(t, err)
	require.NotEqual(t, a.Digest(), c.Digest())
}

func TestPresets(t *testing.T) {
	f, ok := fieldNamed(reflect.TypeFor[Algorithm](), "preset")
	require.True(t, ok)
	require.Len(t, presets, len(f.enum))
	for _, name := range f.enum {
		require.Len(t, presets[name], len(presetFields), name)
		sets := []string{"spec.trainer.algorithm.preset=" + name, "spec.lag.max=0"}
		if name == "ppo" {
			sets = append(sets, "spec.trainer.critic={init: x, lr: 1e-4}")
		}
		_, err := resolve([]byte(shortest), "x.yaml", sets)
		for _, e := range Errors(err) {
			require.Contains(t, e.Msg, "is not in this build", "preset %s breaks a rule or a range: %v", name, e)
		}
	}

	// The default preset says what the defaults of the fields say.
	e, err := Parse([]byte(shortest), "x.yaml")
	require.NoError(t, err)
	var d decoder
	plain := Experiment{}
	d.defaults(reflect.ValueOf(&plain).Elem(), "")
	require.Empty(t, d.errs)
	require.Equal(t, plain.Spec.Trainer.Algorithm, e.Spec.Trainer.Algorithm)

	// What the user writes wins, and takes along what belongs to it.
	e, err = Parse([]byte(shortest+"  trainer: {algorithm: {preset: dr-grpo, aggregate: token-mean, loss: {high: 0.3}}}\n"), "x.yaml")
	require.NoError(t, err)
	a := e.Spec.Trainer.Algorithm
	require.Equal(t, Advantage{Kind: "grpo", Std: false}, a.Advantage)
	require.Equal(t, "token-mean", a.Aggregate.Kind)
	require.Equal(t, Loss{Kind: "ppo-clip", Low: 0.2, High: 0.3, Dual: 3}, a.Loss)
	_, err = resolve([]byte(shortest), "x.yaml", []string{"spec.trainer.algorithm.preset=dapo", "spec.trainer.algorithm.zeroVariance=keep"})
	require.Equal(t, "spec.trainer.algorithm.preset", sole(t, err).Path)
}
