package experiment

import "github.com/rlfleet/rlfleet/outcome"

// Env is one environment with its tasks, sandbox, agent and rewards.
type Env struct {
	Name        string      `yaml:"name" required:"true" match:"name" doc:"Name of the environment, unique in the spec."`
	Weight      float64     `yaml:"weight" default:"1.0" above:"0" doc:"Share of the groups, relative to the other environments."`
	GroupSize   int         `yaml:"groupSize" default:"16" min:"1" doc:"Episodes of one task that are compared with each other."`
	Tasks       Tasks       `yaml:"tasks" doc:"What is to be solved."`
	Environment Environment `yaml:"environment" doc:"The sandbox that the agent acts in."`
	Agent       Agent       `yaml:"agent" doc:"How the policy acts."`
	Rewards     []Reward    `yaml:"rewards" default:"[{name: tests}]" items:"1" doc:"Components of the reward, which is Σ weight·value."`
	Limits      Limits      `yaml:"limits" doc:"What training does with episodes that met a limit."`
	MaxMasked   float64     `yaml:"maxMasked" default:"0.2" min:"0" max:"1" doc:"Alarm above this share of masked episodes of the run; the lowest of all environments counts."`
	ShortGroup  ShortGroup  `yaml:"shortGroup" doc:"What happens to a group that lost members."`
}

// Tasks says what is to be solved and in what order.
type Tasks struct {
	Source      string      `yaml:"source" default:"./tasks" match:"nonempty" doc:"Task directories in Harbor layout, tasks.jsonl, swebench.jsonl, openenv://…, verifiers://… or cmd:…"`
	Split       string      `yaml:"split" default:"train" match:"nonempty" doc:"Split of the source."`
	Order       string      `yaml:"order" default:"shuffle" enum:"shuffle|sequential" doc:"Order of the tasks; the position is part of every full checkpoint."`
	Curriculum  *Curriculum `yaml:"curriculum" doc:"Choice of tasks by pass rate, or null."`
	MaxAttempts int         `yaml:"maxAttempts" default:"3" min:"1" doc:"Failures of class environment or task before a task is quarantined."`
}

// Curriculum prefers tasks by their pass rate.
type Curriculum struct {
	PassRate [2]float64 `yaml:"passRate" default:"[0.1, 0.9]" min:"0" max:"1" doc:"Lowest and highest pass rate of the tasks to prefer."`
	Window   int        `yaml:"window" default:"64" min:"1" doc:"Episodes that a task's pass rate is measured over."`
	Explore  float64    `yaml:"explore" default:"0.1" min:"0" max:"1" doc:"Share of groups drawn from all tasks."`
}

// Environment is the sandbox that the agent acts in.
type Environment struct {
	Runtime  string          `yaml:"runtime" default:"bubblewrap" enum:"bubblewrap|containerd|gvisor|openenv" doc:"What isolates the agent."`
	Image    string          `yaml:"image" default:"host" match:"image" doc:"Root file system: host (bubblewrap), oci://…@sha256:… or a directory with a Dockerfile."`
	Snapshot Snapshot        `yaml:"snapshot" doc:"What the members of a group share."`
	Pool     Pool            `yaml:"pool" doc:"Sandboxes kept ready."`
	Limits   ResourceLimits  `yaml:"limits" doc:"Resources of one sandbox."`
	Network  NetworkSettings `yaml:"network" doc:"What a sandbox can reach."`
	Secrets  []string        `yaml:"secrets" default:"[]" match:"secret" doc:"Names of secrets that a sandbox gets; values are never written in a spec."`
}

// Snapshot says what the members of a group are forked from.
type Snapshot struct {
	PerGroup bool `yaml:"perGroup" default:"true" doc:"Whether all members of a group are forks of one snapshot."`
	Memory   bool `yaml:"memory" default:"false" doc:"Whether a snapshot holds processes and memory besides files."`
}

// Pool sizes the set of sandboxes.
type Pool struct {
	Warm int `yaml:"warm" default:"8" min:"0" doc:"Sandboxes kept ready for the next use."`
	Max  int `yaml:"max" default:"64" min:"1" doc:"Most sandboxes at a time."`
}

// ResourceLimits bound one sandbox.
type ResourceLimits struct {
	CPU       CPU  `yaml:"cpu" default:"1" doc:"Cores, as a number or in thousandths (500m)."`
	Memory    Size `yaml:"memory" default:"256Mi" doc:"Memory, as a size."`
	PIDs      int  `yaml:"pids" default:"64" min:"1" doc:"Processes and threads."`
	Disk      Size `yaml:"disk" default:"256Mi" doc:"Bytes written to the file system, as a size."`
	Inodes    int  `yaml:"inodes" default:"10000" min:"1" doc:"Files and directories made."`
	OpenFiles int  `yaml:"openFiles" default:"256" min:"1" doc:"Open files of one process."`
	Output    Size `yaml:"output" default:"64Ki" doc:"Output kept of one command, as a size."`
}

// NetworkSettings say what a sandbox can reach.
type NetworkSettings struct {
	Mode  string   `yaml:"mode" default:"none" enum:"none|allow" doc:"Nothing, or the names listed in allow."`
	Allow []string `yaml:"allow" default:"[]" match:"nonempty" doc:"Host names that a sandbox may connect to."`
}

// Limits says what training does with episodes that met a limit.
type Limits struct {
	On LimitDispositions `yaml:"on" doc:"Disposition by limit; it applies to pass and fail alike."`
}

// LimitDispositions is the disposition of an episode by the limit that ended it.
type LimitDispositions struct {
	MaxTokens string `yaml:"maxTokens" default:"mask" enum:"train|baseline_only|mask|drop" doc:"Disposition of an episode that spent agent.maxTokens."`
	MaxTurns  string `yaml:"maxTurns" default:"train" enum:"train|baseline_only|mask|drop" doc:"Disposition of an episode that spent agent.maxTurns."`
	Context   string `yaml:"context" default:"mask" enum:"train|baseline_only|mask|drop" doc:"Disposition of an episode whose history outgrew agent.maxContext."`
	Wall      string `yaml:"wall" default:"mask" enum:"train|baseline_only|mask|drop" doc:"Disposition of an episode that spent agent.timeout."`
}

// ByReason returns the dispositions as outcome.Decide takes them.
func (l LimitDispositions) ByReason() map[outcome.EndReason]outcome.Disposition {
	return map[outcome.EndReason]outcome.Disposition{
		outcome.MaxTokens:       outcome.Disposition(l.MaxTokens),
		outcome.MaxTurns:        outcome.Disposition(l.MaxTurns),
		outcome.ContextOverflow: outcome.Disposition(l.Context),
		outcome.WallClock:       outcome.Disposition(l.Wall),
	}
}

// ShortGroup says what happens to a group that lost members; written as its
// kind alone, or as a mapping.
type ShortGroup struct {
	Kind string `yaml:"kind" default:"replace" enum:"replace|keep|drop" doc:"Replace the lost members, keep the group if min are left, or drop it."`
	Min  int    `yaml:"min" default:"0" min:"0" doc:"Fewest members to keep a group with; only with kind keep."`
}

func (ShortGroup) shorthand() string { return "kind" }
