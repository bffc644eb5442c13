package progress

import "github.com/rlfleet/rlfleet/trajectory"

// Audit counts what must be 0, from the mirrored log of a run that has ended:
// lost are sealed episodes that neither settled nor were given up with a reason,
// or whose group was neither consumed, evaluated nor dropped; twice are groups
// in the batches of more than one step of the surviving lineage. Of a run that
// goes on, what is still open is not lost.
func Audit(r *trajectory.Run) (lost, twice int64) {
	seen := map[uint64]bool{}
	for _, s := range r.Steps {
		for _, g := range s.Groups {
			if seen[g] {
				twice++
			}
			seen[g] = true
		}
	}
	for _, g := range r.Groups {
		if g.End == nil && !r.Ended() {
			continue
		}
		for _, a := range g.Attempts {
			if a.Sealed == nil || a.Lost != nil && a.Lost.Reason != "" {
				continue
			}
			dropped := g.End != nil && g.End.Outcome == "dropped" && g.End.Reason != ""
			if !dropped && (a.Settled == nil || g.End == nil) {
				lost++
			}
		}
	}
	return lost, twice
}
