// Package progress shows a run while it goes on: a live panel or plain lines, its last line, and the log of its steps.
package progress

import (
	"math"
	"time"
)

// Status is what a View shows. The zero value of a field is shown as unknown or left out.
type Status struct {
	Run   string
	State string // running, paused, succeeded, failed, cancelled

	Step, Steps int64 // steps committed, steps wanted
	Head, Live  int64 // newest version, and the lowest that a ready engine serves; −1 before the first is published

	Rewards []float64 // mean training reward of each committed step, oldest first; NaN where no member had one
	Evals   []Eval    // by version, then suite

	Pass, Fail, Indeterminate int64 // verdicts of settled episodes

	LagMean  float64 // versions, over the tokens of the last step
	LagMax   int64   // most of any token of the last step
	LagRun   int64   // most of any token trained so far
	LagBound int64   // lag.max of the experiment

	EpisodesPerSecond float64
	TokensPerSecond   float64 // sampled
	Sandboxes         int     // leased
	SandboxesMax      int     // capacity; 0 is unknown

	WaitsFor string        // what the run waits for; empty when nothing
	Since    time.Duration // since when it does

	Elapsed time.Duration
	ETA     time.Duration // 0 is unknown
	Lost    int64         // attempts repeated after a lost lease or a failure that was not the model's
}

// Eval is one evaluation of one version.
type Eval struct {
	Suite    string
	Version  int64
	Reward   float64 // mean over the scored episodes; NaN while there is none
	Episodes int64   // scored
	Planned  int64
	Done     bool
}

// reward returns the mean training reward of the last step; NaN when there is none.
func (s *Status) reward() float64 {
	if len(s.Rewards) == 0 {
		return math.NaN()
	}
	return s.Rewards[len(s.Rewards)-1]
}

// suites returns the suites in order of first appearance, each with its finished evaluations.
func (s *Status) suites() (names []string, done map[string][]Eval) {
	done = map[string][]Eval{}
	for _, e := range s.Evals {
		if !e.Done {
			continue
		}
		if done[e.Suite] == nil {
			names = append(names, e.Suite)
		}
		done[e.Suite] = append(done[e.Suite], e)
	}
	return names, done
}
