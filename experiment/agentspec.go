package experiment

// Agent is how the policy acts in an environment.
type Agent struct {
	Driver         string   `yaml:"driver" default:"tools" enum:"tools|openenv|command" doc:"Tool loop, reset/step loop, or an unmodified agent command."`
	Tools          []string `yaml:"tools" default:"[bash]" match:"nonempty" doc:"Tools that the agent may call, by name or mcp://…"`
	Command        []string `yaml:"command" default:"[]" match:"nonempty" doc:"Command line of an unmodified agent, pointed at the gateway; only with driver command."`
	Branches       string   `yaml:"branches" default:"train" enum:"train|context" doc:"Whether sub-agent and rewritten branches are trained on or only read."`
	MaxTurns       int      `yaml:"maxTurns" default:"6" min:"1" doc:"Most turns of an episode."`
	MaxTokens      int      `yaml:"maxTokens" default:"256" min:"1" doc:"Most sampled tokens of an episode."`
	MaxTurnTokens  int      `yaml:"maxTurnTokens" default:"0" min:"0" doc:"Most sampled tokens of one turn; 0 is maxTokens."`
	MaxContext     int      `yaml:"maxContext" default:"512" min:"2" doc:"Most tokens of the history, prompt and observations included."`
	MaxObservation int      `yaml:"maxObservation" default:"128" min:"1" doc:"Tokens kept of one tool result."`
	Timeout        Duration `yaml:"timeout" default:"60s" doc:"Sampling and tool time of an episode, as a duration; the platform's own waits do not count."`
	Sampling       Sampling `yaml:"sampling" doc:"How tokens are drawn."`
}

// TurnTokens returns the most sampled tokens of one turn.
func (a Agent) TurnTokens() int {
	if a.MaxTurnTokens > 0 {
		return a.MaxTurnTokens
	}
	return a.MaxTokens
}

// Sampling is how tokens are drawn from the policy.
type Sampling struct {
	Temperature       float64 `yaml:"temperature" default:"1.0" min:"0" doc:"Divisor of the logits; 0 is greedy."`
	TopP              float64 `yaml:"topP" default:"1.0" above:"0" max:"1" doc:"Smallest set of tokens with this probability is kept; 1 keeps all."`
	TopK              int     `yaml:"topK" default:"0" min:"0" doc:"Most probable tokens that are kept; 0 keeps all."`
	MinP              float64 `yaml:"minP" default:"0" min:"0" below:"1" doc:"Tokens below this share of the highest probability are left out; 0 keeps all."`
	PresencePenalty   float64 `yaml:"presencePenalty" default:"0" doc:"Subtracted from the logit of tokens seen before; 0 is none."`
	FrequencyPenalty  float64 `yaml:"frequencyPenalty" default:"0" doc:"Subtracted from the logit of a token for each time it was seen; 0 is none."`
	RepetitionPenalty float64 `yaml:"repetitionPenalty" default:"1" above:"0" doc:"Divisor of the logit of tokens seen before; 1 is none."`
}

// Whole reports whether tokens are drawn from the whole distribution: no filter and no penalty.
func (s Sampling) Whole() bool {
	return s.TopP == 1 && s.TopK == 0 && s.MinP == 0 && s.PresencePenalty == 0 && s.FrequencyPenalty == 0 && s.RepetitionPenalty == 1
}

// Reward is one component of an episode's reward.
type Reward struct {
	Name     string   `yaml:"name" required:"true" match:"name" doc:"Name of the component, unique in the environment."`
	Weight   float64  `yaml:"weight" default:"1.0" above:"0" doc:"Factor of the component's value in the sum."`
	Required bool     `yaml:"required" default:"true" doc:"Whether a null value makes the whole reward null; an optional component is left out for the whole group."`
	Verifier Verifier `yaml:"verifier" doc:"How the value is reached."`
}

// Verifier is how the value of a reward component is reached.
type Verifier struct {
	Kind     string   `yaml:"kind" default:"script" enum:"script|reward-file|exact|command|python|judge|shaping" doc:"What judges the episode."`
	Mode     string   `yaml:"mode" default:"separate" enum:"separate|shared" doc:"In a sandbox of its own, or in the agent's."`
	Timeout  Duration `yaml:"timeout" default:"20s" doc:"Longest that one judgement may take, as a duration; over it the verdict is indeterminate."`
	Retries  int      `yaml:"retries" default:"2" min:"0" doc:"Further tries after an indeterminate verdict."`
	Rerun    float64  `yaml:"rerun" default:"0" min:"0" max:"1" doc:"Share of verdicts that are reached a second time, to measure agreement."`
	Command  []string `yaml:"command" default:"[]" match:"nonempty" doc:"Command line of the judge; only with kind command."`
	Path     string   `yaml:"path" default:"" doc:"Python file, relative to the spec's file; only with kind python."`
	Function string   `yaml:"function" default:"" doc:"Function of the Python file; only with kind python."`
	Scope    string   `yaml:"scope" default:"episode" enum:"episode|group" doc:"What the Python function sees; group only with kind python."`
	Endpoint string   `yaml:"endpoint" default:"" doc:"Address of the judge model; only with kind judge."`
	Overlong *Penalty `yaml:"overlong" doc:"Penalty for long episodes; only with kind shaping."`
}

// Penalty grows from 0 at soft to its whole at hard.
type Penalty struct {
	Soft    int     `yaml:"soft" required:"true" min:"1" doc:"Sampled tokens from which the penalty grows."`
	Hard    int     `yaml:"hard" required:"true" min:"1" doc:"Sampled tokens at which the penalty is whole."`
	Penalty float64 `yaml:"penalty" default:"1.0" above:"0" doc:"The whole penalty, in units of reward."`
}
