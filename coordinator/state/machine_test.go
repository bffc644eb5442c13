package state

import (
	"fmt"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// start is the log time of the first command: a date, as leaders stamp it.
const start = 1_700_000_000 * second

// tester is what testing.T and rapid.T have in common.
type tester interface {
	require.TestingT
	Helper()
	Logf(format string, args ...any)
}

// machine is a state with a log time, checked after every command.
type machine struct {
	t     tester
	s     *State
	now   int64
	run   string
	term  uint64
	nodes map[string]*raftlog.NodeRef
	check bool // recompute everything derived after each command
	watch *oracle

	forked bool             // bare forks the state after every command
	follow follower         // keeps up with the journal when set
	base   *State           // what log begins with; nil is New
	log    []*raftlog.Entry // all that was applied since watch is set
}

// newMachine is of a cluster whose voters all know this build's commands.
func newMachine(t tester) *machine { return newMachineOf(t, Level) }

func newMachineOf(t tester, level int32) *machine {
	m := &machine{t: t, s: New(), now: start, run: "r", term: 1, nodes: map[string]*raftlog.NodeRef{}, check: true}
	if level > 1 {
		m.identify("c1", level)
	}
	return m
}

func (m *machine) identify(cluster string, level int32) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Cluster: cluster, Level: level}}})
}

// env is the default env: ten tasks, groups of two.
func env(name string) *raftlog.EnvConfig {
	e := &raftlog.EnvConfig{Name: name, Weight: 1, GroupSize: 2, MaxAttempts: 3, ShortGroup: "replace", VerifyRetries: 1, MaxMasked: 0.2}
	for i := range 10 {
		e.Tasks = append(e.Tasks, &raftlog.TaskRef{Id: fmt.Sprintf("%s-%d", name, i), Digest: fmt.Sprintf("sha256:%s%d", name, i)})
	}
	return e
}

func config(mods ...func(*raftlog.RunConfig)) *raftlog.RunConfig {
	c := &raftlog.RunConfig{
		Seed: 7, Steps: 3, LagMax: 1, GroupsPerStep: 2, PublishEvery: 1, Envs: []*raftlog.EnvConfig{env("files")},
		Concurrency: 64, BatchDeadlineNs: 600 * second, NoProgressNs: 900 * second, PublishDeadlineNs: 120 * second,
		EpisodeDeadlineNs: 300 * second, TtlNs: 3600 * second, MaxRequeues: 2, RequeueStale: true,
	}
	for _, m := range mods {
		m(c)
	}
	return c
}

// fleet is a machine with one node of each role and a run whose version 0 is live.
func fleet(t tester, mods ...func(*raftlog.RunConfig)) *machine {
	m := newMachine(t)
	m.registerAll()
	m.create(config(mods...))
	m.publishNow()
	return m
}

func (m *machine) registerAll() {
	for _, role := range []string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher} {
		m.register(role, role+"-1", 1)
	}
}

// apply carries out one operation of the leader and checks the state.
func (m *machine) apply(op *raftlog.Op) *raftlog.Result {
	return m.propose(&raftlog.Proposal{Op: op})
}

func (m *machine) propose(p *raftlog.Proposal) *raftlog.Result {
	m.t.Helper()
	before := m.s.Fork()
	entry := &raftlog.Entry{NowNs: m.now, Term: m.term, Proposals: []*raftlog.Proposal{p}}
	if m.follow != nil {
		m.s.Journal(true)
	}
	res := m.s.Apply(entry)
	if m.follow != nil {
		m.follow.apply(m.s.Changed())
	}
	require.Len(m.t, res, 1)
	if m.watch != nil || p.Op.GetIdentify() != nil {
		m.log = append(m.log, entry)
	}
	if m.watch != nil {
		m.watch.observe(before, m.s, p.Op, res[0])
	}
	if p.Client == "" && refused(res[0]) {
		require.Empty(m.t, changes(before, m.s), "a refused operation changed the state: %s", res[0].Message)
	}
	if m.check {
		requireConsistent(m.t, m.s)
	}
	return res[0]
}

// refused reports whether nothing of an operation was carried out.
func refused(r *raftlog.Result) bool {
	if r.Code != raftlog.Code_CODE_OK {
		return true
	}
	items := r.GetItems()
	for _, c := range items.GetCodes() {
		if c == raftlog.Code_CODE_OK {
			return false
		}
	}
	return items != nil && len(items.Codes) > 0
}

func (m *machine) ok(op *raftlog.Op) *raftlog.Result {
	m.t.Helper()
	r := m.apply(op)
	require.Equal(m.t, raftlog.Code_CODE_OK, r.Code, r.Message)
	return r
}

func (m *machine) ref(role string) *raftlog.NodeRef { return m.nodes[role] }

func (m *machine) register(role, name string, incarnation uint64) *raftlog.Result {
	ref := &raftlog.NodeRef{Role: role, Name: name, Incarnation: incarnation}
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref, Address: name + ":1", Agents: 64, Verifiers: 64}}})
	if r.Code == raftlog.Code_CODE_OK {
		m.nodes[role] = ref
	}
	return r
}

func (m *machine) create(c *raftlog.RunConfig) {
	m.t.Helper()
	m.ok(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: m.run, SpecDigest: "sha256:spec", Spec: []byte("spec"), Config: c, Manifest: "m0"}}})
}

func (m *machine) control(action, reason string) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: m.run, Action: action, Reason: reason}}})
}

func (m *machine) leasePublish() *raftlog.LeasePublishResult {
	m.t.Helper()
	return m.ok(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: m.ref(RolePublisher), Run: m.run}}}).GetLeasePublish()
}

func (m *machine) finishPublish(p *raftlog.LeasePublishResult, accepted bool, reason string, served ...string) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{
		Node: m.ref(RolePublisher), Run: m.run, Version: p.Version, Fence: p.Fence, Accepted: accepted, Reason: reason, Served: served,
	}}})
}

// publishNow publishes what is due to every ready engine.
func (m *machine) publishNow() {
	m.t.Helper()
	p := m.leasePublish()
	require.True(m.t, p.Ready, p.WaitsFor)
	var served []string
	for _, e := range p.Engines {
		served = append(served, e.Name)
	}
	r := m.finishPublish(p, true, "", served...)
	require.Equal(m.t, raftlog.Code_CODE_OK, r.Code, r.Message)
}

func (m *machine) leaseResult(count int) *raftlog.LeaseEpisodesResult {
	m.t.Helper()
	return m.ok(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: m.ref(RoleRollout), Run: m.run, Count: int32(count)}}}).GetLeaseEpisodes()
}

// lease returns exactly count grants.
func (m *machine) lease(count int) []*raftlog.EpisodeGrant {
	m.t.Helper()
	r := m.leaseResult(count)
	require.Len(m.t, r.Grants, count, r.WaitsFor)
	return r.Grants
}

func sealed(reason string, low, high int64) *raftlog.Sealed {
	return &raftlog.Sealed{
		EndReason: reason, MinVersion: low, MaxVersion: high, Tokens: 10, Artifacts: "sha256:art",
		Steps: &raftlog.RowRef{Object: "sha256:steps", Rows: 1}, Episode: &raftlog.RowRef{Object: "sha256:episodes", Rows: 1},
	}
}

func (m *machine) sealAs(g *raftlog.EpisodeGrant, sl *raftlog.Sealed) raftlog.Code {
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: m.ref(RoleRollout), Run: g.Run, Items: []*raftlog.SealItem{
		{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: sl},
	}}}})
	return r.GetItems().GetCodes()[0]
}

// seal seals an attempt whose tokens are all of the version that was live when it was leased.
func (m *machine) seal(g *raftlog.EpisodeGrant) {
	m.t.Helper()
	v := g.Live
	if g.Pin >= 0 {
		v = g.Pin
	}
	require.Equal(m.t, raftlog.Code_CODE_OK, m.sealAs(g, sealed("stop", v, v)))
}

func (m *machine) failEpisode(g *raftlog.EpisodeGrant, reason string) raftlog.Code {
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: m.ref(RoleRollout), Run: g.Run, Items: []*raftlog.FailItem{
		{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Reason: reason, Message: "because"},
	}}}})
	return r.GetItems().GetCodes()[0]
}

func (m *machine) leaseJobs(count int) []*raftlog.JobGrant {
	m.t.Helper()
	return m.ok(&raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: m.ref(RoleVerifier), Count: int32(count)}}}).GetLeaseJobs().Grants
}

func (m *machine) settleAs(j *raftlog.JobGrant, verdict string, reward *float64) raftlog.Code {
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: m.ref(RoleVerifier), Run: j.Run, Items: []*raftlog.SettleItem{
		{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: verdict, Reward: reward, VerdictRow: &raftlog.RowRef{Object: "sha256:v"}},
	}}}})
	return r.GetItems().GetCodes()[0]
}

func (m *machine) settle(j *raftlog.JobGrant, reward float64) {
	m.t.Helper()
	verdict := "fail"
	if reward > 0 {
		verdict = "pass"
	}
	require.Equal(m.t, raftlog.Code_CODE_OK, m.settleAs(j, verdict, proto.Float64(reward)))
}

func (m *machine) failJob(j *raftlog.JobGrant, reason string) raftlog.Code {
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_FailJobs{FailJobs: &raftlog.FailJobs{Node: m.ref(RoleVerifier), Run: j.Run, Items: []*raftlog.FailItem{
		{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Reason: reason, Message: "because"},
	}}}})
	return r.GetItems().GetCodes()[0]
}

// judge settles every queued verify job with a reward.
func (m *machine) judge(reward float64) {
	m.t.Helper()
	for _, j := range m.leaseJobs(1000) {
		m.settle(j, reward)
	}
}

// complete plays count episodes from lease to verdict.
func (m *machine) complete(count int) {
	m.t.Helper()
	for _, g := range m.lease(count) {
		m.seal(g)
	}
	m.judge(1)
}

func (m *machine) joinResult() *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: m.ref(RoleTrainer), Run: m.run}}})
}

func (m *machine) join() *raftlog.JoinGangResult {
	m.t.Helper()
	r := m.joinResult()
	require.Equal(m.t, raftlog.Code_CODE_OK, r.Code, r.Message)
	return r.GetJoinGang()
}

func (m *machine) take(g *raftlog.JoinGangResult) *raftlog.TakeBatchResult {
	m.t.Helper()
	return m.ok(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: m.ref(RoleTrainer), Run: m.run, Epoch: g.Epoch, Fence: g.Fence}}}).GetTakeBatch()
}

func (m *machine) commitAs(g *raftlog.JoinGangResult, step int64, manifest string) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
		Node: m.ref(RoleTrainer), Run: m.run, Epoch: g.Epoch, Fence: g.Fence, Step: step, Manifest: manifest, Ledger: "ledger", Full: true,
	}}})
}

func (m *machine) commit(g *raftlog.JoinGangResult, step int64) {
	m.t.Helper()
	r := m.commitAs(g, step, fmt.Sprintf("m%d", step+1))
	require.Equal(m.t, raftlog.Code_CODE_OK, r.Code, r.Message)
	require.Equal(m.t, step+1, r.GetCommitStep().Version)
}

// step trains and publishes one step.
func (m *machine) step(g *raftlog.JoinGangResult) *raftlog.TakeBatchResult {
	m.t.Helper()
	b := m.take(g)
	require.True(m.t, b.Ready, b.WaitsFor)
	m.commit(g, b.Step)
	return b
}

// tick applies a Tick and demands that Due foretold whether it changes anything.
func (m *machine) tick() bool {
	m.t.Helper()
	before := m.s.Fork()
	due := m.s.Due(m.now)
	m.ok(&raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}})
	diff := changes(before, m.s)
	require.Equal(m.t, due, len(diff) > 0, "Due says %v, Tick changed %v", due, diff)
	return due
}

// beat renews every node and all they hold, except for lost resources.
func (m *machine) beat(lost ...string) {
	m.t.Helper()
	for _, n := range m.s.Nodes() {
		if n.State == raftlog.NodeState_NODE_STATE_FENCED {
			continue
		}
		m.ok(heartbeat(m.s, n, lost...))
	}
}

// heartbeat says that a node holds all that the state thinks it holds.
func heartbeat(s *State, n *raftlog.Node, lost ...string) *raftlog.Op {
	h := &raftlog.Heartbeat{
		Node: &raftlog.NodeRef{Role: n.Role, Name: n.Name, Incarnation: n.Incarnation}, EngineVersion: n.Version,
		Draining: n.State == raftlog.NodeState_NODE_STATE_DRAINING,
	}
	for _, l := range holding(s, n) {
		held := true
		for _, x := range lost {
			held = held && x != l.Resource
		}
		if held {
			h.Held = append(h.Held, l)
		}
	}
	return &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}}
}

// holding lists the leases of a node.
func holding(s *State, n *raftlog.Node) []*raftlog.Held {
	var out []*raftlog.Held
	add := func(l *raftlog.Lease, role, resource string) {
		if l != nil && n.Role == role && l.Holder == n.Name && l.Incarnation == n.Incarnation {
			out = append(out, &raftlog.Held{Resource: resource, Fence: l.Fence, WaitsFor: "model"})
		}
	}
	for _, r := range s.Runs() {
		for _, ep := range s.Episodes(r.Id) {
			add(ep.Lease, RoleRollout, lease.Episode(ep.Run, ep.Group, ep.Index))
		}
		for _, j := range s.Jobs(r.Id) {
			add(j.Lease, RoleVerifier, lease.Verify(j.Run, j.Group, j.Index))
		}
		add(s.Gang(r.Id).GetLease(), RoleTrainer, lease.Gang(r.Id))
		p, _ := s.publish.Get(r.Id)
		add(p.GetLease(), RolePublisher, lease.Publish(r.Id))
	}
	return out
}

// advance lets time pass with heartbeats and ticks, as a healthy fleet does.
func (m *machine) advance(d int64, lost ...string) {
	m.t.Helper()
	for end := m.now + d; m.now < end; {
		m.now = min(end, m.now+5*second)
		m.beat(lost...)
		m.tick()
	}
}

func (m *machine) r() *raftlog.Run { return m.s.Run(m.run) }

func (m *machine) group(id uint64) *raftlog.Group {
	g, _ := m.s.groups.Get(groupKey(m.run, id))
	return g
}

func (m *machine) episode(group uint64, index int32) *raftlog.Episode {
	ep, _ := m.s.episodes.Get(memberKey(m.run, group, index))
	return ep
}

func (m *machine) version(v int64) *raftlog.PolicyVersion {
	x, _ := m.s.versions.Get(numberKey(m.run, v))
	return x
}

// events returns the outbox, of one kind when pick says so.
func events[E any](s *State, pick func(*raftlog.Event) *E) []*E {
	var out []*E
	for _, e := range s.Outbox(1 << 30) {
		if x := pick(e); x != nil {
			out = append(out, x)
		}
	}
	return out
}
