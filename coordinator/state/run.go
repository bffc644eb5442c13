package state

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// update changes a run through a function on a private copy. The copy is made
// once an entry: nobody outside sees it before Apply returns, and Apply itself
// lets no pointer into it out.
func (s *State) update(id string, change func(*raftlog.Run)) {
	r, found := s.runs.Get(id)
	if !found {
		return
	}
	s.note(KindRun, id)
	if s.private[id] != r {
		r = cloneRun(r)
		s.private[id] = r
		s.runs.Set(id, r)
	}
	change(r)
}

// ValidName reports whether a run id can be a key and a folder name.
func ValidName(id string) bool {
	if id == "" || len(id) > 100 || strings.HasPrefix(id, ".") {
		return false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func checkConfig(c *raftlog.RunConfig) string {
	switch {
	case c == nil:
		return "the run has no configuration"
	case c.Steps < 1 || c.GroupsPerStep < 1 || c.LagMax < 0:
		return "steps and groups per step must be at least 1, lag at least 0"
	case c.PublishEvery < 1 || c.PublishEvery > c.LagMax+1:
		return "publish.every must be between 1 and lag.max + 1"
	case c.Concurrency < 1:
		return "concurrency must be at least 1"
	case len(c.Envs) == 0:
		return "a run needs an env"
	}
	if c.BudgetTokens < 0 || c.BudgetSandboxNs < 0 {
		return "a budget must be above 0, or 0 for none"
	}
	for _, e := range c.Envs {
		if len(e.Tasks) == 0 || e.GroupSize < 1 || !(e.Weight > 0) || math.IsInf(e.Weight, 1) { // not > also refuses NaN
			return fmt.Sprintf("env %q needs tasks, a group size and a positive weight", e.Name)
		}
	}
	for i, e := range c.Evals {
		if e.Suite == "" || e.Env < 0 || int(e.Env) >= len(c.Envs) || len(e.Tasks) == 0 || e.Samples < 1 {
			return fmt.Sprintf("evaluation %q needs an env, tasks and samples", e.Suite)
		}
		for _, other := range c.Evals[:i] {
			if other.Suite == e.Suite {
				return fmt.Sprintf("evaluation %q is there twice", e.Suite)
			}
		}
	}
	return ""
}

func (s *State) createRun(c *raftlog.CreateRun) *raftlog.Result {
	if !ValidName(c.Id) {
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("run name %q: use letters, digits, '-', '_' and '.'", c.Id))
	}
	if old, found := s.runs.Get(c.Id); found {
		if old.SpecDigest == c.SpecDigest {
			return &raftlog.Result{Result: &raftlog.Result_CreateRun{CreateRun: &raftlog.CreateRunResult{Id: c.Id}}}
		}
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s exists with another experiment", c.Id))
	}
	if bad := checkConfig(c.Config); bad != "" {
		return refuse(raftlog.Code_CODE_INVALID, bad)
	}
	r := &raftlog.Run{
		Id: c.Id, SpecDigest: c.SpecDigest, Spec: c.Spec, Config: c.Config, State: raftlog.RunState_RUN_STATE_RUNNING,
		Lineage: 1, Live: -1, NextGroup: 1, Counters: &raftlog.Counters{},
		CreatedNs: s.clock.NowNs, ProgressNs: s.clock.NowNs, Progress: "created",
	}
	for range c.Config.Envs {
		r.Cursors = append(r.Cursors, &raftlog.Cursor{})
	}
	s.runs.Set(r.Id, r)
	s.note(KindRun, r.Id)
	s.putVersion(&raftlog.PolicyVersion{
		Run: r.Id, Version: 0, Lineage: 1, State: raftlog.VersionState_VERSION_STATE_COMMITTED,
		Manifest: c.Manifest, Full: true, CommittedNs: s.clock.NowNs,
	})
	s.emit(r.Id, &raftlog.Event{Event: &raftlog.Event_RunCreated{RunCreated: &raftlog.RunCreated{
		SpecDigest: c.SpecDigest, Spec: c.Spec, Config: c.Config, Manifest: c.Manifest,
	}}})
	s.planEvals(r.Id, 0)
	return &raftlog.Result{Result: &raftlog.Result_CreateRun{CreateRun: &raftlog.CreateRunResult{Id: c.Id}}}
}

func terminal(st raftlog.RunState) bool {
	return st == raftlog.RunState_RUN_STATE_SUCCEEDED || st == raftlog.RunState_RUN_STATE_FAILED || st == raftlog.RunState_RUN_STATE_CANCELLED
}

func (s *State) controlRun(c *raftlog.ControlRun) *raftlog.Result {
	r, found := s.runs.Get(c.Id)
	if !found {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", c.Id))
	}
	if c.Action == "remove" {
		return s.removeRun(r)
	}
	if terminal(r.State) {
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s has ended: %s", r.Id, StateName(r.State)))
	}
	switch c.Action {
	case "pause":
		s.pause(r.Id, c.Reason)
	case "resume":
		s.resume(r)
	case "cancel":
		s.endRun(r.Id, raftlog.RunState_RUN_STATE_CANCELLED, c.Reason)
	case "fail":
		s.endRun(r.Id, raftlog.RunState_RUN_STATE_FAILED, c.Reason)
	default:
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("unknown action %q: use pause, resume, cancel or remove", c.Action))
	}
	return ok()
}

func (s *State) pause(id, reason string) {
	s.update(id, func(r *raftlog.Run) {
		if r.State == raftlog.RunState_RUN_STATE_RUNNING {
			r.State, r.Reason, r.PausedNs = raftlog.RunState_RUN_STATE_PAUSED, reason, s.clock.NowNs
		}
	})
}

// resume continues a run. Nothing aged while it stood, and a version that was
// rejected is tried again: whoever resumes has seen to the cause.
func (s *State) resume(r *raftlog.Run) {
	if r.State == raftlog.RunState_RUN_STATE_PAUSED {
		stood := s.clock.NowNs - r.PausedNs
		for _, g := range s.outstanding(r) {
			if g.State == raftlog.GroupState_GROUP_STATE_COMPLETE {
				s.changeGroup(g.Run, g.Id, func(g *raftlog.Group) { g.CompleteNs += stood })
			}
		}
	}
	if v, is := s.due(r); is && s.versionState(r.Id, v) == raftlog.VersionState_VERSION_STATE_REJECTED {
		s.setVersion(r.Id, v, raftlog.VersionState_VERSION_STATE_COMMITTED, "")
	}
	s.update(r.Id, func(r *raftlog.Run) {
		r.State, r.Reason, r.PausedNs = raftlog.RunState_RUN_STATE_RUNNING, "", 0
		r.ProgressNs, r.Progress = s.clock.NowNs, "resumed"
	})
	s.awaitBatch(r.Id)
}

// removeRun forgets an ended run whose events are all mirrored; its objects stay until they are deleted by hand.
func (s *State) removeRun(r *raftlog.Run) *raftlog.Result {
	if !terminal(r.State) {
		return refuse(raftlog.Code_CODE_CONFLICT, fmt.Sprintf("run %s is %s: cancel it first", r.Id, StateName(r.State)))
	}
	if s.counts[r.Id].events > 0 {
		return refuse(raftlog.Code_CODE_CONFLICT, "the last events are still being written to storage: try again")
	}
	s.keepProject(r)
	prefix := r.Id + "/"
	s.dropNoted(KindVersion, drop(&s.versions, prefix))
	s.dropNoted(KindGroup, drop(&s.groups, prefix))
	drop(&s.episodes, prefix)
	drop(&s.drops, prefix)
	s.dropNoted(KindStep, drop(&s.steps, prefix))
	s.dropNoted(KindEval, drop(&s.evals, prefix))
	s.gangs.Delete(r.Id)
	s.publish.Delete(r.Id)
	s.runs.Delete(r.Id)
	s.note(KindRun, r.Id)
	delete(s.counts, r.Id)
	s.forgetShuffles(r)
	return ok()
}

// drop deletes what is below a prefix and returns its keys.
func drop[R any](t *table[R], prefix string) []string {
	gone := under(t, prefix)
	for _, k := range gone {
		t.Delete(k)
	}
	return gone
}

func (s *State) dropNoted(kind Kind, gone []string) {
	for _, k := range gone {
		s.note(kind, k)
	}
}

// under returns the keys below a prefix, in order.
func under[R any](t *table[R], prefix string) []string {
	var out []string
	t.Ascend(prefix, func(k string, _ R) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		out = append(out, k)
		return true
	})
	return out
}

// endRun brings a run to a terminal state: what is open is dropped with the reason, leases end.
func (s *State) endRun(id string, st raftlog.RunState, reason string) {
	r, found := s.runs.Get(id)
	if !found || terminal(r.State) {
		return
	}
	s.dropOpen(id, "run "+StateName(st))
	s.gangs.Delete(id)
	s.publish.Delete(id)
	kept := s.keptFrom(r)
	s.update(id, func(r *raftlog.Run) { r.State, r.Reason, r.EndedNs = st, reason, s.clock.NowNs })
	s.release(id, kept, r.Head)
	r, _ = s.runs.Get(id)
	s.emit(id, &raftlog.Event{Event: &raftlog.Event_RunEnded{RunEnded: &raftlog.RunEnded{
		State: StateName(st), Reason: reason, Counters: proto.CloneOf(r.Counters),
	}}})
}

// finish ends a run that has done all it was asked to.
func (s *State) finish(id string) {
	r, found := s.runs.Get(id)
	if !found || terminal(r.State) {
		return
	}
	done := r.Head >= r.Config.Steps || r.Stopping
	if st, is := s.steps.Get(numberKey(id, r.Head)); is && st.State == raftlog.StepState_STEP_STATE_ASSIGNED {
		done = false
	}
	if !done {
		return
	}
	if s.planEvals(id, r.Head); s.evalsOpen(id) { // stopped early, the last version is evaluated too
		return
	}
	reason := fmt.Sprintf("%d steps committed", r.Head)
	if r.Stopping {
		reason = fmt.Sprintf("evaluation reward reached %g after %d steps", r.Config.GetStopEvalReward(), r.Head)
	}
	s.endRun(id, raftlog.RunState_RUN_STATE_SUCCEEDED, reason)
}

// StateName is the word of a run state in commands and documents.
func StateName(st raftlog.RunState) string {
	return strings.ToLower(strings.TrimPrefix(st.String(), "RUN_STATE_"))
}
