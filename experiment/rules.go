package experiment

import (
	"fmt"
	"path"
	"strconv"
)

// rule is one combination of values that is refused, in one sentence.
type rule struct {
	says  string
	check func(c *checker, s *Spec)
}

// rules are checked in this order; the reference page lists their sentences.
var rules = append([]rule{
	{"policy.publish.every is at most lag.max + 1, or a published version would be too old to train from", publishWithinLag},
	{"policy.engine.onSwitch keep mixes the caches of two versions and needs lag.allowMixedCache: true", keepNeedsMixedCache},
	{"policy.engine.endpoints are given exactly when the engine is not embedded", endpointsMatchKind},
	{"policy.resume.cursor is taken over from a run, so policy.init must be run://NAME@VERSION", cursorNeedsRun},
	{"policy.publish.canary has a fraction and steps, or neither", canaryWhole},
	{"names of envs, rewards of an env and eval suites are unique", namesUnique},
	{"environment.image host is the machine's own root and needs runtime bubblewrap or openenv", hostImage},
	{"environment.network.allow has hosts exactly with mode allow", networkAllow},
	{"environment.pool.warm is at most pool.max", poolSize},
	{"driver openenv and runtime openenv go together", openenvTogether},
	{"agent.command is given exactly with driver command", commandDriver},
	{"driver tools needs at least one tool, each once", toolsOnce},
	{"agent.maxTurnTokens is at most agent.maxTokens", turnTokens},
	{"agent.maxObservation is below agent.maxContext, or one tool result would fill the context", observation},
	{"agent.timeout is at most deadlines.episode, or it could never be met", agentTimeout},
	{"fields of a verifier are given exactly with the kind that reads them", verifierFields},
	{"overlong.soft is below overlong.hard", overlongOrder},
	{"shortGroup.min is given exactly with kind keep, from 2 to groupSize", shortGroupMin},
	{"curriculum.passRate goes from a lower to a higher rate", curriculumOrder},
	{"an eval suite names an env of the spec", suiteEnv},
	{"train and eval tasks do not overlap, so they differ in source or split", splitsDiffer},
	{"eval passAt is at most samples", passAt},
	{"stopWhen.evalReward is measured by eval suites, so there is at least one", stopNeedsEval},
	{"storage is file://DIR or s3://BUCKET/PREFIX", storageForm},
	{"deadlines.noProgress exceeds the other deadlines", noProgress},
	{"a budget bounds at least one thing", budgetBounds},
}, algorithmRules...)

// env and suite return paths of fields below one env and one suite.
func env(i int, key string) string   { return fmt.Sprintf("spec.envs[%d].%s", i, key) }
func suite(i int, key string) string { return fmt.Sprintf("spec.eval.suites[%d].%s", i, key) }

func publishWithinLag(c *checker, s *Spec) {
	if s.Policy.Publish.Every > s.Lag.Max+1 {
		c.refuse(strconv.Itoa(s.Policy.Publish.Every), fmt.Sprintf("at most %d", s.Lag.Max+1), "spec.policy.publish.every", "spec.lag.max")
	}
}

func keepNeedsMixedCache(c *checker, s *Spec) {
	if s.Policy.Engine.OnSwitch == "keep" && !s.Lag.AllowMixedCache {
		c.refuse("keep", "abort or wait", "spec.policy.engine.onSwitch", "spec.lag.allowMixedCache")
	}
}

func endpointsMatchKind(c *checker, s *Spec) {
	kind, n := s.Policy.Engine.Kind, len(s.Policy.Engine.Endpoints)
	if kind == "tiny" && n > 0 {
		c.refuse(fmt.Sprintf("%d endpoints with kind tiny", n), "[]", "spec.policy.engine.endpoints", "spec.policy.engine.kind")
	}
	if (kind == "vllm" || kind == "sglang") && n == 0 {
		c.refuse("no endpoint with kind "+kind, "at least one address", "spec.policy.engine.endpoints", "spec.policy.engine.kind")
	}
}

func cursorNeedsRun(c *checker, s *Spec) {
	if s.Policy.Resume.Cursor && scheme(s.Policy.Init) != "run" {
		c.refuse("cursor: true with init: "+clip(s.Policy.Init), "cursor: false", "spec.policy.resume.cursor", "spec.policy.init")
	}
}

func canaryWhole(c *checker, s *Spec) {
	if y := s.Policy.Publish.Canary; (y.Fraction > 0) != (y.Steps > 0) {
		c.refuse(fmt.Sprintf("fraction %v with steps %d", y.Fraction, y.Steps), "both above 0, or both 0", "spec.policy.publish.canary.steps", "spec.policy.publish.canary.fraction")
	}
}

func namesUnique(c *checker, s *Spec) {
	once := func() func(name, at string) {
		seen := map[string]bool{}
		return func(name, at string) {
			if name != "" && seen[name] {
				c.refuse(name+" twice", "another name", at)
			}
			seen[name] = true
		}
	}
	envs, suites := once(), once()
	for i, e := range s.Envs {
		envs(e.Name, env(i, "name"))
		rewards := once()
		for j, r := range e.Rewards {
			rewards(r.Name, env(i, element("rewards", j)+".name"))
		}
	}
	for i, u := range s.Eval.Suites {
		suites(u.Name, suite(i, "name"))
	}
}

func stopNeedsEval(c *checker, s *Spec) {
	if s.StopWhen != nil && len(s.Eval.Suites) == 0 {
		c.refuse("no suite", "a suite in spec.eval.suites", "spec.stopWhen", "spec.eval")
	}
}

func storageForm(c *checker, s *Spec) {
	if k := scheme(s.Storage); (k != "file" && k != "s3") || len(s.Storage) == len(k)+len("://") {
		c.refuse(strconv.Quote(clip(s.Storage)), "file://DIR or s3://BUCKET/PREFIX", "spec.storage")
	}
}

func noProgress(c *checker, s *Spec) {
	longest := max(s.Deadlines.Episode.Duration, s.Deadlines.Batch.Duration, s.Deadlines.Publish.Duration)
	if s.Deadlines.NoProgress.Duration <= longest {
		c.refuse(s.Deadlines.NoProgress.String(), "more than "+longest.String(), "spec.deadlines.noProgress",
			"spec.deadlines.episode", "spec.deadlines.batch", "spec.deadlines.publish")
	}
}

func budgetBounds(c *checker, s *Spec) {
	if s.Budget != nil && *s.Budget == (Budget{}) {
		c.refuse("only zeros", "null, or a bound above 0", "spec.budget")
	}
}

func suiteEnv(c *checker, s *Spec) {
	var names []string
	for _, e := range s.Envs {
		names = append(names, e.Name)
	}
	for i, u := range s.Eval.Suites {
		found := u.Env == ""
		for _, n := range names {
			found = found || n == u.Env
		}
		if !found {
			c.refuse(u.Env, listed(names, "or"), suite(i, "env"), "spec.envs")
		}
	}
}

func splitsDiffer(c *checker, s *Spec) {
	for i, u := range s.Eval.Suites {
		for j, e := range s.Envs {
			if path.Clean(u.Tasks.Source) == path.Clean(e.Tasks.Source) && u.Tasks.Split == e.Tasks.Split {
				c.refuse(fmt.Sprintf("split %s of %s for both env %s and suite %s", e.Tasks.Split, clip(e.Tasks.Source), e.Name, u.Name),
					"another split or source", suite(i, "tasks.split"), suite(i, "tasks.source"), env(j, "tasks"))
			}
		}
	}
}

func passAt(c *checker, s *Spec) {
	for i, u := range s.Eval.Suites {
		for j, k := range u.PassAt {
			if k > u.Samples {
				c.refuse(strconv.Itoa(k), fmt.Sprintf("at most %d", u.Samples), suite(i, element("passAt", j)), suite(i, "samples"))
			}
		}
	}
}
