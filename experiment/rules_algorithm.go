package experiment

import (
	"fmt"
	"strconv"
)

// algorithmRules are the combinations of the objective that do not mean what they say.
var algorithmRules = []rule{
	{"training samples from the whole distribution (topP 1, topK 0, minP 0, no penalties), since no engine of this build records the sampling support", wholeDistribution},
	{"training samples at a temperature above 0, since greedy episodes of a group are all alike", trainTemperature},
	{"a group-relative advantage compares members, so groupSize is at least 2", groupRelative},
	{"advantage.std is only for kind grpo", stdKind},
	{"loss.dual is 0 or above 1", dualRange},
	{"aggregate.length is only for kind seq-mean-token-sum-norm", aggregateLength},
	{"zeroVariance.max is given exactly with kind refill", refillMax},
	{"correction tis needs ratio decoupled, because with ratio behaviour the ratio would count twice", tisRatio},
	{"estimator k1 in the loss has an on-policy gradient of zero", k1Loss},
	{"a KL term in the loss under lag has no ratio weighting and would have a biased gradient", klLag},
	{"advantage gae, which preset ppo sets, needs a critic, and a critic needs advantage gae", gaeCritic},
	{"preset ppo needs a critic", ppoCritic},
	{"loss gspo with ratio behaviour needs a clip above the default 3e-4 and 4e-4, which engine noise exceeds", gspoClip},
	{"gang.minMembers is at most gang.members", gangSize},
	{"minibatches is at most the episodes of a batch", minibatchCount},
}

const alg = algorithmPath + "."

func wholeDistribution(c *checker, s *Spec) {
	for i, e := range s.Envs {
		p := e.Agent.Sampling
		for _, x := range []struct {
			key   string
			value any
			want  any
		}{
			{"topP", p.TopP, 1.0},
			{"topK", p.TopK, 0},
			{"minP", p.MinP, 0.0},
			{"presencePenalty", p.PresencePenalty, 0.0},
			{"frequencyPenalty", p.FrequencyPenalty, 0.0},
			{"repetitionPenalty", p.RepetitionPenalty, 1.0},
		} {
			if x.value != x.want {
				c.refuse(fmt.Sprintf("%s: %v", x.key, x.value), fmt.Sprintf("%s: %v", x.key, x.want), env(i, "agent.sampling."+x.key))
			}
		}
	}
}

func trainTemperature(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if e.Agent.Sampling.Temperature == 0 {
			c.refuse("temperature: 0", "a number above 0", env(i, "agent.sampling.temperature"))
		}
	}
}

func groupRelative(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if s.Trainer.Algorithm.Advantage.Relative() && e.GroupSize < 2 {
			c.refuse(fmt.Sprintf("%d with advantage %s", e.GroupSize, s.Trainer.Algorithm.Advantage.Kind), "an integer of at least 2",
				env(i, "groupSize"), alg+"advantage.kind", alg+"preset")
		}
	}
}

func stdKind(c *checker, s *Spec) {
	if a := s.Trainer.Algorithm.Advantage; a.Std && a.Kind != "grpo" {
		c.refuse("std: true with kind "+a.Kind, "std: false", alg+"advantage.std", alg+"advantage.kind")
	}
}

func dualRange(c *checker, s *Spec) {
	if d := s.Trainer.Algorithm.Loss.Dual; d != 0 && d <= 1 {
		c.refuse(fmt.Sprintf("dual: %v", d), "a number above 1, or 0 for none", alg+"loss.dual")
	}
}

func aggregateLength(c *checker, s *Spec) {
	if a := s.Trainer.Algorithm.Aggregate; a.Length > 0 && a.Kind != "seq-mean-token-sum-norm" {
		c.refuse(fmt.Sprintf("length %d with kind %s", a.Length, a.Kind), "no length", alg+"aggregate.length", alg+"aggregate.kind")
	}
}

func refillMax(c *checker, s *Spec) {
	if z := s.Trainer.Algorithm.ZeroVariance; (z.Kind == "refill") != (z.Max > 0) {
		c.refuse(fmt.Sprintf("max %d with kind %s", z.Max, z.Kind), "{kind: refill, max: N} with N above 0, or no max", alg+"zeroVariance.max", alg+"zeroVariance.kind")
	}
}

func tisRatio(c *checker, s *Spec) {
	if a := s.Trainer.Algorithm; a.Correction.Kind == "tis" && a.Ratio == "behaviour" {
		c.refuse("tis with ratio behaviour", "ratio: decoupled, or a mask (icepop, mis, geo)", alg+"correction.kind", alg+"ratio")
	}
}

func k1Loss(c *checker, s *Spec) {
	if k := s.Trainer.Algorithm.KL; k.Coef > 0 && k.In == "loss" && k.Estimator == "k1" {
		c.refuse("k1 in the loss", "k2 or k3, or kl.in: reward", alg+"kl.estimator", alg+"kl.in", alg+"kl.coef")
	}
}

func klLag(c *checker, s *Spec) {
	if k := s.Trainer.Algorithm.KL; k.Coef > 0 && k.In == "loss" && s.Lag.Max > 0 {
		c.refuse(fmt.Sprintf("kl.in: loss with lag.max: %d", s.Lag.Max), "kl.in: reward, or lag.max: 0", alg+"kl.in", alg+"kl.coef", "spec.lag.max")
	}
}

func gaeCritic(c *checker, s *Spec) {
	kind, critic := s.Trainer.Algorithm.Advantage.Kind, s.Trainer.Critic != nil
	if critic && kind != "gae" {
		c.refuse("a critic with advantage "+kind, "critic: null, or advantage {kind: gae}", "spec.trainer.critic", alg+"advantage.kind", alg+"preset")
	}
	if !critic && kind == "gae" && s.Trainer.Algorithm.Preset != "ppo" {
		c.refuse("advantage gae without a critic", "a critic", alg+"advantage.kind", "spec.trainer.critic", alg+"preset")
	}
}

func ppoCritic(c *checker, s *Spec) {
	if s.Trainer.Algorithm.Preset == "ppo" && s.Trainer.Critic == nil {
		c.refuse("critic: null", "critic: {init: …, lr: …}", "spec.trainer.critic", alg+"preset")
	}
}

func gspoClip(c *checker, s *Spec) {
	const low, high = 3e-4, 4e-4 // of the paper
	a := s.Trainer.Algorithm
	if a.Loss.Kind == "gspo" && a.Ratio == "behaviour" && (a.Loss.Low <= low || a.Loss.High <= high) {
		c.refuse(fmt.Sprintf("ratio behaviour with low %v and high %v", a.Loss.Low, a.Loss.High), "ratio: decoupled, or a wider clip", alg+"ratio", alg+"loss")
	}
}

func gangSize(c *checker, s *Spec) {
	if g := s.Trainer.Gang; g.MinMembers > g.Members {
		c.refuse(strconv.Itoa(g.MinMembers), fmt.Sprintf("at most %d", g.Members), "spec.trainer.gang.minMembers", "spec.trainer.gang.members")
	}
}

func minibatchCount(c *checker, s *Spec) {
	if len(s.Envs) == 0 {
		return
	}
	smallest := s.Envs[0].GroupSize
	for _, e := range s.Envs {
		smallest = min(smallest, e.GroupSize)
	}
	// By division: the product of two accepted values may not fit an integer.
	if n := s.Trainer.Minibatches; (n-1)/smallest >= s.Trainer.GroupsPerStep {
		c.refuse(strconv.Itoa(n), fmt.Sprintf("at most %d groups of %d episodes", s.Trainer.GroupsPerStep, smallest), "spec.trainer.minibatches", "spec.trainer.groupsPerStep", "spec.envs")
	}
}
