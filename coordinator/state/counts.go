package state

import raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"

// Leases counts what of a run is under lease, and what waits for one.
type Leases struct {
	Queued, Acting  int // episodes
	ToJudge, Judged int // verify jobs
	Gang, Publish   bool
}

// Leases counts a run's leases without looking at each.
func (s *State) Leases(run string) Leases {
	c := s.counts[run]
	g, _ := s.gangs.Get(run)
	p, _ := s.publish.Get(run)
	return Leases{Queued: c.queued, Acting: c.leased, ToJudge: c.jobs, Judged: c.judged, Gang: g.GetLease() != nil, Publish: p.GetLease() != nil}
}

// Lags returns the tokens that a step trained by their lag: the step less the
// version they were sampled with. Tokens of an episode that met several versions
// count with the oldest. Groups that have left the state are missing, so that it
// is to be asked right after the step was committed.
func (s *State) Lags(st *raftlog.Step) map[int64]int64 {
	out := map[int64]int64{}
	for _, id := range st.Groups {
		g, found := s.groups.Get(groupKey(st.Run, id))
		if !found {
			continue
		}
		for _, ep := range s.members(g) {
			if v := ep.Sealed.GetMinVersion(); ep.Sealed != nil && v >= 0 && ep.Disposition == "train" {
				out[st.Step-v] += ep.Sealed.Tokens
			}
		}
	}
	return out
}
