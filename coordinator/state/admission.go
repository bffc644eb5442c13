package state

import (
	"fmt"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// room returns how many training groups may be admitted now (invariant I1):
// outstanding groups stay below (S + 1 − (head − live))·B, and no group is
// admitted that no step is left to train.
func (s *State) room(r *raftlog.Run) int {
	if r.State != raftlog.RunState_RUN_STATE_RUNNING || r.Stopping || r.Live < 0 || !s.served(r.Live) || s.catchingUp(r) {
		return 0
	}
	c := r.Config
	b := int64(c.GroupsPerStep)
	pace := (int64(c.LagMax) + 1 - (r.Head - r.Live)) * b
	need := (c.Steps - r.Head) * b
	return int(max(0, min(pace, need)-int64(s.counts[r.Id].outstanding)))
}

// catchingUp reports whether the version that engines serve was superseded by a
// rollback and is not yet published again on the new lineage.
func (s *State) catchingUp(r *raftlog.Run) bool {
	return r.Live >= 0 && s.versionState(r.Id, r.Live) != raftlog.VersionState_VERSION_STATE_LIVE
}

// admit creates training groups until there are want episodes to lease or no more room.
func (s *State) admit(id string, want int) {
	for s.counts[id].queued < want {
		r, found := s.runs.Get(id)
		if !found || s.room(r) == 0 || !s.admitOne(r) {
			return
		}
	}
}

// admitOne draws a task and opens a group for it; false when every task is quarantined.
func (s *State) admitOne(r *raftlog.Run) bool {
	env, task, times, found := s.draw(r)
	if !found {
		s.endRun(r.Id, raftlog.RunState_RUN_STATE_FAILED, "every task is quarantined: see rlctl runs show "+r.Id)
		return false
	}
	r, _ = s.runs.Get(r.Id)
	s.openGroup(r, &raftlog.Group{
		Run: r.Id, Env: env, Task: task, Pin: -1, Size: r.Config.Envs[env].GroupSize,
		LiveAtAdmission: r.Live, Bound: r.Live, Requeued: times,
	})
	return true
}

// openGroup numbers a group, queues its members and says so.
func (s *State) openGroup(r *raftlog.Run, g *raftlog.Group) {
	g.Id, g.State, g.AdmittedNs = r.NextGroup, raftlog.GroupState_GROUP_STATE_OPEN, s.clock.NowNs
	g.Step = -1
	g.Seed = int64(mix(uint64(r.Config.Seed), g.Id))
	s.update(r.Id, func(r *raftlog.Run) {
		r.NextGroup++
		if g.Suite == "" {
			r.Counters.GroupsAdmitted++
		}
	})
	s.putGroup(g)
	for i := int32(0); i < g.Size; i++ {
		s.putEpisode(&raftlog.Episode{
			Run: g.Run, Group: g.Id, Index: i, State: raftlog.EpisodeState_EPISODE_STATE_QUEUED, Attempt: 1,
			Seed: int64(mix(uint64(g.Seed), uint64(i)+1)), QueuedNs: s.clock.NowNs, Floor: g.LiveAtAdmission,
		})
	}
	s.emit(g.Run, &raftlog.Event{Event: &raftlog.Event_GroupAdmitted{GroupAdmitted: &raftlog.GroupAdmitted{
		Group: g.Id, Env: g.Env, Task: s.taskRef(r, g), Suite: g.Suite, Pin: g.Pin, Size: g.Size, Live: g.LiveAtAdmission,
	}}})
}

// taskRef returns the task of a group; an evaluation suite has tasks of its own.
func (s *State) taskRef(r *raftlog.Run, g *raftlog.Group) *raftlog.TaskRef {
	if g.Suite == "" {
		return r.Config.Envs[g.Env].Tasks[g.Task]
	}
	for _, e := range r.Config.Evals {
		if e.Suite == g.Suite {
			return e.Tasks[g.Task]
		}
	}
	return nil
}

// draw picks the next task: requeued ones first, then the env furthest behind its weight.
func (s *State) draw(r *raftlog.Run) (env, task, times int32, found bool) {
	for i, q := range r.Requeues {
		if quarantined(r, q.Env, q.Task) {
			continue
		}
		s.update(r.Id, func(r *raftlog.Run) {
			r.Requeues = append(r.Requeues[:i], r.Requeues[i+1:]...)
			r.Cursors[q.Env].Admitted++
		})
		return q.Env, q.Task, q.Times, true
	}
	for _, e := range envOrder(r) {
		cfg := r.Config.Envs[e]
		drawn := r.Cursors[e].Drawn
		for range cfg.Tasks {
			t := s.taskAt(r, e, drawn)
			drawn++
			if quarantined(r, e, t) {
				continue
			}
			s.update(r.Id, func(r *raftlog.Run) {
				r.Cursors[e].Drawn = drawn
				r.Cursors[e].Admitted++
			})
			return e, t, 0, true
		}
	}
	return 0, 0, 0, false
}

// envOrder returns the envs, the one furthest behind its share of admitted groups first.
func envOrder(r *raftlog.Run) []int32 {
	order := make([]int32, len(r.Config.Envs))
	for i := range order {
		order[i] = int32(i)
	}
	share := func(e int32) float64 { return float64(r.Cursors[e].Admitted+1) / r.Config.Envs[e].Weight }
	for i := 1; i < len(order); i++ { // few envs: insertion sort, stable
		for j := i; j > 0 && share(order[j]) < share(order[j-1]); j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return order
}

// shuffle is the order of an env's tasks in one epoch.
type shuffle struct {
	epoch int64
	order []int32
}

func shuffleKey(run string, env int32) string { return fmt.Sprintf("%s/%d", run, env) }

// taskAt returns the n-th task drawn from an env: epoch after epoch, each in an order of its own when shuffled.
func (s *State) taskAt(r *raftlog.Run, env int32, n int64) int32 {
	e := r.Config.Envs[env]
	size := int64(len(e.Tasks))
	if !e.Shuffle {
		return int32(n % size)
	}
	k := shuffleKey(r.Id, env)
	x, found := s.shuffles[k]
	if !found || x.epoch != n/size {
		x = shuffle{n / size, shuffled(mix(mix(uint64(r.Config.Seed), uint64(env)+0x7a5), uint64(n/size)), size)}
		s.shuffles[k] = x
	}
	return x.order[n%size]
}

// shuffled is a permutation by Fisher and Yates. It is part of the log's meaning and must not change.
func shuffled(seed uint64, size int64) []int32 {
	perm := make([]int32, size)
	for i := range perm {
		perm[i] = int32(i)
	}
	for i := size - 1; i > 0; i-- {
		seed = mix(seed, uint64(i))
		j := int64(seed % uint64(i+1))
		perm[i], perm[j] = perm[j], perm[i]
	}
	return perm
}

func (s *State) forgetShuffles(r *raftlog.Run) {
	for i := range r.Config.Envs {
		delete(s.shuffles, shuffleKey(r.Id, int32(i)))
	}
}

func quarantined(r *raftlog.Run, env, task int32) bool {
	for _, f := range r.Failures {
		if f.Env == env && f.Task == task {
			return f.Quarantined
		}
	}
	return false
}

// mix derives one seed from two numbers: the finaliser of SplitMix64 (Steele,
// Lea and Flood, 2014) over their combination. It is part of the log's meaning
// and must not change.
func mix(a, b uint64) uint64 {
	z := a + 0x9e3779b97f4a7c15*(b+1)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}
