package experiment

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// suiteOf is a suite in one line of YAML with one more field.
func suiteOf(field string) string {
	return "spec.eval.suites=[{name: s, env: files, " + field + "}]"
}

func TestBuild_RefusesByName(t *testing.T) {
	cases := []struct {
		path string // as in the table
		sets []string
		msg  string
	}{
		{"spec.policy.init", []string{"spec.policy.init=s3://bucket/policy"}, "init: s3://bucket/policy is not in this build; it has: a directory, tiny://…"},
		{"spec.policy.lora", []string{"spec.policy.lora={rank: 8}"}, "lora: {rank, alpha, targets} is not in this build; it has: null"},
		{"spec.policy.engine.kind", []string{"spec.policy.engine.kind=vllm"}, "kind: vllm is not in this build; it has: tiny"},
		{"spec.policy.engine.endpoints", []string{"spec.policy.engine.endpoints=[a]"}, "endpoints: [a] is not in this build; it has: []"},
		{"spec.policy.engine.onSwitch", []string{"spec.policy.engine.onSwitch=wait"}, "onSwitch: wait is not in this build; it has: abort"},
		{"spec.policy.publish.onReject", []string{"spec.policy.publish.onReject=rollback"}, "onReject: rollback is not in this build; it has: pause"},
		{"spec.policy.publish.canary.fraction", []string{"spec.policy.publish.canary={fraction: 0.5, steps: 1}"}, "fraction: 0.5 is not in this build; it has: 0"},
		{"spec.envs[].tasks.source", []string{"spec.envs[0].tasks.source=tasks.jsonl"}, "source: tasks.jsonl is not in this build; it has: a directory (Harbor layout)"},
		{"spec.envs[].tasks.source", []string{"spec.envs[0].tasks.source=openenv://x"}, "source: openenv://x is not in this build; it has: a directory (Harbor layout)"},
		{"spec.envs[].tasks.source", []string{"spec.envs[0].tasks.source=cmd:make tasks"}, "source: \"cmd:make tasks\" is not in this build; it has: a directory (Harbor layout)"},
		{"spec.envs[].tasks.curriculum", []string{"spec.envs[0].tasks.curriculum={}"}, "curriculum: {passRate, window, explore} is not in this build; it has: null"},
		{"spec.envs[].environment.runtime", []string{"spec.envs[0].environment.runtime=gvisor"}, "runtime: gvisor is not in this build; it has: bubblewrap"},
		{"spec.envs[].environment.image", []string{"spec.envs[0].environment.image=./environment"}, "image: ./environment is not in this build; it has: host"},
		{"spec.envs[].environment.snapshot.perGroup", []string{"spec.envs[0].environment.snapshot.perGroup=false"}, "perGroup: false is not in this build; it has: true"},
		{"spec.envs[].environment.snapshot.memory", []string{"spec.envs[0].environment.snapshot.memory=true"}, "memory: true is not in this build; it has: false"},
		{"spec.envs[].environment.network.mode", []string{"spec.envs[0].environment.network={mode: allow, allow: [a.example]}"}, "mode: allow is not in this build; it has: none"},
		{"spec.envs[].environment.secrets", []string{"spec.envs[0].environment.secrets=[TOKEN]"}, "secrets: [TOKEN] is not in this build; it has: []"},
		{"spec.envs[].agent.driver", []string{"spec.envs[0].agent.driver=command", "spec.envs[0].agent.command=[x]"}, "driver: command is not in this build; it has: tools"},
		{"spec.envs[].agent.tools", []string{"spec.envs[0].agent.tools=[bash, edit]"}, "tools: [bash, edit] is not in this build; it has: [bash]"},
		{"spec.envs[].rewards[].required", []string{"spec.envs[0].rewards[0].required=false"}, "required: false is not in this build; it has: true"},
		{"spec.envs[].rewards", []string{"spec.envs[0].rewards=[{name: a}, {name: b}]"}, "rewards: 2 components are not in this build; it has: one"},
		{"spec.envs[].rewards[].verifier.kind", []string{"spec.envs[0].rewards[0].verifier.kind=exact"}, "kind: exact is not in this build; it has: script"},
		{"spec.envs[].rewards[].verifier.mode", []string{"spec.envs[0].rewards[0].verifier.mode=shared"}, "mode: shared is not in this build; it has: separate"},
		{"spec.envs[].rewards[].verifier.rerun", []string{"spec.envs[0].rewards[0].verifier.rerun=0.02"}, "rerun: 0.02 is not in this build; it has: 0"},
		{"spec.envs[].rewards[].verifier.overlong", []string{"spec.envs[0].rewards[0].verifier={kind: shaping, overlong: {soft: 1, hard: 2}}"}, "overlong: {soft, hard, penalty} is not in this build; it has: null"},
		{"spec.lag.allowMixedCache", []string{"spec.lag.allowMixedCache=true"}, "allowMixedCache: true is not in this build; it has: false"},
		{"spec.trainer.backend", []string{"spec.trainer.backend=torch"}, "backend: torch is not in this build; it has: tiny"},
		{"spec.trainer.gang.members", []string{"spec.trainer.gang.members=2"}, "members: 2 is not in this build; it has: 1"},
		{"spec.trainer.gang.gpusPerMember", []string{"spec.trainer.gang.gpusPerMember=8"}, "gpusPerMember: 8 is not in this build; it has: 0"},
		{"spec.trainer.algorithm.preset", []string{"spec.trainer.algorithm.preset=dapo"}, "preset: dapo is not in this build; it has: grpo, dr-grpo, rloo"},
		{"spec.trainer.algorithm.advantage.kind", []string{"spec.trainer.algorithm.advantage={kind: reinforce++, std: false}"}, "kind: reinforce++ is not in this build; it has: grpo, rloo"},
		{"spec.trainer.algorithm.loss.kind", []string{"spec.trainer.algorithm.loss={kind: cispo}"}, "kind: cispo is not in this build; it has: ppo-clip"},
		{"spec.trainer.algorithm.ratio", []string{"spec.trainer.algorithm.ratio=decoupled"}, "ratio: decoupled is not in this build; it has: behaviour"},
		{"spec.trainer.algorithm.correction.kind", []string{"spec.trainer.algorithm.correction.kind=mis"}, "kind: mis is not in this build; it has: none"},
		{"spec.trainer.algorithm.kl.coef", []string{"spec.trainer.algorithm.kl={coef: 0.001, in: reward}"}, "coef: 0.001 is not in this build; it has: 0"},
		{"spec.trainer.algorithm.kl.ref", []string{"spec.trainer.algorithm.kl.ref=run://a@3"}, "ref: run://a@3 is not in this build; it has: init"},
		{"spec.trainer.algorithm.kl.refreshEvery", []string{"spec.trainer.algorithm.kl.refreshEvery=9"}, "refreshEvery: 9 is not in this build; it has: 0"},
		{"spec.trainer.algorithm.zeroVariance.kind", []string{"spec.trainer.algorithm.zeroVariance=filter"}, "kind: filter is not in this build; it has: keep"},
		{"spec.trainer.critic", []string{"spec.trainer.critic={init: x, lr: 1e-3}"}, "critic: {init, lr, gamma, lambda} is not in this build; it has: null"},
		{"spec.trainer.lr.schedule", []string{"spec.trainer.lr.schedule=cosine"}, "schedule: cosine is not in this build; it has: constant"},
		{"spec.trainer.lr.warmup", []string{"spec.trainer.lr.warmup=5"}, "warmup: 5 is not in this build; it has: 0"},
		{"spec.trainer.checkpoint.every", []string{"spec.trainer.checkpoint.every=2"}, "every: 2 is not in this build; it has: 1"},
		{"spec.eval.suites[].tasks.source", []string{suiteOf("tasks: {source: swebench.jsonl}")}, "source: swebench.jsonl is not in this build; it has: a directory (Harbor layout)"},
		{"spec.eval.suites[].passAt", []string{suiteOf("samples: 4, passAt: [1, 4]")}, "passAt: [1, 4] is not in this build; it has: [1]"},
		{"spec.eval.suites[].sampling.minP", []string{suiteOf("sampling: {minP: 0.1}")}, "minP: 0.1 is not in this build; it has: 0"},
		{"spec.eval.suites[].sampling.presencePenalty", []string{suiteOf("sampling: {presencePenalty: 1}")}, "presencePenalty: 1 is not in this build; it has: 0"},
		{"spec.eval.suites[].sampling.frequencyPenalty", []string{suiteOf("sampling: {frequencyPenalty: 1}")}, "frequencyPenalty: 1 is not in this build; it has: 0"},
		{"spec.eval.suites[].sampling.repetitionPenalty", []string{suiteOf("sampling: {repetitionPenalty: 2}")}, "repetitionPenalty: 2 is not in this build; it has: 1"},
		{"spec.storage", []string{"spec.storage=s3://bucket/prefix"}, "storage: s3://bucket/prefix is not in this build; it has: file://DIR"},
		{"spec.budget.gpuHours", []string{"spec.budget={gpuHours: 2.5}"}, "gpuHours: 2.5 is not in this build; it has: 0"},
		{"spec.budget.judgeCalls", []string{"spec.budget={judgeCalls: 9}"}, "judgeCalls: 9 is not in this build; it has: 0"},
	}
	covered := map[string]bool{"spec.trainer.optimizer.kind": true} // the format has no other value yet
	for _, c := range cases {
		covered[c.path] = true
		t.Run(c.msg, func(t *testing.T) {
			_, err := resolve([]byte(shortest), "x.yaml", c.sets)
			var msgs []string
			for _, e := range Errors(err) {
				msgs = append(msgs, e.Msg)
				if e.Msg == c.msg {
					require.Equal(t, c.path, anyIndex.ReplaceAllString(e.Path, "[]"))
					require.Equal(t, "--set: "+e.Path+": "+c.msg, e.Error(), "found and wanted stand in the sentence")
				}
			}
			require.Contains(t, msgs, c.msg)
		})
	}
	for _, l := range lacks {
		require.True(t, covered[l.path], "no case for %s", l.path)
	}
}

func TestBuild_AcceptsWhatItHas(t *testing.T) {
	for _, set := range []string{
		"spec.policy.init=tiny://llama?layers=2&dim=32",
		"spec.policy.init=/abs/policy",
		"spec.envs[0].tasks.source=../shared tasks",
		"spec.trainer.algorithm.preset=dr-grpo",
		"spec.trainer.algorithm.preset=rloo",
		"spec.trainer.algorithm.aggregate=seq-mean-token-mean",
		"spec.storage=file:///var/lib/rlfleet",
		"spec.budget={tokens: 1000}",
		"spec.budget={sandboxHours: 0.5}",
	} {
		_, err := resolve([]byte(shortest), "x.yaml", []string{set})
		require.NoError(t, err, set)
	}
}

func TestBuild_PathsAndValuesAreOfTheDocument(t *testing.T) {
	e, err := Load("testdata/files.yaml", []string{"spec.budget={tokens: 1000}"})
	require.NoError(t, err, "each default is in this build")
	known := map[string]bool{}
	for _, v := range e.Values(true) {
		known[anyIndex.ReplaceAllString(v.Path, "[]")] = true
	}
	for _, l := range lacks {
		require.True(t, known[l.path], "the table names %s, which is no field", l.path)
	}
}
