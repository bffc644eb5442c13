package state

import (
	"fmt"
	"strings"
	"time"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Work says in numbers what a run has for its workers now.
type Work struct {
	Episodes int    // that could be leased: queued, and those admission has room for
	Jobs     int    // verify jobs queued
	Batch    bool   // a batch is assigned or can be
	Publish  bool   // a version waits to be published
	State    string // of the run
}

// Work summarises a run for workers that wait for something to do.
func (s *State) Work(run string) Work {
	r, found := s.runs.Get(run)
	if !found {
		return Work{}
	}
	w := Work{State: StateName(r.State)}
	if terminal(r.State) {
		return w
	}
	c := s.counts[run]
	w.Jobs = min(c.jobs, s.sandboxes(true))
	if r.State == raftlog.RunState_RUN_STATE_RUNNING && r.Live >= 0 && s.served(r.Live) {
		w.Episodes = c.queued
		if free := int(r.Config.Concurrency) - c.leased; free > 0 {
			w.Episodes += s.room(r) * int(r.Config.Envs[0].GroupSize) // of any env: a hint, but never 0 for some
			w.Episodes = min(w.Episodes, free, s.sandboxes(false))
		} else {
			w.Episodes = 0
		}
	}
	v, due := s.due(r)
	if due {
		p, busy := s.publish.Get(run)
		w.Publish = s.versionState(run, v) != raftlog.VersionState_VERSION_STATE_REJECTED && r.State == raftlog.RunState_RUN_STATE_RUNNING &&
			(!busy || p.Lease == nil) && s.served(-1)
	}
	if _, assigned := s.steps.Get(numberKey(run, r.Head)); assigned {
		w.Batch = true
	} else if r.Head < r.Config.Steps && !r.Stopping && r.State == raftlog.RunState_RUN_STATE_RUNNING {
		_, _, wait := s.pick(r)
		w.Batch = wait == ""
	}
	return w
}

func seconds(ns int64) string { return time.Duration(ns).Round(time.Second).String() }

// Why says in one paragraph what a run waits for and since when.
func (s *State) Why(run string) string {
	r, found := s.runs.Get(run)
	if !found {
		return fmt.Sprintf("There is no run %q.", run)
	}
	now := s.clock.NowNs
	since := seconds(now - r.ProgressNs)
	switch {
	case r.State == raftlog.RunState_RUN_STATE_CANCELLED:
		return fmt.Sprintf("Run %s was cancelled%s.", run, because(r.Reason))
	case terminal(r.State):
		return fmt.Sprintf("Run %s has %s%s.", run, StateName(r.State), because(r.Reason))
	case r.State == raftlog.RunState_RUN_STATE_PAUSED:
		return fmt.Sprintf("Run %s is paused for %s%s. Continue it with: rlctl runs resume %s", run, seconds(now-r.PausedNs), because(r.Reason), run)
	}
	var parts []string
	for _, a := range s.Alarms(run) {
		if a.Name != maskedAlarm && a.Name != storeAlarm { // nothing waits for that
			parts = append(parts, a.Text)
		}
	}
	if len(parts) == 0 {
		parts = append(parts, s.waits(r))
	}
	return fmt.Sprintf("Run %s is at step %d of %d (live version %d). It waits for %s. Last progress %s ago: %s.",
		run, r.Head, r.Config.Steps, r.Live, strings.Join(parts, "; "), since, r.Progress)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// waits names what a healthy run waits for.
func (s *State) waits(r *raftlog.Run) string {
	c := s.counts[r.Id]
	if st, assigned := s.steps.Get(numberKey(r.Id, r.Head)); assigned {
		return fmt.Sprintf("the trainer to commit step %d, assigned %s ago", st.Step, seconds(s.clock.NowNs-st.AssignedNs))
	}
	if v, is := s.due(r); is && (r.Live < 0 || c == counts{outstanding: c.outstanding, events: c.events}) {
		by := ""
		if p, found := s.publish.Get(r.Id); found && p.Lease != nil {
			by = fmt.Sprintf(", which %s began %s ago", p.Lease.Holder, seconds(s.clock.NowNs-p.Lease.GrantedNs))
		}
		return fmt.Sprintf("version %d to be published%s", v, by)
	}
	if r.Head < r.Config.Steps && !r.Stopping {
		if _, _, wait := s.pick(r); wait == "" {
			return fmt.Sprintf("the trainer to take the batch of step %d", r.Head)
		}
	}
	var slow *raftlog.Episode
	for _, k := range under(&s.leased, r.Id+"/") {
		if ep, _ := s.episodes.Get(k); slow == nil || ep.Lease.GrantedNs < slow.Lease.GrantedNs {
			slow = ep
		}
	}
	what := fmt.Sprintf("episodes (%d queued, %d acting, %d to judge, %d being judged)", c.queued, c.leased, c.jobs, c.judged)
	if slow != nil {
		what += fmt.Sprintf("; the oldest is %d/%d, leased %s ago, waiting for %s", slow.Group, slow.Index, seconds(s.clock.NowNs-slow.Lease.GrantedNs), slow.WaitsFor)
		if slow.LastFailure != "" {
			what += fmt.Sprintf(" (attempt %d; the one before ended with %s)", slow.Attempt, clip(slow.LastFailure))
		}
	}
	return what
}

// clip makes one line of a message and keeps its beginning.
func clip(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// Run returns a run, or nil.
func (s *State) Run(id string) *raftlog.Run { r, _ := s.runs.Get(id); return r }

// Runs returns all runs by id.
func (s *State) Runs() []*raftlog.Run { return s.runs.Values() }

// Nodes returns all registered nodes by role and name.
func (s *State) Nodes() []*raftlog.Node { return s.nodes.Values() }

// Groups returns a run's groups that have not left the state, in order.
func (s *State) Groups(run string) []*raftlog.Group { return list(&s.groups, run+"/") }

// Episodes returns a run's episodes that have not left the state, in order.
func (s *State) Episodes(run string) []*raftlog.Episode { return list(&s.episodes, run+"/") }

// Jobs returns a run's verify jobs, in order.
func (s *State) Jobs(run string) []*raftlog.VerifyJob { return list(&s.jobs, run+"/") }

// Gang returns a run's gang, or nil.
func (s *State) Gang(run string) *raftlog.Gang { g, _ := s.gangs.Get(run); return g }
