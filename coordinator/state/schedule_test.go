package state

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// schedule drives one run by commands picked at random. Everything that was
// ever granted is remembered: it can be used late, twice, or by a dead holder.
// Rapid draws the configuration and the seed; its own draws favour small values
// too much for a run to get anywhere.
type schedule struct {
	*machine
	rng      *rand.Rand
	roles    map[string]uint64
	episodes []held[*raftlog.EpisodeGrant]
	jobs     []held[*raftlog.JobGrant]
	gangs    []held[*raftlog.JoinGangResult]
	publish  []held[*raftlog.LeasePublishResult]
	seq      uint64
}

// held is a grant with the node that got it.
type held[G any] struct {
	grant G
	ref   *raftlog.NodeRef
}

// pickOne returns a grant: the one that is current more often than one of the past.
func pickOne[G any](rng *rand.Rand, all []held[G], current func(held[G]) bool) (held[G], bool) {
	if rng.IntN(8) > 0 {
		var live []held[G]
		for _, h := range all {
			if current(h) {
				live = append(live, h)
			}
		}
		all = live
	}
	if len(all) == 0 {
		var none held[G]
		return none, false
	}
	return all[rng.IntN(len(all))], true
}

func (x *schedule) one(of ...string) string { return of[x.rng.IntN(len(of))] }

// as carries out a command as an earlier holder.
func (x *schedule) as(ref *raftlog.NodeRef, do func()) {
	now := x.nodes[ref.Role]
	x.nodes[ref.Role] = ref
	do()
	x.nodes[ref.Role] = now
}

// live says that a holder's lease is the current one, by the records alone.
func live(l *raftlog.Lease, ref *raftlog.NodeRef, fence uint64) bool {
	return l != nil && l.Fence == fence && l.Holder == ref.Name && l.Incarnation == ref.Incarnation
}

// expect is invariant I6: a command is accepted if and only if its fence is that of the lease that is held now.
func (x *schedule) expect(current bool, code raftlog.Code) {
	x.t.Helper()
	if current {
		require.NotEqual(x.t, raftlog.Code_CODE_FENCED, code)
	} else {
		require.Equal(x.t, raftlog.Code_CODE_FENCED, code)
	}
}

func (x *schedule) leaseSome() {
	w := x.s.Work(x.run)
	res := x.leaseResult(x.rng.IntN(6))
	if w.Episodes == 0 {
		require.Empty(x.t, res.Grants, "Work said that there was nothing")
	}
	if len(res.Grants) == 0 {
		return
	}
	require.NotZero(x.t, w.Episodes)
	for _, g := range res.Grants {
		x.episodes = append(x.episodes, held[*raftlog.EpisodeGrant]{g, x.ref(RoleRollout)})
	}
}

func (x *schedule) current(h held[*raftlog.EpisodeGrant]) bool {
	ep := x.episode(h.grant.Group, h.grant.Index)
	return live(ep.GetLease(), h.ref, h.grant.Fence)
}

func (x *schedule) sealSome() {
	h, found := pickOne(x.rng, x.episodes, x.current)
	if !found {
		return
	}
	low := h.grant.Live
	high := low + x.rng.Int64N(max(1, x.r().Head-low+1))
	if h.grant.Pin >= 0 {
		low, high = h.grant.Pin, h.grant.Pin
	}
	was := x.current(h)
	x.as(h.ref, func() {
		x.expect(was, x.sealAs(h.grant, sealed(x.one("stop", "max_tokens", "max_turns"), low, high)))
	})
}

func (x *schedule) failSome() {
	h, found := pickOne(x.rng, x.episodes, x.current)
	if !found {
		return
	}
	was := x.current(h)
	reason := x.one("env_crash", "worker_lost", "unsolvable", "engine_error")
	x.as(h.ref, func() { x.expect(was, x.failEpisode(h.grant, reason)) })
}

func (x *schedule) leaseJobSome() {
	w := x.s.Work(x.run)
	jobs := x.leaseJobs(1 + x.rng.IntN(4))
	require.Equal(x.t, w.Jobs > 0, len(jobs) > 0)
	for _, j := range jobs {
		x.jobs = append(x.jobs, held[*raftlog.JobGrant]{j, x.ref(RoleVerifier)})
	}
}

func (x *schedule) currentJob(h held[*raftlog.JobGrant]) bool {
	j, _ := x.s.jobs.Get(memberKey(x.run, h.grant.Group, h.grant.Index))
	return live(j.GetLease(), h.ref, h.grant.Fence)
}

func (x *schedule) settleSome() {
	h, found := pickOne(x.rng, x.jobs, x.currentJob)
	if !found {
		return
	}
	was := x.currentJob(h)
	fails := x.rng.IntN(12) == 0
	x.as(h.ref, func() {
		if fails {
			x.expect(was, x.failJob(h.grant, x.one("verifier_crash", "host_lost", "reward_missing")))
		} else {
			x.expect(was, x.settleAs(h.grant, "pass", proto.Float64(2*x.rng.Float64()-1)))
		}
	})
}

func (x *schedule) joinSome() {
	if r := x.joinResult(); r.Code == raftlog.Code_CODE_OK {
		x.gangs = append(x.gangs, held[*raftlog.JoinGangResult]{r.GetJoinGang(), x.ref(RoleTrainer)})
	}
}

func (x *schedule) currentGang(h held[*raftlog.JoinGangResult]) bool {
	return live(x.s.Gang(x.run).GetLease(), h.ref, h.grant.Fence)
}

func (x *schedule) trainSome() {
	h, found := pickOne(x.rng, x.gangs, x.currentGang)
	if !found {
		return
	}
	was := x.currentGang(h)
	x.as(h.ref, func() {
		w := x.s.Work(x.run)
		r := x.apply(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: h.ref, Run: x.run, Epoch: h.grant.Epoch, Fence: h.grant.Fence}}})
		if terminal(x.r().State) {
			require.True(x.t, r.GetTakeBatch().Ended)
			return
		}
		x.expect(was, r.Code)
		if was {
			require.Equal(x.t, w.Batch, r.GetTakeBatch().Ready, r.GetTakeBatch().WaitsFor)
		}
		if x.rng.IntN(2) == 0 {
			x.commitSome(h, was)
		}
	})
}

func (x *schedule) commitSome(h held[*raftlog.JoinGangResult], was bool) {
	step := x.r().Head
	if x.rng.IntN(8) == 0 {
		step = max(0, step-1)
	}
	st, found := x.s.steps.Get(numberKey(x.run, step))
	code := x.apply(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
		Node: h.ref, Run: x.run, Epoch: h.grant.Epoch, Fence: h.grant.Fence, Step: step, Manifest: "m", Ledger: "l", Full: x.rng.IntN(2) == 0,
	}}}).Code
	switch {
	case found && st.State == raftlog.StepState_STEP_STATE_COMMITTED:
		require.Equal(x.t, raftlog.Code_CODE_OK, code, "the same again")
	case !was:
		require.Equal(x.t, raftlog.Code_CODE_FENCED, code)
	}
}

func (x *schedule) publishSome() {
	w := x.s.Work(x.run)
	p := x.leasePublish()
	require.Equal(x.t, w.Publish, p.Ready, p.WaitsFor)
	if p.Ready {
		x.publish = append(x.publish, held[*raftlog.LeasePublishResult]{p, x.ref(RolePublisher)})
	}
}

func (x *schedule) currentPublish(h held[*raftlog.LeasePublishResult]) bool {
	p, _ := x.s.publish.Get(x.run)
	return live(p.GetLease(), h.ref, h.grant.Fence)
}

func (x *schedule) finishSome() {
	h, found := pickOne(x.rng, x.publish, x.currentPublish)
	if !found {
		return
	}
	was := x.currentPublish(h)
	accept := x.rng.IntN(8) > 0
	x.as(h.ref, func() { x.expect(was, x.finishPublish(h.grant, accept, "probes", "engine-1").Code) })
}

func (x *schedule) controlSome() {
	x.control(x.one("pause", "resume", "resume", "resume", "resume"), "by hand")
}

func (x *schedule) reviveSome() {
	x.revive(x.one(RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher))
}

func (x *schedule) revive(role string) {
	x.roles[role]++
	require.Equal(x.t, raftlog.Code_CODE_OK, x.register(role, role+"-1", x.roles[role]).Code)
	if role == RoleEngine && x.r() != nil {
		x.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: x.ref(role), EngineVersion: x.r().Live}}})
	}
}

func (x *schedule) passTime() {
	x.advance(second * []int64{1, 5, 30, 150}[x.rng.IntN(4)])
}

// fallSilent lets leases run out; then every role comes back.
func (x *schedule) fallSilent() {
	x.now += []int64{3, 11}[x.rng.IntN(2)] * second
	x.tick()
	for _, role := range roleNames() {
		if n, _ := x.s.nodes.Get(nodeKey(role, role+"-1")); n.State == raftlog.NodeState_NODE_STATE_FENCED {
			x.revive(role)
		}
	}
}

// rollBackSome goes back to any version, full or not: it is refused exactly
// when that is no full one of the lineage behind which all batches are kept.
func (x *schedule) rollBackSome() {
	r := x.r()
	to := x.rng.Int64N(r.Head + 1)
	v := x.version(to)
	can := !terminal(r.State) && to < r.Head && v.Full && v.State != raftlog.VersionState_VERSION_STATE_SUPERSEDED && v.State != raftlog.VersionState_VERSION_STATE_REJECTED
	for n := to; n < r.Head; n++ {
		st, _ := x.s.steps.Get(numberKey(x.run, n))
		for _, id := range st.GetGroups() {
			can = can && x.group(id) != nil
		}
	}
	for full := to + 1; full <= r.Live; full++ { // a newer full version is live: batches before it may be gone any moment
		v := x.version(full)
		can = can && (!v.Full || v.State == raftlog.VersionState_VERSION_STATE_SUPERSEDED || v.State == raftlog.VersionState_VERSION_STATE_REJECTED)
	}
	code := x.rollback(to).Code
	require.Equal(x.t, can, code == raftlog.Code_CODE_OK, "to %d of %d, live %d", to, r.Head, r.Live)
}

// newLeader begins a term; what an older one still proposes for itself is dropped.
func (x *schedule) newLeader() {
	x.term++
	x.apply(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{}}})
	if x.s.atLeast(2) {
		require.Equal(x.t, x.now+2*LeaseTTL, x.s.Clock().GraceNs)
	}
	x.term--
	require.Equal(x.t, raftlog.Code_CODE_CONFLICT, x.apply(&raftlog.Op{Op: &raftlog.Op_Tick{}}).Code)
	x.term++
}

// reborn restores a snapshot of this moment by hand.
func (x *schedule) reborn() {
	before := x.s.Fork()
	x.s = x.s.Reborn("c2", x.s.Clock().Epoch+1)
	x.base, x.log, x.follow = x.s.Fork(), nil, follow(x.s)
	x.watch.observe(before, x.s, &raftlog.Op{}, &raftlog.Result{})
	requireConsistent(x.t, x.s)
	for _, n := range x.s.Nodes() {
		require.Equal(x.t, raftlog.NodeState_NODE_STATE_FENCED, n.State)
	}
	require.Zero(x.t, x.s.leased.Len()+x.s.judged.Len())
	for _, role := range roleNames() {
		x.revive(role)
	}
	n, _ := x.s.nodes.Get(nodeKey(RoleHost, "host-1"))
	require.Greater(x.t, n.Fence, before.Clock().NextFence)
	require.Equal(x.t, x.s.Clock().Epoch, n.Fence>>epochShift)
}

func roleNames() []string {
	return []string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher}
}

func (x *schedule) mirrorSome() {
	c := x.s.Clock()
	upTo := c.Mirrored + x.rng.Uint64N(c.NextEvent-c.Mirrored+1)
	x.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: upTo}}})
}

func (x *schedule) restart() { x.s = restored(x.t, x.s) }

// repeat sends one request twice: the second changes nothing and has the first answer.
func (x *schedule) repeat() {
	x.seq++
	p := &raftlog.Proposal{Client: "c", Seq: x.seq, Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: x.ref(RoleRollout), Count: 1}}}}
	first := x.propose(p)
	before := x.s.Fork()
	again := x.propose(p)
	require.True(x.t, proto.Equal(first, again))
	require.Empty(x.t, changes(before, x.s))
	for _, g := range first.GetLeaseEpisodes().GetGrants() {
		x.episodes = append(x.episodes, held[*raftlog.EpisodeGrant]{g, x.ref(RoleRollout)})
	}
}

// Any order of commands, from holders alive and dead, keeps the invariants; the
// log replays to the same bytes; and silence brings every run to an end.
func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lag := rapid.SampledFrom([]int32{0, 1, 2, 4}).Draw(rt, "lag")
		c := config(func(c *raftlog.RunConfig) {
			c.LagMax, c.Steps, c.GroupsPerStep = lag, 4, rapid.Int32Range(1, 3).Draw(rt, "groups")
			c.PublishEvery = rapid.Int32Range(1, lag+1).Draw(rt, "every")
			c.Envs[0].ShortGroup = rapid.SampledFrom([]string{"replace", "keep", "drop"}).Draw(rt, "short")
			c.Envs[0].KeepMin, c.Envs[0].MaxAttempts = 1, rapid.Int32Range(1, 5).Draw(rt, "attempts")
			c.Envs[0].GroupSize = rapid.Int32Range(1, 3).Draw(rt, "size")
			c.Envs[0].Tasks = c.Envs[0].Tasks[:4]
			c.Concurrency = rapid.Int32Range(2, 20).Draw(rt, "concurrency")
			c.BatchDeadlineNs, c.EpisodeDeadlineNs, c.NoProgressNs, c.PublishDeadlineNs, c.TtlNs = 120*second, 100*second, 600*second, 60*second, 200*second
			if rapid.Bool().Draw(rt, "eval") {
				c.Evals = []*raftlog.EvalConfig{{Suite: "held-out", Tasks: c.Envs[0].Tasks[:1], Samples: 2, Every: 2}}
			}
		})
		x := &schedule{machine: newMachineOf(rt, rapid.Int32Range(1, Level).Draw(rt, "level")), roles: map[string]uint64{}}
		x.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		x.watch = newOracle(rt, x.run)
		for _, role := range roleNames() {
			x.revive(role)
		}
		x.create(c)
		usual := []func(){x.leaseSome, x.leaseSome, x.sealSome, x.sealSome, x.sealSome, x.leaseJobSome, x.settleSome, x.settleSome, x.settleSome, x.joinSome, x.trainSome, x.publishSome, x.finishSome}
		rare := []func(){x.failSome, x.controlSome, x.reviveSome, x.passTime, x.fallSilent, x.mirrorSome, x.restart, x.repeat, x.newLeader}
		if x.s.atLeast(2) {
			rare = append(rare, x.rollBackSome, x.rollBackSome, x.reborn)
		}
		fork, was := x.s.Fork(), [][]byte(nil)
		n := 500 - rapid.IntRange(0, 480).Draw(rt, "left out") // rapid favours small numbers, and short schedules find less
		x.follow = follow(x.s)
		for i := range n {
			if i%50 == 0 {
				x.follow.requireEqual(rt, follow(x.s))
			}
			if i == n/2 {
				fork = x.s.Fork()
				was = dump(rt, fork)
			}
			if x.rng.IntN(20) > 0 {
				usual[x.rng.IntN(len(usual))]()
			} else {
				rare[x.rng.IntN(len(rare))]()
			}
		}
		x.silence()
		x.follow.requireEqual(rt, follow(x.s))
		require.Equal(rt, was, dump(rt, fork), "a fork changed with its original")
		x.replay(x.rng.IntN(max(1, len(x.log))))
	})
}

// silence stops every actor: what Due asks for ends all leases and the run (invariant I8).
func (x *schedule) silence() {
	if x.r().State == raftlog.RunState_RUN_STATE_PAUSED {
		x.control("resume", "")
	}
	for range 2000 {
		if terminal(x.r().State) {
			break
		}
		x.now += second
		if x.s.Due(x.now) {
			x.tick()
		}
	}
	x.watch.done(x.s)
	require.Zero(x.t, x.s.leased.Len()+x.s.judged.Len()+x.s.queue.Len()+x.s.ready.Len()+x.s.active.Len())
	require.False(x.t, x.s.Due(x.now+3600*second) && len(x.s.idleClients(x.now+3600*second, 1)) == 0 && !x.anyReady())
}

func (x *schedule) anyReady() bool {
	for _, n := range x.s.Nodes() {
		if n.State != raftlog.NodeState_NODE_STATE_FENCED {
			return true
		}
	}
	return false
}

// No command, however senseless, panics: a panic would stop every replica at the same entry.
func TestSenselessCommands(t *testing.T) {
	made := busy(t).s
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt)
		m.s, m.check = made.Fork(), false
		for _, n := range m.s.Nodes() {
			m.nodes[n.Role] = &raftlog.NodeRef{Role: n.Role, Name: n.Name, Incarnation: n.Incarnation}
		}
		for range 40 {
			m.propose(&raftlog.Proposal{Op: senseless(rt, m)})
		}
		requireConsistent(rt, m.s)
	})
}

func senseless(rt *rapid.T, m *machine) *raftlog.Op {
	number := func(label string) int64 {
		return rapid.SampledFrom([]int64{-1 << 63, -1, 0, 1, 2, 3, 4, 5, 1 << 40}).Draw(rt, label)
	}
	run := rapid.SampledFrom([]string{"r", "r", "", "none", "r/1"}).Draw(rt, "run")
	role := rapid.SampledFrom([]string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher, ""}).Draw(rt, "role")
	ref := rapid.SampledFrom([]*raftlog.NodeRef{nil, m.ref(role), {Role: role, Name: "x", Incarnation: 1}}).Draw(rt, "ref")
	fence := uint64(number("fence"))
	if rapid.Bool().Draw(rt, "known fence") {
		fence = rapid.Uint64Range(1, m.s.Clock().NextFence).Draw(rt, "fence")
	}
	reason := rapid.SampledFrom([]string{"", "stop", "env_crash", "verifier_crash", "worker_lost", "x"}).Draw(rt, "reason")
	fails := []*raftlog.FailItem{{Group: uint64(number("group")), Index: int32(number("index")), Attempt: int32(number("attempt")), Fence: fence, Reason: reason}}
	ops := []*raftlog.Op{
		{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: run}}},
		{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: run, Action: rapid.SampledFrom([]string{"", "pause", "resume", "remove"}).Draw(rt, "action")}}},
		{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref, Agents: int32(number("agents"))}}},
		{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: ref, EngineVersion: number("version"), Held: []*raftlog.Held{{Resource: "gang/r", Fence: fence}, {Resource: "/"}, {}}}}},
		{Op: &raftlog.Op_Tick{}},
		{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: ref, Run: run, Count: int32(number("count"))}}},
		{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: ref, Run: run, Items: []*raftlog.SealItem{{Group: fails[0].Group, Fence: fence, Sealed: sealed(reason, number("low"), number("high"))}, {}}}}},
		{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: ref, Run: run, Items: fails}}},
		{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: ref, Count: int32(number("count"))}}},
		{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: ref, Run: run, Items: []*raftlog.SettleItem{{Group: fails[0].Group, Fence: fence, Verdict: "pass"}, {}}}}},
		{Op: &raftlog.Op_FailJobs{FailJobs: &raftlog.FailJobs{Node: ref, Run: run, Items: fails}}},
		{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: ref, Run: run}}},
		{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: ref, Run: run, Epoch: uint64(number("epoch")), Fence: fence}}},
		{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{Node: ref, Run: run, Epoch: uint64(number("epoch")), Fence: fence, Step: number("step"), Manifest: reason, Ledger: reason}}},
		{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: ref, Run: run}}},
		{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{Node: ref, Run: run, Version: number("version"), Fence: fence, Accepted: true, Served: []string{"x"}}}},
		{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: uint64(number("up to"))}}},
		{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: ref}}},
		{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Cluster: run, Level: int32(number("level"))}}},
		{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: &raftlog.Member{Id: run, Raft: role, Level: int32(number("level"))}}}},
		{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{}}},
		{Op: &raftlog.Op_RemoveMember{RemoveMember: &raftlog.RemoveMember{Id: run}}},
		{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{Token: &raftlog.Token{Id: run, Role: role, ExpiresNs: number("expires")}}}},
		{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{}}},
		{Op: &raftlog.Op_RemoveToken{RemoveToken: &raftlog.RemoveToken{Id: run}}},
		{Op: &raftlog.Op_Rollback{Rollback: &raftlog.Rollback{Run: run, To: number("to")}}},
		{Op: &raftlog.Op_Diverged{Diverged: &raftlog.Diverged{Run: run, Stored: fence}}},
		{},
	}
	return rapid.SampledFrom(ops).Draw(rt, "op")
}
