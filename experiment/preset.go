package experiment

import "reflect"

// algorithmPath is where presets apply.
const algorithmPath = "spec.trainer.algorithm"

// belongs names the field that gives another its meaning: when the user sets
// the first, a preset leaves the second alone.
var belongs = map[string]string{"zeroVariance.max": "zeroVariance.kind"}

// settings are values by path below spec.trainer.algorithm.
type settings map[string]string

// presets says what each preset sets. All set the same fields, so that
// changing the preset never leaves a field of another one behind.
var presets = map[string]settings{
	"grpo":        preset("grpo", "true", "ppo-clip", "0.2", "0.2", "3.0", "behaviour", "token-mean", "keep", "0"),
	"dr-grpo":     preset("grpo", "false", "ppo-clip", "0.2", "0.2", "3.0", "behaviour", "seq-mean-token-sum-norm", "keep", "0"),
	"rloo":        preset("rloo", "false", "ppo-clip", "0.2", "0.2", "3.0", "behaviour", "token-mean", "keep", "0"),
	"reinforce++": preset("reinforce++", "false", "ppo-clip", "0.2", "0.2", "3.0", "behaviour", "token-mean", "keep", "0"),
	"dapo":        preset("grpo", "true", "ppo-clip", "0.2", "0.28", "0", "behaviour", "token-mean", "refill", "3"),
	"gspo":        preset("grpo", "true", "gspo", "3e-4", "4e-4", "0", "decoupled", "seq-mean-token-mean", "keep", "0"),
	"cispo":       preset("grpo", "true", "cispo", "1.0", "4.0", "0", "behaviour", "token-mean", "keep", "0"),
	"ppo":         preset("gae", "false", "ppo-clip", "0.2", "0.2", "3.0", "behaviour", "token-mean", "keep", "0"),
}

// presetFields lists what a preset sets, in the order of the document.
var presetFields = []string{
	"advantage.kind", "advantage.std", "loss.kind", "loss.low", "loss.high", "loss.dual",
	"ratio", "aggregate.kind", "zeroVariance.kind", "zeroVariance.max",
}

// preset pairs values with presetFields, in their order.
func preset(values ...string) settings {
	s := settings{}
	for i, v := range values {
		s[presetFields[i]] = v
	}
	return s
}

// expand writes the preset's values into every field that nothing else has set.
func expand(e *Experiment) []*Error {
	name := e.Spec.Trainer.Algorithm.Preset
	d := &decoder{file: fromPreset + name, from: fromPreset + name, origins: e.origins}
	set := map[string]bool{}
	for p := range e.origins {
		set[p] = true
	}
	for _, p := range presetFields {
		path := algorithmPath + "." + p
		if set[path] || set[algorithmPath+"."+belongs[p]] {
			continue
		}
		d.descend(reflect.ValueOf(e).Elem(), path, "", presets[name][p], field{})
		o := e.origins[path]
		o.File = "" // a preset has no position of its own
		e.origins[path] = o
	}
	return d.errs
}
