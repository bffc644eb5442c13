package state

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// pair drives the state machine and the model by the same commands.
type pair struct {
	*machine
	m        *model
	rng      *rand.Rand
	lives    map[string]uint64
	episodes []*raftlog.EpisodeGrant
	jobs     []*raftlog.JobGrant
	joined   []*raftlog.JoinGangResult
	pubs     []*raftlog.LeasePublishResult
	life     map[uint64]uint64 // of a fence: the incarnation that got it
}

func (p *pair) member(group uint64, index int32) (*mGroup, *mMember) {
	g := p.m.groups[group-1]
	return g, g.members[index]
}

// anyOf picks a grant: one that is held more often than one of the past.
func anyOf[G any](rng *rand.Rand, all []G, held func(G) bool) (g G, found bool) {
	if rng.IntN(8) > 0 {
		var now []G
		for _, x := range all {
			if held(x) {
				now = append(now, x)
			}
		}
		all = now
	}
	if len(all) == 0 {
		return g, false
	}
	return all[rng.IntN(len(all))], true
}

// as speaks for the incarnation that got a grant.
func (p *pair) as(role string, fence uint64, do func()) {
	now := p.nodes[role]
	p.nodes[role] = &raftlog.NodeRef{Role: role, Name: now.Name, Incarnation: p.life[fence]}
	do()
	p.nodes[role] = now
}

func (p *pair) got(role string, fence uint64) { p.life[fence] = p.nodes[role].Incarnation }

func (p *pair) fenced(want bool, code raftlog.Code) {
	p.t.Helper()
	require.Equal(p.t, want, code == raftlog.Code_CODE_FENCED, "%s", code)
}

func (p *pair) lease() {
	n := 1 + p.rng.IntN(5)
	r := p.apply(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: p.ref(RoleRollout), Run: p.run, Count: int32(n)}}})
	p.fenced(!p.m.ready(RoleRollout), r.Code)
	for _, x := range r.GetLeaseEpisodes().GetGrants() {
		g, i := p.m.lease()
		require.NotNil(p.t, g, "the model would grant nothing")
		require.Equal(p.t, []any{g.id, int32(i), g.members[i].attempt, g.members[i].lease.fence}, []any{x.Group, x.Index, x.Attempt, x.Fence})
		require.Equal(p.t, p.m.live, x.Live)
		p.episodes = append(p.episodes, x)
		p.got(RoleRollout, x.Fence)
		n--
	}
	if n > 0 && r.Code == raftlog.Code_CODE_OK {
		g, _ := p.m.lease()
		require.Nil(p.t, g, "the model would grant: %s", r.GetLeaseEpisodes().WaitsFor)
	}
}

func (p *pair) seal() {
	plays := func(x *raftlog.EpisodeGrant) bool {
		_, y := p.member(x.Group, x.Index)
		return y.state == "leased" && y.lease.fence == x.Fence
	}
	x, found := anyOf(p.rng, p.episodes, plays)
	if !found {
		return
	}
	_, y := p.member(x.Group, x.Index)
	held := plays(x)
	high := x.Live + p.rng.Int64N(max(1, p.m.head-x.Live+1))
	p.as(RoleRollout, x.Fence, func() {
		if p.rng.IntN(12) == 0 {
			blame := p.rng.IntN(2) == 0
			p.fenced(!held, p.failEpisode(x, map[bool]string{true: "env_crash", false: "worker_lost"}[blame]))
			if g, y := p.member(x.Group, x.Index); held {
				p.m.lose(g, y, blame)
			}
			return
		}
		p.fenced(!held, p.sealAs(x, sealed("stop", x.Live, high)))
		if held {
			y.state, y.lease, y.low, y.since = "sealed", mLease{}, x.Live, p.now
		}
	})
}

func (p *pair) judge() {
	r := p.apply(&raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: p.ref(RoleVerifier), Count: 1}}})
	p.fenced(!p.m.ready(RoleVerifier), r.Code)
	if r.Code != raftlog.Code_CODE_OK {
		return
	}
	g, i := p.m.leaseJob()
	require.Equal(p.t, g != nil, len(r.GetLeaseJobs().Grants) > 0)
	for _, x := range r.GetLeaseJobs().Grants {
		require.Equal(p.t, []any{g.id, int32(i), g.members[i].lease.fence}, []any{x.Group, x.Index, x.Fence})
		p.jobs = append(p.jobs, x)
		p.got(RoleVerifier, x.Fence)
	}
}

func (p *pair) settle() {
	judges := func(x *raftlog.JobGrant) bool {
		_, y := p.member(x.Group, x.Index)
		return y.state == "judged" && y.lease.fence == x.Fence
	}
	x, found := anyOf(p.rng, p.jobs, judges)
	if !found {
		return
	}
	g, y := p.member(x.Group, x.Index)
	held := judges(x)
	p.as(RoleVerifier, x.Fence, func() { p.fenced(!held, p.settleAs(x, "pass", proto.Float64(1))) })
	if held {
		p.m.settle(g, y)
	}
}

func (p *pair) joinOne() {
	if p.m.gang.fence > 0 && p.rng.IntN(8) > 0 {
		return
	}
	r := p.joinResult()
	p.fenced(!p.m.ready(RoleTrainer), r.Code)
	if g := r.GetJoinGang(); g != nil {
		p.m.epoch++
		p.m.gang = p.m.grant(p.m.nodes[RoleTrainer].life)
		require.Equal(p.t, []any{p.m.epoch, p.m.gang.fence, p.m.head, p.m.lineage}, []any{g.Epoch, g.Fence, g.Head, g.Lineage})
		p.joined = append(p.joined, g)
		p.got(RoleTrainer, g.Fence)
	}
}

func (p *pair) train() {
	g, found := anyOf(p.rng, p.joined, func(g *raftlog.JoinGangResult) bool { return p.m.gang.fence == g.Fence })
	if !found {
		return
	}
	held := p.m.gang.fence == g.Fence
	p.as(RoleTrainer, g.Fence, func() {
		r := p.apply(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: p.ref(RoleTrainer), Run: p.run, Epoch: g.Epoch, Fence: g.Fence}}})
		p.fenced(!held, r.Code)
		if held {
			b := p.m.take()
			require.Equal(p.t, b != nil, r.GetTakeBatch().Ready, r.GetTakeBatch().WaitsFor)
			if b != nil {
				p.sameBatch(b, r.GetTakeBatch())
			}
		}
		step := p.m.head - p.rng.Int64N(2)/max(1, 2-p.m.head)
		b := p.m.batches[step]
		full := p.rng.IntN(2) == 0
		code := p.apply(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
			Node: p.ref(RoleTrainer), Run: p.run, Epoch: g.Epoch, Fence: g.Fence, Step: step, Manifest: "m", Ledger: "l", Full: full,
		}}}).Code
		switch {
		case b != nil && b.committed: // the same again
			require.Equal(p.t, raftlog.Code_CODE_OK, code)
		case !held || (b != nil && step == p.m.head && b.epoch != g.Epoch):
			require.Equal(p.t, raftlog.Code_CODE_FENCED, code)
		case b == nil || step != p.m.head:
			require.Equal(p.t, raftlog.Code_CODE_CONFLICT, code)
		default:
			require.Equal(p.t, raftlog.Code_CODE_OK, code)
			p.m.commit(full)
		}
	})
}

// sameBatch is invariants I2 and I4, by what the model knows of tokens.
func (p *pair) sameBatch(b *mBatch, r *raftlog.TakeBatchResult) {
	require.Equal(p.t, p.m.head, r.Step)
	for i, g := range b.groups {
		require.Equal(p.t, g.id, r.Groups[i].Group)
		require.GreaterOrEqual(p.t, g.bound(), r.Step-p.m.lag)
	}
}

func (p *pair) publishOne() {
	r := p.apply(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: p.ref(RolePublisher), Run: p.run}}})
	p.fenced(!p.m.ready(RolePublisher), r.Code)
	if r.Code != raftlog.Code_CODE_OK {
		return
	}
	v, x := p.m.publish(), r.GetLeasePublish()
	require.Equal(p.t, v >= 0, x.Ready, x.WaitsFor)
	if x.Ready {
		require.Equal(p.t, []any{v, p.m.pub.fence}, []any{x.Version, x.Fence})
		p.pubs = append(p.pubs, x)
		p.got(RolePublisher, x.Fence)
	}
}

func (p *pair) finishOne() {
	x, found := anyOf(p.rng, p.pubs, func(x *raftlog.LeasePublishResult) bool { return p.m.pub.fence == x.Fence })
	if !found {
		return
	}
	held, accepted := p.m.pub.fence == x.Fence, p.rng.IntN(6) > 0
	p.as(RolePublisher, x.Fence, func() { p.fenced(!held, p.finishPublish(x, accepted, "probes", "engine-1").Code) })
	if held {
		p.m.finish(accepted)
	}
}

func (p *pair) resume() {
	if p.m.state != "paused" {
		return
	}
	p.control("resume", "")
	p.m.state = "running"
	if v := p.m.due(); v >= 0 && p.m.versions[v] == "rejected" {
		p.m.versions[v] = "committed"
	}
}

func (p *pair) rollBackOne() {
	to := p.rng.Int64N(p.m.head + 1)
	want := p.m.rollback(to)
	require.Equal(p.t, want, p.rollback(to).Code == raftlog.Code_CODE_OK, "to %d", to)
}

func (p *pair) revive(role string) {
	p.lives[role]++
	require.Equal(p.t, raftlog.Code_CODE_OK, p.register(role, role+"-1", p.lives[role]).Code)
	if p.m.nodes[role] != nil {
		p.m.fenceOff(role)
	}
	l := p.m.grant(p.lives[role])
	p.m.nodes[role] = &mNode{l.life, l.expiry}
	if role == RoleEngine && p.r() != nil {
		p.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: p.ref(role), EngineVersion: p.m.live}}})
		p.m.engine = p.m.live
	}
}

// renew is a heartbeat of one role for all that it holds.
func (p *pair) renew() {
	role := roleNames()[p.rng.IntN(6)]
	n, _ := p.s.nodes.Get(nodeKey(role, role+"-1"))
	fenced := p.apply(heartbeat(p.s, n)).GetHeartbeat().Fenced
	require.Equal(p.t, !p.m.ready(role), fenced)
	if fenced {
		return
	}
	until := uint64(p.now + mTTL)
	p.m.nodes[role].expiry = until
	for _, g := range p.m.in("open") {
		for _, x := range g.members {
			if x.state == "leased" && role == RoleRollout || x.state == "judged" && role == RoleVerifier {
				x.lease.expiry = until
			}
		}
	}
	if role == RoleTrainer {
		p.m.gang.expiry = until
	}
	if role == RolePublisher {
		p.m.pub.expiry = until
	}
}

func (p *pair) pass() {
	p.now += []int64{1, 4, 6, 11}[p.rng.IntN(4)] * second
	p.m.now = p.now
	if p.rng.IntN(3) == 0 {
		p.machine.tick()
		p.m.tick()
	}
}

func (p *pair) newLeader() {
	p.term++
	p.ok(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: p.rng.Uint64N(p.s.Clock().NextEvent)}}})
	p.m.grace = p.now + 2*mTTL
}

func (p *pair) restore() {
	if p.rng.IntN(2) == 0 {
		p.s = restored(p.t, p.s)
		return
	}
	p.s = p.s.Reborn("c", p.s.Clock().Epoch+1)
	p.m.now = p.s.Clock().NowNs // what is over ended with the last entry
	for _, role := range roleNames() {
		p.m.fenceOff(role)
	}
	p.m.now = p.now
	p.m.grace, p.term, p.m.fence = 0, 0, p.s.Clock().Epoch<<48
}

// same compares all that both know.
func (p *pair) same() {
	p.t.Helper()
	r, m := p.r(), p.m
	require.Equal(p.t, []any{m.state, m.head, m.live, m.lineage}, []any{StateName(r.State), r.Head, r.Live, r.Lineage})
	c := r.Counters
	if m.state == "succeeded" {
		require.Equal(p.t, m.used, c.GroupsConsumed)
		return
	}
	require.Equal(p.t, []any{int64(m.next), m.used, m.dropped, m.stale, m.lost}, []any{c.GroupsAdmitted, c.GroupsConsumed, c.GroupsDropped, c.Stale, c.AttemptsLost})
	require.Equal(p.t, m.fence+1, p.s.Clock().NextFence)
	require.Equal(p.t, m.gang.fence, p.s.Gang(p.run).GetLease().GetFence())
	for v, st := range m.versions {
		require.Equal(p.t, st, versionName(p.version(int64(v))), "version %d", v)
	}
	for _, g := range m.in("open", "complete", "assigned") {
		x := p.group(g.id)
		require.Equal(p.t, map[string]raftlog.GroupState{"open": 1, "complete": 2, "assigned": 3}[g.state], x.GetState(), "group %d", g.id)
		require.Equal(p.t, g.bound(), x.Bound, "group %d", g.id)
		for i, y := range g.members {
			ep := p.episode(g.id, int32(i))
			want := map[string]raftlog.EpisodeState{"queued": 1, "leased": 2, "sealed": 3, "judged": 3, "settled": 4}[y.state]
			require.Equal(p.t, []any{want, y.attempt}, []any{ep.State, ep.Attempt}, "member %d/%d", g.id, i)
			if y.state == "leased" {
				require.Equal(p.t, []any{y.lease.fence, int64(y.lease.expiry)}, []any{ep.Lease.Fence, ep.Lease.ExpiryNs})
			}
		}
	}
}

func versionName(v *raftlog.PolicyVersion) string {
	return []string{"", "committed", "staging", "live", "retired", "rejected", "superseded"}[v.GetState()]
}

// The state machine does what the model does, command by command: who gets
// what, with which fence, what is trained when, what is refused.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lag := rapid.SampledFrom([]int32{0, 1, 2, 4}).Draw(rt, "lag")
		c := config(func(c *raftlog.RunConfig) {
			c.LagMax, c.Steps, c.GroupsPerStep = lag, 6, rapid.Int32Range(1, 3).Draw(rt, "groups")
			c.PublishEvery = rapid.Int32Range(1, lag+1).Draw(rt, "every")
			c.Envs[0].GroupSize, c.Envs[0].MaxAttempts, c.Envs[0].ShortGroup = rapid.Int32Range(1, 2).Draw(rt, "size"), 1<<30, rapid.SampledFrom([]string{"replace", "drop"}).Draw(rt, "short")
			c.BatchDeadlineNs, c.NoProgressNs, c.PublishDeadlineNs, c.EpisodeDeadlineNs, c.TtlNs = 0, 0, 0, 0, 0
		})
		p := &pair{machine: newMachine(rt), lives: map[string]uint64{}, life: map[uint64]uint64{}}
		p.rng = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		p.m = &model{
			lag: int64(lag), b: int64(c.GroupsPerStep), steps: c.Steps, every: int64(c.PublishEvery), size: int64(c.Envs[0].GroupSize), drop: c.Envs[0].ShortGroup == "drop",
			now: p.now, state: "running", live: -1, lineage: 1, versions: []string{"committed"}, full: []bool{true},
			batches: map[int64]*mBatch{}, nodes: map[string]*mNode{}, engine: -1,
		}
		for _, role := range roleNames() {
			p.revive(role)
		}
		p.create(c)
		usual := []func(){p.lease, p.lease, p.seal, p.seal, p.seal, p.judge, p.judge, p.settle, p.settle, p.joinOne, p.train, p.train, p.train, p.publishOne, p.finishOne, p.renew, p.resume}
		rare := []func(){p.pass, p.rollBackOne, p.newLeader, p.restore, func() { p.revive(roleNames()[p.rng.IntN(6)]) }}
		for range 500 - rapid.IntRange(0, 480).Draw(rt, "left out") {
			if p.rng.IntN(25) > 0 {
				usual[p.rng.IntN(len(usual))]()
			} else {
				rare[p.rng.IntN(len(rare))]()
			}
			if p.same(); p.m.state == "succeeded" {
				break
			}
			for _, role := range roleNames() { // somebody starts again what is gone, soon
				if !p.m.ready(role) && p.rng.IntN(4) == 0 {
					p.revive(role)
				}
			}
		}
	})
}
