package experiment

// Policy is the policy to train and how it is served.
type Policy struct {
	Init    string  `yaml:"init" default:"./policy" match:"nonempty" doc:"Version 0: a directory in Hugging Face layout, s3://…, run://NAME@VERSION, or tiny://llama?layers=2&dim=32."`
	Resume  Resume  `yaml:"resume" doc:"What else is taken over when init is a run."`
	LoRA    *LoRA   `yaml:"lora" doc:"Low-rank adapters to train in place of all weights, or null."`
	Engine  Engine  `yaml:"engine" doc:"What samples from the policy."`
	Publish Publish `yaml:"publish" doc:"How a new version reaches the engines."`
}

// Resume says what is taken over from a run.
type Resume struct {
	Optimizer bool `yaml:"optimizer" default:"true" doc:"Take over the optimizer's state when init is a run."`
	Cursor    bool `yaml:"cursor" default:"false" doc:"Take over the task cursor when init is a run."`
}

// LoRA configures low-rank adapters.
type LoRA struct {
	Rank    int     `yaml:"rank" default:"16" min:"1" doc:"Rank of each adapter."`
	Alpha   float64 `yaml:"alpha" default:"32" above:"0" doc:"Scale of the adapters; they are multiplied by alpha / rank."`
	Targets string  `yaml:"targets" default:"all-linear" match:"nonempty" doc:"Layers that get an adapter."`
}

// Engine is what samples from the policy.
type Engine struct {
	Kind      string   `yaml:"kind" default:"tiny" enum:"tiny|hf|vllm|sglang" doc:"Inference engine."`
	Endpoints []string `yaml:"endpoints" default:"[]" doc:"Addresses of running engines; empty for an embedded one."`
	OnSwitch  string   `yaml:"onSwitch" default:"abort" enum:"abort|wait|keep" doc:"Running continuations at a version switch: abort and continue the same tokens on the new version, wait for them, or keep their cache."`
}

// Publish says how a new version reaches the engines.
type Publish struct {
	Every    int    `yaml:"every" default:"1" min:"1" doc:"Publish each n-th version; at most lag.max + 1."`
	OnReject string `yaml:"onReject" default:"pause" enum:"pause|rollback" doc:"What a run does when a version fails its checks."`
	Probe    Probe  `yaml:"probe" doc:"Check of the served weights against the trained ones."`
	Canary   Canary `yaml:"canary" doc:"Trial of a new version on a part of the engines."`
}

// Probe checks served weights on fixed prompts.
type Probe struct {
	Prompts     int     `yaml:"prompts" default:"8" min:"1" doc:"Prompts that are scored after a switch."`
	MaxMeanDiff float64 `yaml:"maxMeanDiff" default:"3.0" above:"0" doc:"Most mean |Δlogprob| accepted, as a multiple of the calibration at version 0."`
}

// Canary tries a new version on a part of the engines.
type Canary struct {
	Fraction      float64 `yaml:"fraction" default:"0.0" min:"0" max:"1" doc:"Share of engines that serve the new version first; 0 is no canary."`
	Steps         int     `yaml:"steps" default:"0" min:"0" doc:"Training steps that a canary lasts."`
	MaxRewardDrop float64 `yaml:"maxRewardDrop" default:"0.1" min:"0" doc:"Most drop of the mean reward that a canary is accepted with."`
}
