package state

import (
	"fmt"
	"strings"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Alarms that a run goes on under.
const (
	maskedAlarm = "masked"
	storeAlarm  = "store-late"
)

// Alarms names what is missing for the run to move, and what is not as it should be.
func (s *State) Alarms(run string) []*raftlog.Alarm {
	r, found := s.runs.Get(run)
	if !found || terminal(r.State) {
		return nil
	}
	var out []*raftlog.Alarm
	alarm := func(name, text string) {
		out = append(out, &raftlog.Alarm{Run: run, Name: name, Text: text, SinceNs: r.ProgressNs})
	}
	need := []struct{ role, name, text string }{
		{RoleEngine, "no-engine", "an engine: none is ready"},
		{RoleHost, "no-host", "an environment host: none is ready"},
		{RoleRollout, "no-rollout", "a rollout worker: none is ready"},
		{RoleVerifier, "no-verifier", "a verifier: none is ready"},
		{RoleTrainer, "no-trainer", "a trainer: none is ready"},
		{RolePublisher, "no-publisher", "a publisher: none is ready"},
	}
	for _, n := range need {
		if s.readyNodes(n.role) == 0 {
			alarm(n.name, n.text)
		}
	}
	if r.Live >= 0 && s.readyNodes(RoleEngine) > 0 && !s.served(r.Live) {
		alarm("no-live-engine", fmt.Sprintf("an engine that serves version %d: none does", r.Live))
	}
	if s.atLeast(2) { // a run that fails says what it waited for: the words are part of the log's meaning
		s.overdue(r, func(name, text string, since int64) {
			out = append(out, &raftlog.Alarm{Run: run, Name: name, Text: text, SinceNs: since})
		})
	}
	if c := r.Counters; c.EpisodesSettled > 0 && float64(c.Masked) > maxMasked(r.Config)*float64(c.EpisodesSettled) {
		alarm(maskedAlarm, fmt.Sprintf("fewer masked episodes: %d of %d hit a limit", c.Masked, c.EpisodesSettled))
	}
	return out
}

func (s *State) readyNodes(role string) int {
	n := 0
	s.nodes.Ascend(role+"/", func(_ string, x *raftlog.Node) bool {
		if x.Role != role {
			return false
		}
		if x.State == raftlog.NodeState_NODE_STATE_READY {
			n++
		}
		return true
	})
	return n
}

// maxMasked is the lowest share of masked episodes at which an env of the run asks for an alarm.
func maxMasked(c *raftlog.RunConfig) float64 {
	lowest := 1.0
	for _, e := range c.Envs {
		if e.MaxMasked > 0 {
			lowest = min(lowest, e.MaxMasked)
		}
	}
	return lowest
}

// mirrorLate is how long events may wait for the store without an alarm.
const mirrorLate = 60 * second

// overdue names the records that wait past their deadline, and those that
// should have an owner and have none. What a lease bounds is not here: Tick
// ends it. The texts hold no times, so that an alarm that stands stays the same.
func (s *State) overdue(r *raftlog.Run, alarm func(name, text string, since int64)) {
	now := s.clock.NowNs
	if e := s.oldestEvent(r.Id); e != nil && e.AtNs+mirrorLate <= now {
		alarm(storeAlarm, "the object store: events are not written to it", e.AtNs)
	}
	if st, found := s.steps.Get(numberKey(r.Id, r.Head)); found && st.State == raftlog.StepState_STEP_STATE_ASSIGNED {
		if s.Gang(r.Id).GetLease() == nil && st.AssignedNs+LeaseTTL <= now && s.readyNodes(RoleTrainer) > 0 {
			alarm("batch-unowned", fmt.Sprintf("a trainer to join: the batch of step %d is assigned, and nobody has it", st.Step), st.AssignedNs)
		}
	}
	if r.State != raftlog.RunState_RUN_STATE_RUNNING {
		return
	}
	if v, is := s.due(r); is && r.Config.PublishDeadlineNs > 0 {
		ver, _ := s.versions.Get(numberKey(r.Id, v))
		live, _ := s.versions.Get(numberKey(r.Id, r.Live))
		if since := max(ver.GetCommittedNs(), live.GetLiveNs()); since+r.Config.PublishDeadlineNs <= now && s.readyNodes(RoleEngine) > 0 {
			alarm("publish-late", fmt.Sprintf("version %d to be published%s", v, s.publisher(r.Id)), since)
		}
	}
	d := r.Config.EpisodeDeadlineNs
	if d <= 0 {
		return
	}
	if ep := s.oldestQueued(r.Id); ep != nil && ep.QueuedNs+d <= now && int32(s.counts[r.Id].leased) < r.Config.Concurrency {
		what := "a rollout worker to take it"
		if s.freeHost(false) == nil {
			what = "a free sandbox"
		}
		alarm("episode-late", fmt.Sprintf("episode %d/%d to be leased; it needs %s", ep.Group, ep.Index, what), ep.QueuedNs)
	}
	if j := s.oldestJob(r.Id); j != nil && j.QueuedNs+d <= now {
		what := "a verifier to take it"
		if s.freeHost(true) == nil {
			what = "a free verifier sandbox"
		}
		alarm("verdict-late", fmt.Sprintf("episode %d/%d to be judged; it needs %s", j.Group, j.Index, what), j.QueuedNs)
	}
}

func (s *State) publisher(run string) string {
	if p, found := s.publish.Get(run); found && p.Lease != nil {
		return ", which " + p.Lease.Holder + " has begun"
	}
	return ", which nobody has begun"
}

// oldestEvent returns the first event of a run that is not mirrored, or nil:
// also when a thousand of other runs stand before it, for then those have the alarm.
func (s *State) oldestEvent(run string) *raftlog.Event {
	if s.counts[run].events == 0 {
		return nil
	}
	var oldest *raftlog.Event
	looked := 0
	s.outbox.Scan(func(_ string, e *raftlog.Event) bool {
		if e.Run == run {
			oldest = e
		}
		looked++
		return oldest == nil && looked < 1000
	})
	return oldest
}

func (s *State) oldestQueued(run string) *raftlog.Episode {
	var oldest *raftlog.Episode
	prefix := run + "/"
	s.queue.Ascend(prefix, func(k string, _ struct{}) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		if ep, _ := s.episodes.Get(run + k[len(prefix)+2:]); oldest == nil || ep.QueuedNs < oldest.QueuedNs {
			oldest = ep
		}
		return true
	})
	return oldest
}

func (s *State) oldestJob(run string) *raftlog.VerifyJob {
	var oldest *raftlog.VerifyJob
	if s.counts[run].jobs == 0 {
		return nil
	}
	s.ready.Scan(func(k string, _ struct{}) bool { // the longest waiting first
		if j, _ := s.jobs.Get(k[len(seqKey(0))+1:]); j.Run == run {
			oldest = j
		}
		return oldest == nil
	})
	return oldest
}
