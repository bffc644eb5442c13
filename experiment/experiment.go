// Package experiment defines what a user asks for: the YAML spec of a run, strictly parsed, with its defaults, rules, schema and reference page.
//
// The struct tree below is the one source of all of them. Tags of a field:
//
//	yaml      the key
//	doc       one sentence with units; the schema's and the reference page's description
//	default   YAML text of the value when the key is absent
//	enum      accepted words, separated by |
//	required  the key must be present
//	min, max, above, below   bounds of a number, or of each number of a list
//	items     least number of list elements
//	match     a named form of a text, see forms
//
// A pointer is a value that may be null. Nothing in a spec is ignored: what is
// not understood, or not in this build, is an Error with its position.
package experiment

//go:generate go test -run TestReference_PageIsCurrent -update .

import (
	"path/filepath"
	"strings"
)

// APIVersion is the version of the format that this package reads.
const APIVersion = "rlfleet/v1"

// Experiment is one spec, resolved: every field has its value.
type Experiment struct {
	APIVersion string   `yaml:"apiVersion" required:"true" enum:"rlfleet/v1" doc:"Version of this format."`
	Kind       string   `yaml:"kind" required:"true" enum:"Experiment" doc:"What the file describes."`
	Metadata   Metadata `yaml:"metadata" doc:"Names the experiment."`
	Spec       Spec     `yaml:"spec" doc:"What to run."`

	file    string            // as given to Parse
	origins map[string]Origin // by path; what is absent is a default
}

// Metadata names an experiment.
type Metadata struct {
	Name    string            `yaml:"name" required:"true" match:"name" doc:"Name of the experiment; runs are called after it."`
	Project string            `yaml:"project" default:"default" match:"name" doc:"Project that the runs belong to."`
	Labels  map[string]string `yaml:"labels" default:"{}" doc:"Free key-value pairs for people and dashboards."`
}

// Spec says what to run.
type Spec struct {
	Seed      int64     `yaml:"seed" default:"7" min:"0" doc:"Seed of all randomness of the run."`
	Steps     int       `yaml:"steps" default:"150" min:"1" doc:"Batches to train; the run succeeds when all of them committed."`
	StopWhen  *StopWhen `yaml:"stopWhen" doc:"Early success, or null for none."`
	Policy    Policy    `yaml:"policy" doc:"The policy to train and how it is served."`
	Envs      []Env     `yaml:"envs" required:"true" items:"1" doc:"Environments to sample from, each with its tasks, agent and rewards."`
	Rollout   Rollout   `yaml:"rollout" doc:"Size of the rollout fleet."`
	Lag       Lag       `yaml:"lag" doc:"How old a trained token may be."`
	Trainer   Trainer   `yaml:"trainer" doc:"How batches become new versions."`
	Eval      Eval      `yaml:"eval" doc:"Measurements on tasks that are not trained on."`
	Storage   string    `yaml:"storage" default:"file://.rlfleet" doc:"Object store of the run: file://DIR (relative to the working directory) or s3://BUCKET/PREFIX."`
	Budget    *Budget   `yaml:"budget" doc:"Most that the run may spend, or null for no bound."`
	Deadlines Deadlines `yaml:"deadlines" doc:"Longest that each part may take."`
}

// StopWhen ends a run early with success.
type StopWhen struct {
	EvalReward float64 `yaml:"evalReward" required:"true" doc:"Stop once the mean reward over all eval suites of one version reaches this value."`
}

// Rollout sizes the fleet of workers.
type Rollout struct {
	Workers     int `yaml:"workers" default:"2" min:"1" doc:"Rollout workers."`
	Concurrency int `yaml:"concurrency" default:"64" min:"1" doc:"Most open episodes of the run, all workers together."`
}

// Lag bounds how many versions behind a trained token may be.
type Lag struct {
	Max             int      `yaml:"max" default:"2" min:"0" doc:"Most versions that a token may lag behind the step that trains it; 0 is exactly on-policy."`
	TTL             Duration `yaml:"ttl" default:"1h" doc:"Longest time that a complete group waits to be trained, as a duration."`
	OnStale         string   `yaml:"onStale" default:"requeue" enum:"requeue|drop" doc:"What happens to the task of a group that grew too old."`
	MaxRequeues     int      `yaml:"maxRequeues" default:"2" min:"0" doc:"Most times that one task is requeued for staleness."`
	AllowMixedCache bool     `yaml:"allowMixedCache" default:"false" doc:"Whether a prefix cache may serve keys and values made by another version."`
}

// Budget bounds what a run spends; 0 is no bound.
type Budget struct {
	GPUHours     float64 `yaml:"gpuHours" default:"0" min:"0" doc:"Most GPU hours; 0 is no bound."`
	SandboxHours float64 `yaml:"sandboxHours" default:"0" min:"0" doc:"Most sandbox hours; 0 is no bound."`
	JudgeCalls   int64   `yaml:"judgeCalls" default:"0" min:"0" doc:"Most calls of judge endpoints; 0 is no bound."`
	Tokens       int64   `yaml:"tokens" default:"0" min:"0" doc:"Most sampled tokens; 0 is no bound."`
}

// Deadlines bound the parts of a run in time.
type Deadlines struct {
	Episode    Duration `yaml:"episode" default:"5m" doc:"Longest life of one episode from lease to seal, as a duration."`
	Batch      Duration `yaml:"batch" default:"10m" doc:"Longest wait of a step for its batch before overdue groups are dropped, as a duration."`
	Publish    Duration `yaml:"publish" default:"2m" doc:"Longest switch of the engines to a new version, as a duration."`
	NoProgress Duration `yaml:"noProgress" default:"15m" doc:"A run in which nothing was judged, trained, published or evaluated for this long fails and names the culprit; exceeds the other deadlines."`
}

// File returns the name that the spec was parsed under.
func (e *Experiment) File() string { return e.file }

// ResolvePath returns p as the process can open it: a relative path of a spec is relative to the spec's file.
func (e *Experiment) ResolvePath(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(filepath.Dir(e.file), p)
}

// StorageDir returns the directory of a file:// storage, relative to the
// working directory; ok is false for other kinds of storage.
func (e *Experiment) StorageDir() (dir string, ok bool) {
	return strings.CutPrefix(e.Spec.Storage, "file://")
}

// Origin returns where the value at path came from.
func (e *Experiment) Origin(path string) Origin {
	if o, ok := e.origins[path]; ok {
		return o
	}
	return Origin{From: fromDefault}
}
