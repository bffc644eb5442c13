package progress

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Result is what the last line of a run says.
type Result struct {
	State  string // succeeded, failed, cancelled, paused, or running when only this program stopped
	Reason string // of any state but succeeded

	Suite         string  // evaluation suite; empty when nothing was evaluated
	Before, After float64 // its mean reward at version 0 and at the last evaluated version; NaN when not measured

	Steps    int64
	Took     time.Duration
	Episodes int64 // settled
	Lost     int64 // sealed episodes that are neither consumed nor dropped with a reason
	Twice    int64 // groups consumed by more than one step of the surviving lineage
	Stale    int64 // groups dropped because they were too old
	MaxLag   int64 // versions, of any token trained

	Best string // path of the best policy; empty when there is none
}

// Done renders the last line of a run. It is one line, the fields come in this
// order and two spaces apart, and only those of Reason and Best may be missing:
//
//	done: STATE[ (REASON)]  reward B -> A on SUITE  N steps in T  N episodes  lost N  trained twice N  stale N  max lag N[  best policy PATH]
//
// Without an evaluation the second field is "reward not measured"; a reward that
// is missing on one side is "-".
func Done(r Result) string {
	fields := []string{"done: " + r.State}
	if r.Reason != "" && r.State != "succeeded" {
		fields[0] += " (" + oneLine(r.Reason) + ")"
	}
	if r.Suite == "" || math.IsNaN(r.Before) && math.IsNaN(r.After) {
		fields = append(fields, "reward not measured")
	} else {
		fields = append(fields, fmt.Sprintf("reward %s -> %s on %s", reward2(r.Before), reward2(r.After), r.Suite))
	}
	fields = append(fields,
		fmt.Sprintf("%d steps in %s", r.Steps, took(r.Took)),
		grouped(r.Episodes)+" episodes",
		fmt.Sprintf("lost %d", r.Lost),
		fmt.Sprintf("trained twice %d", r.Twice),
		fmt.Sprintf("stale %d", r.Stale),
		fmt.Sprintf("max lag %d", r.MaxLag))
	if r.Best != "" {
		fields = append(fields, "best policy "+r.Best)
	}
	return strings.Join(fields, "  ")
}

// oneLine keeps a text from breaking the line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
