package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Tests named after public reports on control planes; issues_test.go has those on training.

// A worker whose lease was given to another writes its result late: it is refused and changes nothing.
func TestAegra502_LateTerminalWriteIsRefused(t *testing.T) {
	for name, late := range map[string]func(*machine, *raftlog.EpisodeGrant) raftlog.Code{
		"seal": func(m *machine, g *raftlog.EpisodeGrant) raftlog.Code { return m.sealAs(g, sealed("stop", 0, 0)) },
		"fail": func(m *machine, g *raftlog.EpisodeGrant) raftlog.Code { return m.failEpisode(g, "env_crash") },
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t)
			g := m.lease(1)[0]
			m.advance(2*LeaseTTL, lease.Episode(g.Run, g.Group, g.Index)) // it does not renew
			again := m.lease(1)[0]
			require.Equal(t, []any{g.Group, g.Index, g.Attempt + 1}, []any{again.Group, again.Index, again.Attempt})
			require.Greater(t, again.Fence, g.Fence)
			before := m.s.Fork()
			require.Equal(t, raftlog.Code_CODE_FENCED, late(m, g))
			require.Empty(t, changes(before, m.s))
			m.seal(again)
			require.Equal(t, raftlog.Code_CODE_FENCED, late(m, g), "nor after the result")
			require.EqualValues(t, 2, m.episode(g.Group, g.Index).Attempt)
		})
	}
}

// An operation whose outcome is unknown is repeated to the next leader, after a
// fail-over and from a snapshot, and may be in the log twice: it is carried out
// once, and both answers are the first. So does what a deposed leader had on its way.
func TestEtcd18424_Curvine676_Summitdb5_RetryAcrossLeadersAppliesOnce(t *testing.T) {
	m := fleet(t)
	p := &raftlog.Proposal{Client: "worker", Seq: 7, Op: &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: m.ref(RoleRollout), Run: m.run, Count: 2}}}}
	first := m.propose(p)
	require.Len(t, first.GetLeaseEpisodes().Grants, 2)
	for range 3 {
		m.term++
		m.now += 5 * second
		m.s = restored(t, m.s)
		before := m.s.Fork()
		require.True(t, proto.Equal(first, m.propose(p)))
		require.Empty(t, changes(before, m.s))
	}
	res := m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: m.term - 1, Proposals: []*raftlog.Proposal{p, p}})
	require.True(t, proto.Equal(first, res[0]) && proto.Equal(first, res[1]))
	require.Equal(t, 2, m.s.counts[m.run].leased)
	p.Seq--
	require.Equal(t, raftlog.Code_CODE_STALE_SEQ, m.propose(p).Code, "one of the past is refused")
}

// Any order of claims and ends, with fewer sandboxes than claims: each sandbox has at most one episode, and each end frees one.
func TestAgentSandbox418_OneSandboxOneEpisode(t *testing.T) {
	const claims, room = 4, 2
	for order := range 1 << (2 * claims) { // bit by bit: claim or end
		m := newMachine(t)
		m.registerAll()
		host := &raftlog.NodeRef{Role: RoleHost, Name: "host-1", Incarnation: 2}
		m.ok(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: host, Address: "h:1", Agents: room, Verifiers: 1}}})
		m.create(config())
		m.publishNow()
		var open []*raftlog.EpisodeGrant
		for i := range 2 * claims {
			if order>>i&1 == 0 {
				got := m.leaseResult(1).Grants
				require.Equal(t, len(open) < room, len(got) == 1, "order %b", order)
				open = append(open, got...)
			} else if len(open) > 0 {
				m.seal(open[0])
				open = open[1:]
			}
			n, _ := m.s.nodes.Get(nodeKey(RoleHost, "host-1"))
			require.EqualValues(t, len(open), n.AgentsReserved)
		}
	}
}

// Two gangs want two runs in opposite orders: each run has one gang or none,
// whoever is refused holds nothing of it, and when one lets go the other gets it.
func TestVolcano6010_GangsNeverHoldHalf(t *testing.T) {
	m := fleet(t)
	a := m.ref(RoleTrainer)
	m.register(RoleTrainer, "trainer-2", 1)
	b := m.ref(RoleTrainer)
	m.run = "r2"
	m.create(config())
	join := func(ref *raftlog.NodeRef, run string) *raftlog.Result {
		return m.apply(&raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: ref, Run: run}}})
	}
	require.Equal(t, raftlog.Code_CODE_OK, join(a, "r").Code)
	require.Equal(t, raftlog.Code_CODE_OK, join(b, "r2").Code)
	for _, x := range []struct {
		ref *raftlog.NodeRef
		run string
	}{{a, "r2"}, {b, "r"}} {
		r := join(x.ref, x.run)
		require.Equal(t, raftlog.Code_CODE_CONFLICT, r.Code)
		require.Contains(t, r.Message, "has a gang")
	}
	m.ok(&raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: a}}})
	require.Equal(t, raftlog.Code_CODE_OK, join(b, "r").Code, "one of them goes, the other goes on")
	require.Equal(t, "trainer-2", m.s.Gang("r").Lease.Holder)
}

// A trainer that dies at any point, with a coordinator that starts from its
// snapshot, restarts no count: the bound holds, and each batch is trained once.
func TestAReaL1388_StalenessHoldsAcrossTrainerDeaths(t *testing.T) {
	for _, lag := range []int32{0, 1, 2} {
		m := newMachine(t)
		m.watch = newOracle(t, m.run)
		m.registerAll()
		m.create(config(func(c *raftlog.RunConfig) { c.LagMax, c.Steps = lag, 5 }))
		m.publishNow()
		die := func(life uint64) *raftlog.JoinGangResult {
			m.s = restored(t, m.s)
			require.Equal(t, raftlog.Code_CODE_OK, m.register(RoleTrainer, "trainer-1", life).Code)
			return m.join()
		}
		for n := range int64(5) {
			for len(m.leaseSome()) > 0 {
				m.judge(1)
			}
			g := die(uint64(10*n + 2))
			b := m.take(g)
			require.True(t, b.Ready, b.WaitsFor)
			next := die(uint64(10*n + 3))
			require.Equal(t, ids(b), ids(m.take(next)), "the same batch")
			require.Equal(t, raftlog.Code_CODE_FENCED, m.commitAs(g, n, "of the dead").Code)
			m.commit(next, n)
			if n < 4 {
				die(uint64(10*n + 4)) // before it knows that it was committed
				require.EqualValues(t, n+1, m.join().Head)
				m.publishNow()
			}
		}
		require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
		require.LessOrEqual(t, m.r().Counters.MaxLag, int64(lag))
		require.EqualValues(t, 10, m.r().Counters.GroupsConsumed)
		m.watch.done(m.s)
	}
}

// leaseSome leases what there is and seals it.
func (m *machine) leaseSome() []*raftlog.EpisodeGrant {
	grants := m.leaseResult(64).Grants
	for _, g := range grants {
		m.seal(g)
	}
	return grants
}

// An election that is shorter than the TTL loses no lease, even of holders whose renewals failed meanwhile.
func TestConsul912_ShortElectionLosesNoLease(t *testing.T) {
	for secs := int64(1); secs < 10; secs += 2 {
		t.Run(fmt.Sprint(secs), func(t *testing.T) {
			m := busy(t)
			m.beat()
			leased := m.s.leased.Len() + m.s.judged.Len()
			m.now += secs * second
			m.term++
			m.tick()
			m.now += 9 * second // the clients' back-off
			m.tick()
			m.beat()
			m.advance(3 * LeaseTTL)
			require.Equal(t, leased, m.s.leased.Len()+m.s.judged.Len())
		})
	}
}

// A snapshot of a cluster with high terms goes into one whose terms are low: its leader's housekeeping counts.
func TestCamunda14509_RestoredStateFollowsTheNewTerms(t *testing.T) {
	m := busy(t)
	m.term = 900
	m.tick()
	m.s, m.term = m.s.Reborn("c2", 1), 2
	m.ok(&raftlog.Op{Op: &raftlog.Op_Tick{}})
	require.EqualValues(t, 2, m.s.Clock().Term)
}
