package experiment

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
)

// ruleCases break one rule each, starting from the shortest spec.
var ruleCases = []struct {
	name  string
	sets  []string
	path  string
	says  string // the rule's sentence, or its beginning
	found string
}{
	{"publish beyond lag", []string{"spec.policy.publish.every=4"}, "spec.policy.publish.every", "policy.publish.every is at most lag.max + 1", "4"},
	{"keep without mixed cache", []string{"spec.policy.engine.onSwitch=keep"}, "spec.policy.engine.onSwitch", "policy.engine.onSwitch keep", "keep"},
	{"endpoints of an embedded engine", []string{"spec.policy.engine.endpoints=[a]"}, "spec.policy.engine.endpoints", "policy.engine.endpoints", "1 endpoints with kind tiny"},
	{"no endpoint of a server", []string{"spec.policy.engine.kind=vllm"}, "spec.policy.engine.endpoints", "policy.engine.endpoints", "no endpoint with kind vllm"},
	{"cursor of no run", []string{"spec.policy.resume.cursor=true"}, "spec.policy.resume.cursor", "policy.resume.cursor", "./policy"},
	{"canary without steps", []string{"spec.policy.publish.canary.fraction=0.5"}, "spec.policy.publish.canary.steps", "policy.publish.canary", "steps 0"},
	{"two envs of one name", []string{"spec.envs=[{name: a}, {name: a}]"}, "spec.envs[1].name", "names of envs", "a twice"},
	{"two rewards of one name", []string{"spec.envs[0].rewards=[{name: r}, {name: r}]"}, "spec.envs[0].rewards[1].name", "names of envs", "r twice"},
	{"two suites of one name", []string{"spec.eval.suites=[{name: s, env: files}, {name: s, env: files}]"}, "spec.eval.suites[1].name", "names of envs", "s twice"},
	{"host image elsewhere", []string{"spec.envs[0].environment.runtime=containerd"}, "spec.envs[0].environment.image", "environment.image host", "host with runtime containerd"},
	{"hosts without mode", []string{"spec.envs[0].environment.network.allow=[a.example]"}, "spec.envs[0].environment.network.allow", "environment.network.allow", "mode none with 1 hosts"},
	{"mode without hosts", []string{"spec.envs[0].environment.network.mode=allow"}, "spec.envs[0].environment.network.allow", "environment.network.allow", "mode allow with 0 hosts"},
	{"more warm than max", []string{"spec.envs[0].environment.pool.warm=65"}, "spec.envs[0].environment.pool.warm", "environment.pool.warm", "65"},
	{"openenv driver alone", []string{"spec.envs[0].agent.driver=openenv"}, "spec.envs[0].agent.driver", "driver openenv", "openenv with runtime bubblewrap"},
	{"command of another driver", []string{"spec.envs[0].agent.command=[x]"}, "spec.envs[0].agent.command", "agent.command is given", "driver tools"},
	{"driver command without one", []string{"spec.envs[0].agent.driver=command"}, "spec.envs[0].agent.command", "agent.command is given", "0 words"},
	{"no tools", []string{"spec.envs[0].agent.tools=[]"}, "spec.envs[0].agent.tools", "driver tools needs", "[]"},
	{"one tool twice", []string{"spec.envs[0].agent.tools=[bash, bash]"}, "spec.envs[0].agent.tools[1]", "driver tools needs", "bash twice"},
	{"turn beyond episode", []string{"spec.envs[0].agent.maxTurnTokens=257"}, "spec.envs[0].agent.maxTurnTokens", "agent.maxTurnTokens", "257"},
	{"observation of a whole context", []string{"spec.envs[0].agent.maxObservation=512"}, "spec.envs[0].agent.maxObservation", "agent.maxObservation", "512"},
	{"agent outlives its episode", []string{"spec.envs[0].agent.timeout=6m"}, "spec.envs[0].agent.timeout", "agent.timeout", "6m"},
	{"path of a script", []string{"spec.envs[0].rewards[0].verifier.path=a.py"}, "spec.envs[0].rewards[0].verifier.path", "fields of a verifier", "path with kind script"},
	{"judge without endpoint", []string{"spec.envs[0].rewards[0].verifier.kind=judge"}, "spec.envs[0].rewards[0].verifier.endpoint", "fields of a verifier", "kind judge without endpoint"},
	{"group scope of a script", []string{"spec.envs[0].rewards[0].verifier.scope=group"}, "spec.envs[0].rewards[0].verifier.scope", "fields of a verifier", "scope with kind script"},
	{"soft at hard", []string{"spec.envs[0].rewards[0].verifier={kind: shaping, overlong: {soft: 9, hard: 9}}"}, "spec.envs[0].rewards[0].verifier.overlong.soft", "overlong.soft", "soft 9 and hard 9"},
	{"keep no number", []string{"spec.envs[0].shortGroup=keep"}, "spec.envs[0].shortGroup.min", "shortGroup.min", "min 0 with kind keep"},
	{"keep beyond group", []string{"spec.envs[0].shortGroup={kind: keep, min: 17}"}, "spec.envs[0].shortGroup.min", "shortGroup.min", "min 17"},
	{"replace with min", []string{"spec.envs[0].shortGroup.min=4"}, "spec.envs[0].shortGroup.min", "shortGroup.min", "min 4 with kind replace"},
	{"pass rates reversed", []string{"spec.envs[0].tasks.curriculum={passRate: [0.9, 0.1]}"}, "spec.envs[0].tasks.curriculum.passRate", "curriculum.passRate", "[0.9 0.1]"},
	{"suite of no env", []string{"spec.eval.suites=[{name: s, env: other}]"}, "spec.eval.suites[0].env", "an eval suite names", "other"},
	{"eval on train", []string{"spec.eval.suites=[{name: s, env: files, tasks: {source: tasks/., split: train}}]"}, "spec.eval.suites[0].tasks.split", "train and eval tasks", "split train of ./tasks"},
	{"pass at more than samples", []string{"spec.eval.suites=[{name: s, env: files, passAt: [1, 4]}]"}, "spec.eval.suites[0].passAt[1]", "eval passAt", "4"},
	{"stop without eval", []string{"spec.stopWhen={evalReward: 0.9}"}, "spec.stopWhen", "stopWhen.evalReward", "no suite"},
	{"storage of no kind", []string{"spec.storage=.rlfleet"}, "spec.storage", "storage is file://DIR", `".rlfleet"`},
	{"storage of no place", []string{"spec.storage=file://"}, "spec.storage", "storage is file://DIR", `"file://"`},
	{"no progress too soon", []string{"spec.deadlines.noProgress=10m"}, "spec.deadlines.noProgress", "deadlines.noProgress", "10m"},
	{"budget of nothing", []string{"spec.budget={}"}, "spec.budget", "a budget bounds", "only zeros"},

	{"topP", []string{"spec.envs[0].agent.sampling.topP=0.9"}, "spec.envs[0].agent.sampling.topP", "training samples from the whole", "topP: 0.9"},
	{"topK", []string{"spec.envs[0].agent.sampling.topK=5"}, "spec.envs[0].agent.sampling.topK", "training samples from the whole", "topK: 5"},
	{"minP", []string{"spec.envs[0].agent.sampling.minP=0.1"}, "spec.envs[0].agent.sampling.minP", "training samples from the whole", "minP: 0.1"},
	{"penalty", []string{"spec.envs[0].agent.sampling.repetitionPenalty=1.1"}, "spec.envs[0].agent.sampling.repetitionPenalty", "training samples from the whole", "repetitionPenalty: 1.1"},
	{"greedy training", []string{"spec.envs[0].agent.sampling.temperature=0"}, "spec.envs[0].agent.sampling.temperature", "training samples at a temperature", "temperature: 0"},
	{"group of one", []string{"spec.envs[0].groupSize=1"}, "spec.envs[0].groupSize", "a group-relative advantage", "1 with advantage grpo"},
	{"group of one with rloo", []string{"spec.trainer.algorithm.preset=rloo", "spec.envs[0].groupSize=1"}, "spec.envs[0].groupSize", "a group-relative advantage", "1 with advantage rloo"},
	{"std of rloo", []string{"spec.trainer.algorithm.advantage.kind=rloo"}, "spec.trainer.algorithm.advantage.std", "advantage.std", "std: true with kind rloo"},
	{"dual clip of 1", []string{"spec.trainer.algorithm.loss.dual=1"}, "spec.trainer.algorithm.loss.dual", "loss.dual", "dual: 1"},
	{"length of a mean", []string{"spec.trainer.algorithm.aggregate.length=9"}, "spec.trainer.algorithm.aggregate.length", "aggregate.length", "length 9 with kind token-mean"},
	{"refill of nothing", []string{"spec.trainer.algorithm.zeroVariance=refill"}, "spec.trainer.algorithm.zeroVariance.max", "zeroVariance.max", "max 0 with kind refill"},
	{"tis twice", []string{"spec.trainer.algorithm.correction.kind=tis"}, "spec.trainer.algorithm.correction.kind", "correction tis", "tis with ratio behaviour"},
	{"k1 in the loss", []string{"spec.trainer.algorithm.kl={coef: 0.1, estimator: k1}", "spec.lag.max=0"}, "spec.trainer.algorithm.kl.estimator", "estimator k1", "k1 in the loss"},
	{"kl under lag", []string{"spec.trainer.algorithm.kl.coef=0.1"}, "spec.trainer.algorithm.kl.in", "a KL term in the loss under lag", "lag.max: 2"},
	{"gae alone", []string{"spec.trainer.algorithm.advantage={kind: gae, std: false}"}, "spec.trainer.algorithm.advantage.kind", "advantage gae", "without a critic"},
	{"critic alone", []string{"spec.trainer.critic={init: x, lr: 1e-3}"}, "spec.trainer.critic", "advantage gae", "a critic with advantage grpo"},
	{"ppo without critic", []string{"spec.trainer.algorithm.preset=ppo"}, "spec.trainer.critic", "preset ppo needs a critic", "critic: null"},
	{"gspo at its default clip", []string{"spec.trainer.algorithm.preset=gspo", "spec.trainer.algorithm.ratio=behaviour"}, "spec.trainer.algorithm.ratio", "loss gspo", "low 0.0003"},
	{"gang below its least", []string{"spec.trainer.gang.minMembers=2"}, "spec.trainer.gang.minMembers", "gang.minMembers", "2"},
	{"empty minibatches", []string{"spec.trainer.minibatches=257"}, "spec.trainer.minibatches", "minibatches", "257"},
}

func TestRules(t *testing.T) {
	hit := map[string]bool{}
	for _, c := range ruleCases {
		t.Run(c.name, func(t *testing.T) {
			_, err := resolve([]byte(shortest), "x.yaml", c.sets)
			for _, e := range Errors(err) {
				if strings.HasPrefix(e.Msg, c.says) {
					hit[e.Msg] = true
					require.Equal(t, c.path, e.Path)
					require.Contains(t, e.Found, c.found)
					require.NotEmpty(t, e.Want)
					require.Equal(t, "--set", e.File)
					return
				}
			}
			t.Fatalf("no error begins with %q: %v", c.says, err)
		})
	}
	for _, r := range rules {
		require.True(t, hit[r.says], "no case breaks the rule: %s", r.says)
		require.NotContains(t, r.says, "\n")
	}
}

func TestRules_PointAtTheFile(t *testing.T) {
	_, err := Parse([]byte(head+"  lag: {max: 1}\n  policy:\n    publish:\n      every: 3\n  envs:\n  - name: a\n    groupSize: 1\n"), "x.yaml")
	all := Errors(err)
	require.Len(t, all, 2, "%v", err)
	require.Equal(t, "x.yaml:8:14: spec.policy.publish.every: policy.publish.every is at most lag.max + 1, or a published version would be too old to train from (found 3, want at most 2)", all[0].Error())
	require.Equal(t, "x.yaml:11:16: spec.envs[0].groupSize: a group-relative advantage compares members, so groupSize is at least 2 (found 1 with advantage grpo, want an integer of at least 2)", all[1].Error())
}

func TestRules_AcceptTheEdges(t *testing.T) {
	for _, sets := range [][]string{
		{"spec.policy.publish.every=3"},
		{"spec.lag.max=0"},
		{"spec.envs[0].groupSize=2"},
		{"spec.envs[0].shortGroup={kind: keep, min: 16}"},
		{"spec.envs[0].environment.pool.warm=64"},
		{"spec.envs[0].agent.maxTurnTokens=256"},
		{"spec.envs[0].agent.timeout=5m"},
		{"spec.deadlines.noProgress=10m1ns"},
		{"spec.trainer.minibatches=256"},
		{"spec.trainer.algorithm.kl.in=reward"},
		{"spec.eval.suites=[{name: s, env: files, samples: 4}]"},
	} {
		_, err := resolve([]byte(shortest), "x.yaml", sets)
		require.NoError(t, err, "%v", sets)
	}
}

func TestCheckOverlap(t *testing.T) {
	e, err := Load("testdata/files.yaml", nil)
	require.NoError(t, err)
	a, b, c := policy.DigestOf([]byte("a")), policy.DigestOf([]byte("b")), policy.DigestOf([]byte("c"))
	require.NoError(t, e.CheckOverlap(0, []policy.Digest{a, b}, []policy.Digest{c}))
	got := sole(t, e.CheckOverlap(0, []policy.Digest{a, b}, []policy.Digest{c, b}))
	require.Equal(t, "spec.eval.suites[0].tasks", got.Path)
	require.Equal(t, 86, got.Line)
	require.Contains(t, got.Found, "1 of 2, the first "+string(b))
}
