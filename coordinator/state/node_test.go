package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestRegister(t *testing.T) {
	m := newMachine(t)
	first := m.register(RoleRollout, "w", 1).GetRegister()
	require.NotZero(t, first.Fence)
	require.Equal(t, LeaseTTL, first.TtlNs)
	require.Equal(t, first.Fence, m.register(RoleRollout, "w", 1).GetRegister().Fence, "a repeat is no new grant")
	second := m.register(RoleRollout, "w", 5).GetRegister()
	require.Greater(t, second.Fence, first.Fence)
	for name, tc := range map[string]struct {
		role, name  string
		incarnation uint64
		code        raftlog.Code
	}{
		"older":          {RoleRollout, "w", 4, raftlog.Code_CODE_FENCED},
		"no role":        {"", "w", 1, raftlog.Code_CODE_INVALID},
		"a role of ours": {"manager", "w", 1, raftlog.Code_CODE_INVALID},
		"no name":        {RoleRollout, "", 1, raftlog.Code_CODE_INVALID},
		"no incarnation": {RoleRollout, "x", 0, raftlog.Code_CODE_INVALID},
		"another role":   {RoleVerifier, "w", 1, raftlog.Code_CODE_OK},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.code, m.register(tc.role, tc.name, tc.incarnation).Code) })
	}
}

func TestHigherIncarnationTakesAllLeases(t *testing.T) {
	m := fleet(t)
	gang := m.join()
	grants := m.lease(4)
	m.seal(grants[0])
	jobs := m.leaseJobs(4)
	require.Len(t, jobs, 1)
	old := map[string]*raftlog.NodeRef{}
	for _, role := range []string{RoleRollout, RoleVerifier, RoleTrainer} {
		old[role] = m.ref(role)
		require.Equal(t, raftlog.Code_CODE_OK, m.register(role, m.ref(role).Name, 2).Code)
	}
	require.Empty(t, m.s.leased.Keys())
	require.Equal(t, raftlog.JobState_JOB_STATE_QUEUED, m.s.Jobs(m.run)[0].State)
	require.Zero(t, m.s.Jobs(m.run)[0].Tries, "a lost verifier is not the verifier's failure")
	require.Nil(t, m.s.Gang(m.run).Lease)
	require.EqualValues(t, 2, m.episode(grants[1].Group, grants[1].Index).Attempt)
	require.EqualValues(t, 1, m.episode(grants[0].Group, grants[0].Index).Attempt, "what is sealed stays sealed")
	for _, l := range events(m.s, func(e *raftlog.Event) *raftlog.AttemptLost { return e.GetAttemptLost() }) {
		require.Equal(t, "worker_lost", l.Reason)
		require.False(t, l.Sealed)
	}

	// Nothing of the old incarnation is accepted, under its old name or the new one.
	for _, ref := range []*raftlog.NodeRef{old[RoleRollout], m.ref(RoleRollout)} {
		m.nodes[RoleRollout] = ref
		require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(grants[1], sealed("stop", 0, 0)))
		require.Equal(t, raftlog.Code_CODE_FENCED, m.failEpisode(grants[2], "env_crash"))
	}
	for _, ref := range []*raftlog.NodeRef{old[RoleVerifier], m.ref(RoleVerifier)} {
		m.nodes[RoleVerifier] = ref
		require.Equal(t, raftlog.Code_CODE_FENCED, m.settleAs(jobs[0], "pass", proto.Float64(1)))
		require.Equal(t, raftlog.Code_CODE_FENCED, m.failJob(jobs[0], "verifier_crash"))
	}
	for _, ref := range []*raftlog.NodeRef{old[RoleTrainer], m.ref(RoleTrainer)} {
		m.nodes[RoleTrainer] = ref
		r := m.apply(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: ref, Run: m.run, Epoch: gang.Epoch, Fence: gang.Fence}}})
		require.Equal(t, raftlog.Code_CODE_FENCED, r.Code)
	}
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: old[RoleRollout], Count: 1}}})
	require.Equal(t, raftlog.Code_CODE_FENCED, r.Code)
	require.Contains(t, r.Message, "register again")
}

func TestHeartbeat(t *testing.T) {
	m := fleet(t)
	grants := m.lease(2)
	held := func(g *raftlog.EpisodeGrant, fence uint64) *raftlog.Held {
		return &raftlog.Held{Resource: lease.Episode(g.Run, g.Group, g.Index), Fence: fence, WaitsFor: "tool", WaitsNs: second}
	}
	beat := func(ref *raftlog.NodeRef, h ...*raftlog.Held) *raftlog.HeartbeatResult {
		return m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: ref, Held: h}}}).GetHeartbeat()
	}
	m.now += 4 * second
	wrong := []*raftlog.Held{held(grants[1], grants[1].Fence+1), {Resource: "episode/none/1/2", Fence: 1}, {Resource: "nonsense", Fence: 1}, {Resource: "gang/r", Fence: 1}, {Resource: "verify/r/1/1"}, {Resource: "publish/r"}}
	res := beat(m.ref(RoleRollout), append([]*raftlog.Held{held(grants[0], grants[0].Fence)}, wrong...)...)
	require.False(t, res.Fenced)
	require.Len(t, res.Lost, len(wrong))
	ep := m.episode(grants[0].Group, grants[0].Index)
	require.Equal(t, m.now+LeaseTTL, ep.Lease.ExpiryNs)
	require.Equal(t, "tool", ep.WaitsFor)
	require.Equal(t, m.now-second, ep.WaitsSinceNs)
	require.Equal(t, start+LeaseTTL, m.episode(grants[1].Group, grants[1].Index).Lease.ExpiryNs, "not renewed")

	before := m.s.Fork()
	gone := beat(&raftlog.NodeRef{Role: RoleRollout, Name: "unknown", Incarnation: 1}, held(grants[0], grants[0].Fence))
	require.True(t, gone.Fenced)
	require.Len(t, gone.Lost, 1)
	require.Empty(t, changes(before, m.s))

	m.now = start + LeaseTTL
	m.tick()
	require.EqualValues(t, 2, m.episode(grants[1].Group, grants[1].Index).Attempt)
	require.EqualValues(t, 1, m.episode(grants[0].Group, grants[0].Index).Attempt)
	require.True(t, beat(m.ref(RoleVerifier)).Fenced, "it said nothing for a whole lease")
}

// A host names the leases that its sandboxes serve and is told which of them have ended.
func TestHostLearnsWhichSandboxesToEnd(t *testing.T) {
	m := fleet(t)
	grants := m.lease(3)
	m.seal(grants[2])
	m.seal(m.lease(1)[0])
	jobs := m.leaseJobs(1)
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[1], "worker_lost"))
	name := func(run string, group uint64, index int32, of func(string, uint64, int32) string, fence uint64) *raftlog.Held {
		return &raftlog.Held{Resource: of(run, group, index), Fence: fence}
	}
	var h, want []*raftlog.Held
	h = append(h, name("r", grants[0].Group, grants[0].Index, lease.Episode, grants[0].Fence), name("r", jobs[0].Group, jobs[0].Index, lease.Verify, jobs[0].Fence))
	want = append(want,
		name("r", grants[0].Group, grants[0].Index, lease.Episode, grants[0].Fence-1),
		name("r", grants[1].Group, grants[1].Index, lease.Episode, grants[1].Fence),
		name("r", grants[2].Group, grants[2].Index, lease.Episode, grants[2].Fence),
		name("r", 2, 1, lease.Verify, 0), // queued: no fence is right
		name("r", 99, 0, lease.Verify, 1), name("r", 99, 0, lease.Episode, 1), &raftlog.Held{Resource: "gang/r", Fence: 1})
	before := m.episode(grants[0].Group, grants[0].Index).Lease.ExpiryNs
	m.now += second
	res := m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: m.ref(RoleHost), Held: append(h, want...)}}}).GetHeartbeat()
	require.False(t, res.Fenced)
	require.Equal(t, want, res.Lost)
	require.Equal(t, before, m.episode(grants[0].Group, grants[0].Index).Lease.ExpiryNs, "only the holder renews")
}

func TestDrainingNodesGetNothingNew(t *testing.T) {
	m := fleet(t)
	m.seal(m.lease(1)[0])
	for _, role := range []string{RoleRollout, RoleVerifier, RoleHost, RoleEngine} {
		t.Run(role, func(t *testing.T) {
			drain := func(yes bool) {
				n, _ := m.s.nodes.Get(nodeKey(role, m.ref(role).Name))
				m.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: m.ref(role), Draining: yes, EngineVersion: n.Version}}})
			}
			drain(true)
			if role == RoleVerifier || role == RoleHost {
				require.Empty(t, m.leaseJobs(1))
			}
			if role != RoleVerifier {
				r := m.leaseResult(1)
				require.Empty(t, r.Grants)
				require.NotEmpty(t, r.WaitsFor)
			}
			drain(false)
		})
	}
	require.Len(t, m.leaseJobs(1), 1)
	m.lease(1)
}

func TestDeregisterGivesEverythingBackAtOnce(t *testing.T) {
	m := fleet(t)
	m.lease(3)
	leave := func(ref *raftlog.NodeRef) {
		m.ok(&raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: ref}}})
	}
	leave(&raftlog.NodeRef{Role: RoleRollout, Name: m.ref(RoleRollout).Name, Incarnation: 9})
	require.Equal(t, 3, m.s.leased.Len(), "another incarnation has nothing to give back")
	leave(m.ref(RoleRollout))
	require.Zero(t, m.s.leased.Len())
	require.Empty(t, m.r().Failures, "leaving in order is nobody's failure")
	require.Equal(t, raftlog.Code_CODE_FENCED, m.register(RoleRollout, "rollout-1", 1).Code)
	require.Equal(t, raftlog.Code_CODE_OK, m.register(RoleRollout, "rollout-1", 2).Code)
	m.lease(3)
}

func TestHostsShareReservations(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.GroupsPerStep = 8 })
	reg := func(name string, incarnation uint64, agents int32) {
		m.ok(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: &raftlog.NodeRef{Role: RoleHost, Name: name, Incarnation: incarnation}, Agents: agents, Verifiers: 1}}})
	}
	reg("host-1", 2, 2)
	reg("host-2", 1, 4)
	count := map[string]int{}
	grants := m.lease(6)
	for _, g := range grants {
		count[g.Host]++
	}
	require.Equal(t, map[string]int{"host-1": 2, "host-2": 4}, count)
	r := m.leaseResult(1)
	require.Empty(t, r.Grants)
	require.Equal(t, "a free sandbox", r.WaitsFor)
	require.Zero(t, m.s.Work(m.run).Episodes, "nothing can be leased")

	reg("host-2", 2, 4) // its process restarted: reservations live until their holders give them back
	n, _ := m.s.nodes.Get("host/host-2")
	require.EqualValues(t, 4, n.AgentsReserved)
	require.Empty(t, m.leaseResult(1).Grants)
	for _, g := range grants[:3] {
		m.seal(g)
	}
	require.Equal(t, 3, m.s.Work(m.run).Episodes)
	require.Len(t, m.leaseResult(9).Grants, 3)
	require.Len(t, m.leaseJobs(9), 2, "one verifier sandbox on each host")
	require.Zero(t, m.s.Work(m.run).Jobs)
}

func TestHostWithNegativeRoomIsRefused(t *testing.T) {
	m := newMachine(t)
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: &raftlog.NodeRef{Role: RoleHost, Name: "h", Incarnation: 1}, Agents: -1}}})
	require.Equal(t, raftlog.Code_CODE_INVALID, r.Code)
}

func TestHostThatIsGoneTakesNoNewEpisodes(t *testing.T) {
	m := fleet(t)
	grants := m.lease(1)
	m.now += 5 * second
	for _, n := range m.s.Nodes() {
		if n.Role != RoleHost {
			m.ok(heartbeat(m.s, n))
		}
	}
	m.now += 5 * second
	m.tick()
	r := m.leaseResult(1)
	require.Empty(t, r.Grants)
	require.Equal(t, "a free sandbox", r.WaitsFor)
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(grants[0], "host_lost"))
	require.Empty(t, m.r().Failures)
	m.register(RoleHost, "host-1", 2)
	m.lease(1)
}
