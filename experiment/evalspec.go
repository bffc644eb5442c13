package experiment

// Eval is what is measured on tasks that are not trained on.
type Eval struct {
	Every  int     `yaml:"every" default:"10" min:"1" doc:"Measure each n-th version, besides version 0 and the last."`
	Suites []Suite `yaml:"suites" default:"[]" doc:"Sets of tasks to measure on."`
}

// Suite is one set of tasks to measure on.
type Suite struct {
	Name     string     `yaml:"name" required:"true" match:"name" doc:"Name of the suite, unique in the spec."`
	Env      string     `yaml:"env" required:"true" match:"name" doc:"Environment whose sandbox, agent and rewards are used."`
	Tasks    SuiteTasks `yaml:"tasks" doc:"What is to be solved; shares no task with training."`
	Samples  int        `yaml:"samples" default:"1" min:"1" doc:"Episodes of each task."`
	PassAt   []int      `yaml:"passAt" default:"[1]" min:"1" doc:"Values of k for pass@k, at most samples."`
	Episodes int        `yaml:"episodes" default:"128" min:"1" doc:"Most episodes of one measurement."`
	Sampling Sampling   `yaml:"sampling" default:"{temperature: 0.0}" doc:"How tokens are drawn."`
}

// SuiteTasks says what a suite solves.
type SuiteTasks struct {
	Source string `yaml:"source" default:"./tasks" match:"nonempty" doc:"Source of the tasks, as in envs[].tasks.source."`
	Split  string `yaml:"split" default:"eval" match:"nonempty" doc:"Split of the source."`
}
