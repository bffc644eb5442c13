package state

import (
	"math/bits"
	"slices"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func dropsKey(run string, env, task int32) string { return memberKey(run, uint64(env), task) }

func (s *State) putDrops(d *raftlog.TaskDrops) { s.drops.Set(dropsKey(d.Run, d.Env, d.Task), d) }

// mayRequeue counts a drop of a training group by task and by length, and
// reports whether its task comes back. The limit is the task's, not the
// group's: a task that is too long for the bound would otherwise be tried
// anew each time that another of its groups is dropped. That long ones are
// dropped more often than others is what the lengths show.
func (s *State) mayRequeue(g *raftlog.Group, wanted bool) bool {
	r, _ := s.runs.Get(g.Run)
	if !s.atLeast(2) {
		return wanted && g.Requeued < r.Config.MaxRequeues
	}
	d := &raftlog.TaskDrops{Run: g.Run, Env: g.Env, Task: g.Task}
	if old, found := s.drops.Get(dropsKey(g.Run, g.Env, g.Task)); found {
		d.Times, d.GivenUp, d.Lengths = old.Times, old.GivenUp, slices.Clone(old.Lengths)
	}
	at := bits.Len64(uint64(max(0, s.longest(g))))
	for len(d.Lengths) <= at {
		d.Lengths = append(d.Lengths, 0)
	}
	d.Lengths[at]++
	again := wanted && d.Times < r.Config.MaxRequeues
	if again {
		d.Times++
	} else {
		d.GivenUp++
	}
	s.putDrops(d)
	return again
}

// longest is the number of tokens that the longest member of a group sampled.
func (s *State) longest(g *raftlog.Group) int64 {
	var n int64
	for _, ep := range s.members(g) {
		n = max(n, ep.Sealed.GetTokens())
	}
	return n
}

// trained lets a task come back again as often as at first.
func (s *State) trained(g *raftlog.Group) {
	if d, found := s.drops.Get(dropsKey(g.Run, g.Env, g.Task)); found && d.Times > 0 {
		s.putDrops(&raftlog.TaskDrops{Run: d.Run, Env: d.Env, Task: d.Task, GivenUp: d.GivenUp, Lengths: d.Lengths})
	}
}

// Drops returns which tasks of a run had groups that ended untrained, by env and task.
func (s *State) Drops(run string) []*raftlog.TaskDrops { return list(&s.drops, run+"/") }
