package experiment

// Trainer is how batches become new versions.
type Trainer struct {
	Backend       string     `yaml:"backend" default:"tiny" enum:"tiny|torch" doc:"What computes gradients."`
	Gang          Gang       `yaml:"gang" doc:"Processes that train together."`
	GroupsPerStep int        `yaml:"groupsPerStep" default:"16" min:"1" doc:"Groups of one batch."`
	Epochs        int        `yaml:"epochs" default:"1" min:"1" doc:"Passes over a batch."`
	Minibatches   int        `yaml:"minibatches" default:"1" min:"1" doc:"Updates of one pass."`
	Algorithm     Algorithm  `yaml:"algorithm" doc:"The objective."`
	Critic        *Critic    `yaml:"critic" doc:"Value model of preset ppo, or null."`
	LR            LR         `yaml:"lr" doc:"Learning rate."`
	Optimizer     Optimizer  `yaml:"optimizer" doc:"How gradients change weights."`
	Checkpoint    Checkpoint `yaml:"checkpoint" doc:"What is kept of the versions."`
}

// Gang is the set of processes that train together.
type Gang struct {
	Members       int    `yaml:"members" default:"1" min:"1" doc:"Processes of the gang."`
	MinMembers    int    `yaml:"minMembers" default:"1" min:"1" doc:"Fewest processes to go on with."`
	GPUsPerMember int    `yaml:"gpusPerMember" default:"0" min:"0" doc:"GPUs of each process."`
	Topology      string `yaml:"topology" default:"none" enum:"none" doc:"Placement that the gang asks for."`
}

// Algorithm is the objective; a preset sets it and each field overrides the preset.
type Algorithm struct {
	Preset       string       `yaml:"preset" default:"grpo" enum:"grpo|dr-grpo|rloo|reinforce++|dapo|gspo|cispo|ppo" doc:"Named set of the fields below; a field that is written overrides it."`
	Advantage    Advantage    `yaml:"advantage" doc:"What a reward is compared with."`
	Loss         Loss         `yaml:"loss" doc:"Policy loss."`
	Ratio        string       `yaml:"ratio" default:"behaviour" enum:"behaviour|decoupled" doc:"Denominator of the ratio: the sampler's log-probabilities, or a recomputed old policy."`
	Correction   Correction   `yaml:"correction" doc:"Correction of lag and engine mismatch."`
	KL           KL           `yaml:"kl" doc:"Divergence from a reference policy."`
	Entropy      float64      `yaml:"entropy" default:"0.005" min:"0" doc:"Coefficient of the entropy bonus, per token."`
	Aggregate    Aggregate    `yaml:"aggregate" doc:"How token losses become one number."`
	ZeroVariance ZeroVariance `yaml:"zeroVariance" doc:"What happens to groups whose rewards are all equal."`
}

// Advantage is what a reward is compared with.
type Advantage struct {
	Kind string `yaml:"kind" default:"grpo" enum:"grpo|rloo|reinforce++|gae" doc:"Mean of the group, mean of the others, whitened return, or generalized advantage estimation."`
	Std  bool   `yaml:"std" default:"true" doc:"Whether to divide by the group's standard deviation; only with kind grpo."`
}

// Relative reports whether the advantage compares the members of a group.
func (a Advantage) Relative() bool { return a.Kind == "grpo" || a.Kind == "rloo" }

// Loss is the policy loss.
type Loss struct {
	Kind string  `yaml:"kind" default:"ppo-clip" enum:"ppo-clip|gspo|cispo" doc:"Form of the loss."`
	Low  float64 `yaml:"low" default:"0.2" min:"0" max:"1" doc:"The ratio is clipped below 1 − low."`
	High float64 `yaml:"high" default:"0.2" min:"0" doc:"The ratio is clipped above 1 + high."`
	Dual float64 `yaml:"dual" default:"3.0" min:"0" doc:"Most loss per unit of negative advantage (dual clip), above 1; 0 is none."`
}

// Correction repairs the difference between sampler and trainer.
type Correction struct {
	Kind string `yaml:"kind" default:"none" enum:"none|tis|icepop|mis|geo" doc:"None, truncated weights (tis), or masks of tokens (icepop) and sequences (mis, geo)."`
}

// KL keeps the policy near a reference.
type KL struct {
	Coef         float64 `yaml:"coef" default:"0" min:"0" doc:"Coefficient; 0 is none."`
	In           string  `yaml:"in" default:"loss" enum:"loss|reward" doc:"Where the term is added."`
	Estimator    string  `yaml:"estimator" default:"k2" enum:"k1|k2|k3" doc:"Per-token estimator of the divergence, on x = log π − log π_ref: x, x²/2 or e⁻ˣ + x − 1."`
	Ref          string  `yaml:"ref" default:"init" match:"nonempty" doc:"The reference policy: init, or a policy as in policy.init."`
	RefreshEvery int     `yaml:"refreshEvery" default:"0" min:"0" doc:"Steps after which the current policy becomes the reference; 0 is never."`
}

// Aggregate is how token losses become one number; written as its kind alone, or as a mapping.
type Aggregate struct {
	Kind   string `yaml:"kind" default:"token-mean" enum:"token-mean|seq-mean-token-mean|seq-mean-token-sum|seq-mean-token-sum-norm" doc:"Order of sums and means."`
	Length int    `yaml:"length" default:"0" min:"0" doc:"Constant length in tokens that sums are divided by, 0 for the largest agent.maxTokens; only with kind seq-mean-token-sum-norm."`
}

func (Aggregate) shorthand() string { return "kind" }

// NormLength returns the length in tokens that seq-mean-token-sum-norm divides by.
func (s Spec) NormLength() int {
	if n := s.Trainer.Algorithm.Aggregate.Length; n > 0 {
		return n
	}
	longest := 0
	for _, e := range s.Envs {
		longest = max(longest, e.Agent.MaxTokens)
	}
	return longest
}

// ZeroVariance is what happens to groups whose rewards are all equal; written as its kind alone, or as a mapping.
type ZeroVariance struct {
	Kind string `yaml:"kind" default:"keep" enum:"keep|filter|refill" doc:"Keep them, take them out of the denominator, or sample others."`
	Max  int    `yaml:"max" default:"0" min:"0" doc:"Most groups sampled in place of one; only with kind refill."`
}

func (ZeroVariance) shorthand() string { return "kind" }

// Critic is the value model of preset ppo.
type Critic struct {
	Init   string  `yaml:"init" required:"true" match:"nonempty" doc:"Initial value model, as in policy.init."`
	LR     float64 `yaml:"lr" required:"true" above:"0" doc:"Learning rate of the value model."`
	Gamma  float64 `yaml:"gamma" default:"1.0" min:"0" max:"1" doc:"Discount per token."`
	Lambda float64 `yaml:"lambda" default:"0.95" min:"0" max:"1" doc:"Decay of generalized advantage estimation."`
}

// LR is the learning rate.
type LR struct {
	Value    float64 `yaml:"value" default:"3e-3" above:"0" doc:"Learning rate after warm-up."`
	Schedule string  `yaml:"schedule" default:"constant" enum:"constant|linear|cosine" doc:"Course of the learning rate over spec.steps."`
	Warmup   int     `yaml:"warmup" default:"0" min:"0" doc:"Steps over which the learning rate grows from 0."`
}

// Optimizer is how gradients change weights.
type Optimizer struct {
	Kind        string     `yaml:"kind" default:"adamw" enum:"adamw" doc:"Update rule."`
	Betas       [2]float64 `yaml:"betas" default:"[0.9, 0.95]" min:"0" below:"1" doc:"Decay of the first and second moment."`
	WeightDecay float64    `yaml:"weightDecay" default:"0.0" min:"0" doc:"Decoupled weight decay, times the learning rate."`
	GradClip    float64    `yaml:"gradClip" default:"1.0" min:"0" doc:"Largest norm of the gradient; 0 is no clipping."`
}

// Checkpoint is what is kept of the versions.
type Checkpoint struct {
	Every    int `yaml:"every" default:"1" min:"1" doc:"Each n-th version is full: it carries optimizer, randomness and cursor."`
	Keep     int `yaml:"keep" default:"3" min:"1" doc:"Newest versions kept; head, live, staged, pinned and rollback targets are kept besides."`
	PinEvery int `yaml:"pinEvery" default:"10" min:"0" doc:"Each n-th version is pinned; 0 pins none."`
}
