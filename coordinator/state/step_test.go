package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func ids(b *raftlog.TakeBatchResult) []uint64 {
	var out []uint64
	for _, g := range b.Groups {
		out = append(out, g.Group)
	}
	return out
}

func TestJoinGang(t *testing.T) {
	m := fleet(t)
	first := m.join()
	require.EqualValues(t, 1, first.Epoch)
	require.Equal(t, "m0", first.Manifest)
	require.EqualValues(t, 2, m.join().Epoch, "a trainer that joins again fences what it was")
	m.register(RoleTrainer, "trainer-2", 1)
	r := m.joinResult()
	require.Equal(t, raftlog.Code_CODE_CONFLICT, r.Code)
	require.Contains(t, r.Message, "trainer-1 holds it")
	m.run = "none"
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.joinResult().Code)
	m.run = "r"
	m.register(RoleRollout, "w", 1)
	m.nodes[RoleTrainer] = m.ref(RoleRollout)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.joinResult().Code, "only trainers")
}

// A gang that comes back gets the same batch; the lost one can commit nothing.
func TestGangComesBackToTheSameBatch(t *testing.T) {
	for name, lose := range map[string]func(*machine){
		"re-registered":   func(m *machine) { m.register(RoleTrainer, "trainer-1", 2) },
		"lease ran out":   func(m *machine) { m.advance(LeaseTTL, "gang/r") },
		"left in order":   func(m *machine) { m.leave(RoleTrainer); m.register(RoleTrainer, "trainer-1", 2) },
		"node ran out":    func(m *machine) { m.now += LeaseTTL; m.registerFresh() },
		"another took it": func(m *machine) { m.leave(RoleTrainer); m.register(RoleTrainer, "trainer-2", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t)
			old, oldRef := m.join(), m.ref(RoleTrainer)
			m.complete(8)
			b := m.take(old)
			require.True(t, b.Ready)
			lose(m)
			fenced := m.apply(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
				Node: oldRef, Run: m.run, Epoch: old.Epoch, Fence: old.Fence, Step: 0, Manifest: "m1", Ledger: "l",
			}}})
			require.Equal(t, raftlog.Code_CODE_FENCED, fenced.Code)
			g := m.join()
			require.Equal(t, old.Epoch+1, g.Epoch)
			require.Greater(t, g.Fence, old.Fence)
			// Even before it took the batch, the new gang is the only one that can commit it.
			require.Equal(t, raftlog.Code_CODE_FENCED, m.commitAs(g, 0, "m1").Code, "it has not seen the batch")
			again := m.take(g)
			require.Equal(t, ids(b), ids(again))
			require.Equal(t, b.Groups, again.Groups, "the same members, attempts and verdicts")
			require.Equal(t, raftlog.Code_CODE_FENCED, m.commitAs(old, 0, "m1").Code)
			m.commit(g, 0)
		})
	}
}

func (m *machine) leave(role string) {
	m.ok(&raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: m.ref(role)}}})
}

func TestCommitStep(t *testing.T) {
	m := fleet(t)
	g := m.join()
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.commitAs(g, 0, "m1").Code, "nothing is assigned")
	m.complete(8)
	b := m.take(g)
	require.Equal(t, []uint64{1, 2}, ids(b))
	require.Equal(t, raftlog.Code_CODE_INVALID, m.commitAs(g, 0, "").Code)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.commitAs(g, 1, "m1").Code)
	wrong := proto.CloneOf(g)
	wrong.Fence++
	require.Equal(t, raftlog.Code_CODE_FENCED, m.commitAs(wrong, 0, "m1").Code)
	m.commit(g, 0)

	before := m.s.Fork()
	m.commit(g, 0)
	require.Empty(t, changes(before, m.s), "a repeat of the same commit is its first answer")
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.commitAs(g, 0, "other").Code)
	require.EqualValues(t, 1, m.r().Head)
	require.Equal(t, raftlog.VersionState_VERSION_STATE_COMMITTED, m.version(1).State)
	require.Equal(t, "m1", m.version(1).Manifest)
	for _, id := range ids(b) {
		require.Equal(t, raftlog.GroupState_GROUP_STATE_CONSUMED, m.group(id).State)
		require.Zero(t, m.group(id).Step)
	}
	require.EqualValues(t, 4, m.r().Counters.MembersConsumed)
	ev := events(m.s, func(e *raftlog.Event) *raftlog.StepCommitted { return e.GetStepCommitted() })
	require.Len(t, ev, 1)
	require.Equal(t, []uint64{1, 2}, ev[0].Groups)
	require.Equal(t, []uint64{3, 4}, ids(m.take(g)), "never the same groups again")
}

// The earliest deadlines go first, and a batch waits for a slow group that no later step may train.
func TestBatchWaitsForWhatIsDue(t *testing.T) {
	m := fleet(t) // S = 1, B = 2: step 0 and step 1 must train the four groups of version 0
	g := m.join()
	grants := m.lease(8)
	finish := func(id uint64) {
		for _, x := range grants {
			if x.Group == id {
				m.seal(x)
			}
		}
		m.judge(1)
	}
	b := m.take(g)
	require.Equal(t, "groups: 0 of 2 complete", b.WaitsFor)
	finish(3)
	require.Contains(t, m.take(g).WaitsFor, "1 of 2")
	finish(4)
	require.Equal(t, []uint64{3, 4}, ids(m.step(g)))
	m.publishNow()
	grants = append(grants, m.lease(4)...) // groups 5 and 6, due at step 2
	finish(5)
	finish(6)
	require.Contains(t, m.take(g).WaitsFor, "2 slow groups that step 1 must still train")
	finish(1)
	require.Contains(t, m.take(g).WaitsFor, "slow groups")
	finish(2)
	require.Equal(t, []uint64{1, 2}, ids(m.step(g)))
	require.Equal(t, []uint64{5, 6}, ids(m.step(g)))
	require.EqualValues(t, 1, m.r().Counters.MaxLag)
	require.Zero(t, m.r().Counters.Stale+m.r().Counters.Straggler)
}

func TestBatchDeadlineDropsStragglers(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.EpisodeDeadlineNs = 0 })
	g := m.join()
	grants := m.lease(8)
	for _, x := range grants[4:] {
		m.seal(x)
	}
	m.judge(1)
	m.step(g) // groups 3 and 4
	m.publishNow()
	for _, x := range m.lease(4) {
		m.seal(x)
	}
	m.judge(1)
	require.False(t, m.take(g).Ready)
	tasks := []int32{m.group(1).Task, m.group(2).Task}
	m.advance(590 * second)
	require.False(t, m.take(g).Ready)
	m.advance(15 * second)
	for _, id := range []uint64{1, 2} {
		require.Equal(t, raftlog.GroupState_GROUP_STATE_DROPPED, m.group(id).State)
		require.Contains(t, m.group(id).Reason, "straggler")
	}
	require.EqualValues(t, 2, m.r().Counters.Straggler)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(grants[0], sealed("stop", 0, 0)))
	require.True(t, m.take(g).Ready)
	again := m.lease(4)
	require.Equal(t, tasks, []int32{again[0].Task, again[2].Task}, "their tasks come back")
	require.EqualValues(t, 1, m.group(again[0].Group).Requeued)
}

// A batch that is late because everything is slow loses no more than its size.
func TestBatchDeadlineDropsNoMoreThanItMust(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.EpisodeDeadlineNs, c.NoProgressNs = 2, 0, 0 })
	g := m.join()
	m.lease(12)
	require.False(t, m.take(g).Ready)
	m.advance(600 * second)
	require.EqualValues(t, 2, m.r().Counters.Straggler, "one batch of six groups")
	require.Len(t, ended(m.s), 2)
	require.EqualValues(t, 1, ended(m.s)[0].Group)
	require.Len(t, m.leaseResult(9).Grants, 4, "and it is replaced")
}

// The wait for a batch is timed from the last commit, also when nobody asks for it.
func TestBatchDeadlineWithoutATrainerAsking(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.EpisodeDeadlineNs = 0, 0 })
	m.join()
	grants := m.lease(4)
	m.seal(grants[0])
	m.seal(grants[1])
	m.judge(1)
	m.advance(600 * second)
	require.EqualValues(t, 1, m.r().Counters.Straggler)
	require.EqualValues(t, 2, ended(m.s)[0].Group)
}

// A member's second life can leave a group behind the bound; it is never assigned.
func TestStaleGroupIsNeverAssigned(t *testing.T) {
	for name, tc := range map[string]struct {
		requeue bool
	}{"requeue": {true}, "drop": {false}} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.Steps, c.RequeueStale = 1, 9, tc.requeue })
			g := m.join()
			m.complete(8)
			m.step(g)
			m.publishNow()
			grants := m.lease(4)
			m.step(g)
			m.publishNow()
			grants = append(grants, m.lease(4)...)
			// An engine that was not switched gave group 5 tokens of version 0, two behind step 2.
			for i, x := range grants {
				v := x.Live
				if i == 0 {
					v = 0
				}
				require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(x, sealed("stop", v, x.Live)))
			}
			m.judge(1)
			require.EqualValues(t, 2, m.r().Head)
			w := m.s.Work(m.run)
			b := m.take(g)
			require.Equal(t, w.Batch, b.Ready)
			require.True(t, b.Ready)
			require.NotContains(t, ids(b), uint64(5))
			require.Equal(t, raftlog.GroupState_GROUP_STATE_DROPPED, m.group(5).State)
			require.Contains(t, m.group(5).Reason, "stale")
			require.EqualValues(t, 1, m.r().Counters.Stale)
			require.Equal(t, tc.requeue, len(m.r().Requeues) == 1)
		})
	}
}

func TestTakeBatchFencing(t *testing.T) {
	m := fleet(t)
	g := m.join()
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: m.ref(RoleTrainer), Run: "none"}}})
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, r.Code)
	r = m.apply(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: m.ref(RoleTrainer), Run: m.run, Epoch: g.Epoch, Fence: g.Fence + 1}}})
	require.Equal(t, raftlog.Code_CODE_FENCED, r.Code)
	m.control("cancel", "")
	require.True(t, m.take(g).Ended)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.joinResult().Code)
}
