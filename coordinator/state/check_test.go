package state

import (
	"fmt"
	"sort"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// changes lists the records that differ between two states, the clock's time, term and grace aside.
func changes(a, b *State) []string {
	var out []string
	x, y := proto.CloneOf(a.clock), proto.CloneOf(b.clock)
	x.NowNs, x.Term, x.GraceNs = y.NowNs, y.Term, y.GraceNs
	if !proto.Equal(x, y) {
		out = append(out, "clock")
	}
	out = append(out, diff("run", &a.runs, &b.runs)...)
	out = append(out, diff("version", &a.versions, &b.versions)...)
	out = append(out, diff("group", &a.groups, &b.groups)...)
	out = append(out, diff("episode", &a.episodes, &b.episodes)...)
	out = append(out, diff("job", &a.jobs, &b.jobs)...)
	out = append(out, diff("step", &a.steps, &b.steps)...)
	out = append(out, diff("gang", &a.gangs, &b.gangs)...)
	out = append(out, diff("publish", &a.publish, &b.publish)...)
	out = append(out, diff("node", &a.nodes, &b.nodes)...)
	out = append(out, diff("eval", &a.evals, &b.evals)...)
	out = append(out, diff("client", &a.clients, &b.clients)...)
	out = append(out, diff("event", &a.outbox, &b.outbox)...)
	out = append(out, diff("member", &a.peers, &b.peers)...)
	out = append(out, diff("token", &a.tokens, &b.tokens)...)
	out = append(out, diff("project", &a.projects, &b.projects)...)
	out = append(out, diff("drops", &a.drops, &b.drops)...)
	return out
}

func diff[R interface {
	proto.Message
	comparable
}](kind string, a, b *table[R]) []string {
	var out []string
	a.Scan(func(k string, x R) bool {
		if y, found := b.Get(k); !found || (x != y && !proto.Equal(x, y)) {
			out = append(out, kind+" "+k)
		}
		return true
	})
	if a.Len() != b.Len() || len(out) > 0 {
		b.Scan(func(k string, _ R) bool {
			if _, found := a.Get(k); !found {
				out = append(out, kind+" "+k)
			}
			return true
		})
	}
	return out
}

// requireConsistent recomputes what is derived and checks what must hold in every state.
func requireConsistent(t tester, s *State) {
	t.Helper()
	if bad := inconsistent(s); len(bad) > 0 {
		sort.Strings(bad)
		require.Empty(t, bad)
	}
}

type report []string

func (r *report) addf(format string, args ...any) { *r = append(*r, fmt.Sprintf(format, args...)) }

func inconsistent(s *State) []string {
	var bad report
	checkDerived(s, &bad)
	for _, r := range s.Runs() {
		checkOwners(s, r, &bad)
		checkGroups(s, r, &bad)
		checkPacing(s, r, &bad)
		checkCounters(s, r, &bad)
	}
	return bad
}

// checkDerived recomputes sets, counts and reservations from the tables.
func checkDerived(s *State, bad *report) {
	want := &State{counts: map[string]counts{}}
	agents, verifiers := map[string]int32{}, map[string]int32{}
	s.groups.Scan(func(k string, g *raftlog.Group) bool {
		if isActive(g) {
			c := want.counts[g.Run]
			c.outstanding++
			want.counts[g.Run] = c
			want.active.Set(k, g)
		}
		if g.Suite != "" && g.State == raftlog.GroupState_GROUP_STATE_OPEN {
			want.evaluating.Set(k, g)
		}
		if g.EndedEvent > s.clock.Mirrored {
			want.ended.Set(seqKey(g.EndedEvent), k)
		}
		return true
	})
	s.episodes.Scan(func(k string, ep *raftlog.Episode) bool {
		c := want.counts[ep.Run]
		switch ep.State {
		case raftlog.EpisodeState_EPISODE_STATE_QUEUED:
			want.queue.Set(s.queueKey(ep), struct{}{})
			c.queued++
		case raftlog.EpisodeState_EPISODE_STATE_LEASED:
			want.leased.Set(k, struct{}{})
			want.ends.Set(s.endKey(ep.Run, ep.Lease, endOfEpisode, k), struct{}{})
			c.leased++
			agents[ep.Host]++
		}
		want.counts[ep.Run] = c
		return true
	})
	s.outbox.Scan(func(_ string, e *raftlog.Event) bool {
		c := want.counts[e.Run]
		c.events++
		want.counts[e.Run] = c
		return true
	})
	s.jobs.Scan(func(k string, j *raftlog.VerifyJob) bool {
		c := want.counts[j.Run]
		if j.State == raftlog.JobState_JOB_STATE_QUEUED {
			want.ready.Set(readyKey(j), struct{}{})
			c.jobs++
		} else {
			want.judged.Set(k, struct{}{})
			want.ends.Set(s.endKey(j.Run, j.Lease, endOfJob, k), struct{}{})
			c.judged++
			verifiers[j.Host]++
		}
		want.counts[j.Run] = c
		return true
	})
	for name, pair := range map[string][2]*set{
		"queue": {&s.queue, &want.queue}, "leased": {&s.leased, &want.leased}, "ready": {&s.ready, &want.ready},
		"judged": {&s.judged, &want.judged}, "ends": {&s.ends, &want.ends},
	} {
		if fmt.Sprint(pair[0].Keys()) != fmt.Sprint(pair[1].Keys()) {
			bad.addf("set %s is %v, want %v", name, pair[0].Keys(), pair[1].Keys())
		}
	}
	if bad2 := diff("active", &s.active, &want.active); len(bad2) > 0 {
		bad.addf("active differs: %v", bad2)
	}
	if bad2 := diff("evaluating", &s.evaluating, &want.evaluating); len(bad2) > 0 {
		bad.addf("evaluating differs: %v", bad2)
	}
	if fmt.Sprint(s.ended.Keys(), s.ended.Values()) != fmt.Sprint(want.ended.Keys(), want.ended.Values()) {
		bad.addf("ended is %v, want %v", s.ended.Keys(), want.ended.Keys())
	}
	s.clients.Scan(func(_ string, c *raftlog.Client) bool {
		want.idle.Set(idleKey(c), struct{}{})
		return true
	})
	if fmt.Sprint(s.idle.Keys()) != fmt.Sprint(want.idle.Keys()) {
		bad.addf("idle is %v, want %v", s.idle.Keys(), want.idle.Keys())
	}
	for _, r := range s.Runs() {
		if s.counts[r.Id] != want.counts[r.Id] {
			bad.addf("counts of %s are %+v, want %+v", r.Id, s.counts[r.Id], want.counts[r.Id])
		}
	}
	for _, n := range s.Nodes() {
		if n.Role == RoleHost && (n.AgentsReserved != agents[n.Name] || n.VerifiersReserved != verifiers[n.Name]) {
			bad.addf("host %s has %d and %d reserved, want %d and %d", n.Name, n.AgentsReserved, n.VerifiersReserved, agents[n.Name], verifiers[n.Name])
		}
	}
}

// checkOwners is invariant I8: what is not at its end is leased by a registered holder or stands in a queue.
func checkOwners(s *State, r *raftlog.Run, bad *report) {
	owned := func(l *raftlog.Lease, role, what string) {
		if l == nil {
			bad.addf("%s has no lease", what)
		} else if n, found := s.nodes.Get(nodeKey(role, l.Holder)); !found || n.Incarnation != l.Incarnation || n.State == raftlog.NodeState_NODE_STATE_FENCED {
			bad.addf("%s is leased to %s, which is gone", what, l.Holder)
		}
	}
	for _, ep := range s.Episodes(r.Id) {
		what := fmt.Sprintf("episode %d/%d attempt %d", ep.Group, ep.Index, ep.Attempt)
		j, judging := s.jobs.Get(memberKey(ep.Run, ep.Group, ep.Index))
		if judging != (ep.State == raftlog.EpisodeState_EPISODE_STATE_SEALED) || (judging && j.Attempt != ep.Attempt) {
			bad.addf("%s is %s, job %v", what, ep.State, j)
		}
		if (ep.State == raftlog.EpisodeState_EPISODE_STATE_LEASED) != (ep.Host != "") {
			bad.addf("%s is %s on host %q", what, ep.State, ep.Host)
		}
		if ep.State == raftlog.EpisodeState_EPISODE_STATE_LEASED {
			owned(ep.Lease, RoleRollout, what)
		} else if ep.Lease != nil {
			bad.addf("%s is %s and leased", what, ep.State)
		}
		inStatistics := ep.Disposition == "train" || ep.Disposition == "baseline_only"
		judged := ep.Verdict == "pass" || ep.Verdict == "fail"
		if (ep.Reward != nil) != judged || (inStatistics && ep.Reward == nil) {
			bad.addf("%s: verdict %q, disposition %q, reward %v", what, ep.Verdict, ep.Disposition, ep.Reward)
		}
	}
	for _, j := range s.Jobs(r.Id) {
		what := fmt.Sprintf("job %d/%d", j.Group, j.Index)
		if j.State == raftlog.JobState_JOB_STATE_LEASED {
			owned(j.Lease, RoleVerifier, what)
		} else if j.Lease != nil || j.Host != "" {
			bad.addf("%s is queued with a lease or a host", what)
		}
	}
	if g := s.Gang(r.Id); g.GetLease() != nil {
		owned(g.Lease, RoleTrainer, "the gang")
	}
	if p, found := s.publish.Get(r.Id); found && p.Lease != nil {
		owned(p.Lease, RolePublisher, "the publication")
	}
}

// checkGroups relates groups to their members, their step and their end.
func checkGroups(s *State, r *raftlog.Run, bad *report) {
	assigned := map[uint64]int64{}
	again := map[int64]bool{} // steps that are assigned: after a rollback several in a row
	for _, st := range s.Steps(r.Id) {
		if st.State == raftlog.StepState_STEP_STATE_ASSIGNED {
			if !terminal(r.State) && (st.Step < r.Head || (st.Step > r.Head && !again[st.Step-1])) {
				bad.addf("step %d is assigned, head is %d", st.Step, r.Head)
			}
			again[st.Step] = true
			for _, id := range st.Groups {
				assigned[id] = st.Step
			}
		}
	}
	for _, g := range s.Groups(r.Id) {
		members := s.members(g)
		settled := 0
		for _, ep := range members {
			if ep.State == raftlog.EpisodeState_EPISODE_STATE_SETTLED {
				settled++
			}
		}
		what := fmt.Sprintf("group %d (%s)", g.Id, g.State)
		if len(members) != int(g.Size) {
			bad.addf("%s has %d of %d members", what, len(members), g.Size)
		}
		step, is := assigned[g.Id]
		switch g.State {
		case raftlog.GroupState_GROUP_STATE_OPEN:
			if settled == int(g.Size) || g.EndedEvent != 0 || g.Settled != int32(settled) {
				bad.addf("%s: %d of %d settled, says %d", what, settled, g.Size, g.Settled)
			}
		case raftlog.GroupState_GROUP_STATE_COMPLETE:
			if settled != int(g.Size) || g.Suite != "" {
				bad.addf("%s: %d of %d settled", what, settled, g.Size)
			}
		case raftlog.GroupState_GROUP_STATE_ASSIGNED:
			if !is || step != g.Step {
				bad.addf("%s is of step %d, which does not have it", what, g.Step)
			}
		default:
			if settled != int(g.Size) || g.EndedEvent == 0 || (g.State == raftlog.GroupState_GROUP_STATE_DROPPED && g.Reason == "") {
				bad.addf("%s: %d of %d settled, event %d, reason %q", what, settled, g.Size, g.EndedEvent, g.Reason)
			}
		}
		if terminal(r.State) && g.EndedEvent == 0 {
			bad.addf("%s outlives its run", what)
		}
	}
}

// checkPacing is invariant I1.
func checkPacing(s *State, r *raftlog.Run, bad *report) {
	if n, room := s.counts[r.Id].outstanding, (int64(r.Config.LagMax)+1-(r.Head-max(0, r.Live)))*int64(r.Config.GroupsPerStep); int64(n) > room {
		bad.addf("%d groups outstanding, pacing allows %d", n, room)
	}
	if (r.Live > r.Head && !s.catchingUp(r)) || r.Head > r.Config.Steps {
		bad.addf("live %d, head %d of %d", r.Live, r.Head, r.Config.Steps)
	}
}

// checkCounters: nothing admitted goes uncounted.
func checkCounters(s *State, r *raftlog.Run, bad *report) {
	c := r.Counters
	if c.GroupsAdmitted != c.GroupsConsumed+c.GroupsDropped+int64(s.counts[r.Id].outstanding) {
		bad.addf("%d groups admitted, %d consumed, %d dropped, %d outstanding", c.GroupsAdmitted, c.GroupsConsumed, c.GroupsDropped, s.counts[r.Id].outstanding)
	}
	if c.GroupsConsumed != r.Head*int64(r.Config.GroupsPerStep) {
		bad.addf("%d groups consumed by %d steps", c.GroupsConsumed, r.Head)
	}
	if c.MaxLag > int64(r.Config.LagMax) {
		bad.addf("lag %d above the bound", c.MaxLag)
	}
}
