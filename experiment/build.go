package experiment

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// lack is one field of which this build has only some values. A build that
// has more edits its line; a build that has all deletes it.
type lack struct {
	path string   // elements of lists are written []
	has  []string // values as they are written; words of has that name a form need accepts
	// accepts decides in place of has where values are not a closed set.
	accepts func(value string) bool
}

// lacks is everything that the document knows and this build does not have.
var lacks = []lack{
	{path: "spec.policy.init", has: []string{"a directory", "tiny://…"}, accepts: locationIn("", "tiny")},
	{path: "spec.policy.lora", has: []string{"null"}},
	{path: "spec.policy.engine.kind", has: []string{"tiny"}},
	{path: "spec.policy.engine.endpoints", has: []string{"[]"}},
	{path: "spec.policy.engine.onSwitch", has: []string{"abort"}},
	{path: "spec.policy.publish.onReject", has: []string{"pause"}},
	{path: "spec.policy.publish.canary.fraction", has: []string{"0"}},
	{path: "spec.envs[].tasks.source", has: []string{"a directory (Harbor layout)"}, accepts: harborDirectory},
	{path: "spec.envs[].tasks.curriculum", has: []string{"null"}},
	{path: "spec.envs[].environment.runtime", has: []string{"bubblewrap"}},
	{path: "spec.envs[].environment.image", has: []string{"host"}},
	{path: "spec.envs[].environment.snapshot.perGroup", has: []string{"true"}},
	{path: "spec.envs[].environment.snapshot.memory", has: []string{"false"}},
	{path: "spec.envs[].environment.network.mode", has: []string{"none"}},
	{path: "spec.envs[].environment.secrets", has: []string{"[]"}},
	{path: "spec.envs[].agent.driver", has: []string{"tools"}},
	{path: "spec.envs[].agent.tools", has: []string{"[bash]"}},
	{path: "spec.envs[].rewards[].required", has: []string{"true"}},
	{path: "spec.envs[].rewards[].verifier.kind", has: []string{"script"}},
	{path: "spec.envs[].rewards[].verifier.mode", has: []string{"separate"}},
	{path: "spec.envs[].rewards[].verifier.rerun", has: []string{"0"}},
	{path: "spec.envs[].rewards[].verifier.overlong", has: []string{"null"}},
	{path: "spec.lag.allowMixedCache", has: []string{"false"}},
	{path: "spec.trainer.backend", has: []string{"tiny"}},
	{path: "spec.trainer.gang.members", has: []string{"1"}},
	{path: "spec.trainer.gang.gpusPerMember", has: []string{"0"}},
	{path: "spec.trainer.algorithm.preset", has: []string{"grpo", "dr-grpo", "rloo"}},
	{path: "spec.trainer.algorithm.advantage.kind", has: []string{"grpo", "rloo"}},
	{path: "spec.trainer.algorithm.loss.kind", has: []string{"ppo-clip"}},
	{path: "spec.trainer.algorithm.ratio", has: []string{"behaviour"}},
	{path: "spec.trainer.algorithm.correction.kind", has: []string{"none"}},
	{path: "spec.trainer.algorithm.kl.coef", has: []string{"0"}},
	{path: "spec.trainer.algorithm.kl.ref", has: []string{"init"}},
	{path: "spec.trainer.algorithm.kl.refreshEvery", has: []string{"0"}},
	{path: "spec.trainer.algorithm.zeroVariance.kind", has: []string{"keep"}},
	{path: "spec.trainer.critic", has: []string{"null"}},
	{path: "spec.trainer.lr.schedule", has: []string{"constant"}},
	{path: "spec.trainer.lr.warmup", has: []string{"0"}},
	{path: "spec.trainer.optimizer.kind", has: []string{"adamw"}},
	{path: "spec.trainer.checkpoint.every", has: []string{"1"}},
	{path: "spec.eval.suites[].tasks.source", has: []string{"a directory (Harbor layout)"}, accepts: harborDirectory},
	{path: "spec.eval.suites[].passAt", has: []string{"[1]"}},
	{path: "spec.eval.suites[].sampling.minP", has: []string{"0"}},
	{path: "spec.eval.suites[].sampling.presencePenalty", has: []string{"0"}},
	{path: "spec.eval.suites[].sampling.frequencyPenalty", has: []string{"0"}},
	{path: "spec.eval.suites[].sampling.repetitionPenalty", has: []string{"1"}},
	{path: "spec.storage", has: []string{"file://DIR"}, accepts: locationIn("file")},
	{path: "spec.budget.gpuHours", has: []string{"0"}},
	{path: "spec.budget.judgeCalls", has: []string{"0"}},
}

// locationIn accepts locations with one of these schemes; "" is a plain path.
func locationIn(schemes ...string) func(string) bool {
	return func(value string) bool { return slices.Contains(schemes, scheme(value)) }
}

func harborDirectory(source string) bool {
	return scheme(source) == "" && !strings.HasSuffix(source, ".jsonl") && !strings.HasPrefix(source, "cmd:")
}

// build reports every value that this build does not have.
func (c *checker) build() {
	byPath := map[string]lack{}
	for _, l := range lacks {
		byPath[l.path] = l
	}
	walk(reflect.ValueOf(c.e).Elem(), "", func(path string, v reflect.Value, f field) bool {
		l, ok := byPath[anyIndex.ReplaceAllString(path, "[]")]
		if !ok {
			return true
		}
		value := flow(v)
		has := slices.Contains(l.has, value)
		if l.accepts != nil {
			has = l.accepts(v.String())
		}
		if has {
			return true
		}
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			value = "{" + strings.Join(keysOf(v.Type().Elem()), ", ") + "}"
		}
		value = clip(value)
		want := strings.Join(l.has, ", ")
		c.report(f.name+": "+value+" is not in this build; it has: "+want, value, want, path)
		return false
	})
	for i, e := range c.e.Spec.Envs {
		if n := len(e.Rewards); n > 1 {
			found := strconv.Itoa(n) + " components"
			c.report("rewards: "+found+" are not in this build; it has: one", found, "one", "spec.envs["+strconv.Itoa(i)+"].rewards")
		}
	}
}
