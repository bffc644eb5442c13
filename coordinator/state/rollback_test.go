package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (m *machine) rollback(to int64) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_Rollback{Rollback: &raftlog.Rollback{Run: m.run, To: to, Reason: "the trainer is gone"}}})
}

// commitPartial commits a step whose checkpoint has weights only.
func (m *machine) commitPartial(g *raftlog.JoinGangResult, step int64) {
	m.t.Helper()
	r := m.apply(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
		Node: m.ref(RoleTrainer), Run: m.run, Epoch: g.Epoch, Fence: g.Fence, Step: step, Manifest: "weights", Ledger: "ledger",
	}}})
	require.Equal(m.t, raftlog.Code_CODE_OK, r.Code, r.Message)
}

// deep is a run at head 3 and live 0: versions 1 and 3 are weights only, 2 is
// full, the batch of step 3 is assigned. It returns the batches in order.
func deep(t tester) (*machine, *raftlog.JoinGangResult, [][]uint64) {
	m := newMachine(t)
	m.watch = newOracle(t, m.run)
	m.registerAll()
	m.create(config(func(c *raftlog.RunConfig) { c.LagMax, c.Steps, c.PublishEvery = 4, 8, 4 }))
	m.publishNow()
	g := m.join()
	m.complete(16)
	var batches [][]uint64
	for n := range int64(4) {
		b := m.take(g)
		require.True(t, b.Ready, b.WaitsFor)
		batches = append(batches, ids(b))
		switch n {
		case 0, 2:
			m.commitPartial(g, n)
		case 1:
			m.commit(g, n)
		}
	}
	m.mirrorAll()
	return m, g, batches
}

func TestRollbackTrainsTheSameBatchesAgain(t *testing.T) {
	for _, to := range []int64{2, 0} {
		m, old, batches := deep(t)
		was := m.r()
		require.Equal(t, raftlog.Code_CODE_OK, m.rollback(to).Code)
		r := m.r()
		require.Equal(t, to, r.Head)
		require.Equal(t, was.Lineage+1, r.Lineage)
		require.Equal(t, was.Live, r.Live, "engines keep serving")
		require.EqualValues(t, 1, r.Counters.Rollbacks)
		require.Equal(t, 2*to, r.Counters.GroupsConsumed)
		require.Equal(t, 4*to, r.Counters.MembersConsumed)
		require.Equal(t, raftlog.Code_CODE_FENCED, m.commitAs(old, 3, "late").Code, "the gang of the old lineage is over")
		for v := to + 1; v <= 3; v++ {
			require.Equal(t, raftlog.VersionState_VERSION_STATE_SUPERSEDED, m.version(v).State)
		}
		g := m.join()
		require.Equal(t, to, g.Head)
		require.Equal(t, m.version(to).Manifest, g.Manifest)
		require.Equal(t, r.Lineage, g.Lineage)
		for n := to; n < 4; n++ {
			b := m.take(g)
			require.True(t, b.Ready, b.WaitsFor)
			require.Equal(t, n, b.Step)
			require.Equal(t, batches[n], ids(b), "step %d", n)
			require.Len(t, b.Groups[0].Members, 2)
			m.commit(g, n)
			require.Equal(t, r.Lineage, m.version(n+1).Lineage)
			st, _ := m.s.steps.Get(numberKey(m.run, n))
			require.Equal(t, r.Lineage, st.Lineage)
		}
		require.EqualValues(t, 8, m.r().Counters.GroupsConsumed)
		require.EqualValues(t, 4, m.r().Head)
		m.publishNow()
		m.complete(16)
		for range 4 {
			m.step(g)
		}
		require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, m.r().State)
		m.watch.done(m.s)
	}
}

// The newest full version may be older than what engines serve: nothing is
// admitted from weights of a lineage that is gone until theirs is live again.
func TestRollbackBelowLive(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.Steps = 1, 6 })
	g := m.join()
	m.complete(4)
	m.take(g)
	m.commit(g, 0)
	m.publishNow()
	m.complete(4)
	b := m.take(g)
	m.commitPartial(g, 1)
	m.publishNow()
	m.mirrorAll()
	late := m.lease(1)[0]
	require.EqualValues(t, 2, m.r().Live)

	require.Equal(t, raftlog.Code_CODE_OK, m.rollback(1).Code)
	require.EqualValues(t, 1, m.r().Head)
	require.EqualValues(t, 2, m.r().Live)
	admitted := m.r().Counters.GroupsAdmitted
	for range m.s.Work(m.run).Episodes {
		m.lease(1)
	}
	require.Contains(t, m.leaseResult(1).WaitsFor, "after the rollback nothing is admitted until version 2 is live again")
	require.Equal(t, admitted, m.r().Counters.GroupsAdmitted)
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(late, sealed("stop", 2, 2)), "its version did exist")

	g = m.join()
	again := m.take(g)
	require.Equal(t, ids(b), ids(again))
	require.False(t, m.leasePublish().Ready, "version 2 is not there yet")
	m.commitAs(g, 1, "made anew")
	p := m.leasePublish()
	require.True(t, p.Ready, p.WaitsFor)
	require.EqualValues(t, 2, p.Version)
	require.Equal(t, "made anew", p.Manifest)
	require.Equal(t, raftlog.Code_CODE_OK, m.finishPublish(p, true, "", "engine-1").Code)
	require.NotEmpty(t, m.leaseResult(1).Grants)
	require.Greater(t, m.r().Counters.GroupsAdmitted, admitted)
	m.complete(1)
}

// Batches stay for as long as something could need them, and no longer.
func TestRollbackKeepsWhatItNeeds(t *testing.T) {
	m, g, batches := deep(t)
	for n, b := range batches {
		for _, id := range b {
			require.NotNil(t, m.group(id), "group %d of step %d", id, n)
		}
	}
	m.commit(g, 3)
	m.mirrorAll()
	require.NotNil(t, m.group(batches[0][0]), "live is still 0")
	require.EqualValues(t, 0, m.s.keptFrom(m.r()))
	m.publishNow() // version 4, full
	require.Empty(t, m.s.Groups(m.run), "nobody goes back behind a full version that is live")
	require.Contains(t, m.rollback(2).Message, "no longer kept")

	m, _, batches = deep(t)
	m.control("cancel", "")
	m.mirrorAll()
	require.Empty(t, m.s.Groups(m.run), "an ended run needs nothing")
	require.Len(t, batches, 4)
}

func TestRollbackRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		to   int64
		do   func(*machine)
		want string
	}{
		"to head":             {3, nil, "its newest version is 3"},
		"above head":          {9, nil, "its newest version is 3"},
		"below 0":             {-1, nil, "its newest version is 3"},
		"weights only":        {1, nil, "no full checkpoint"},
		"an ended run":        {2, func(m *machine) { m.control("cancel", "") }, "it has ended: cancelled"},
		"twice":               {2, func(m *machine) { m.rollback(2) }, "its newest version is 2"},
		"a superseded target": {2, func(m *machine) { m.rollback(0) }, "its newest version is 0"},
		"a rejected target": {2, func(m *machine) {
			m.s.setVersion(m.run, 2, raftlog.VersionState_VERSION_STATE_REJECTED, "probes")
		}, "no full checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, _ := deep(t)
			if tc.do != nil {
				tc.do(m)
			}
			r := m.rollback(tc.to)
			require.Equal(t, raftlog.Code_CODE_CONFLICT, r.Code)
			require.Contains(t, r.Message, tc.want)
		})
	}
	m := newMachine(t)
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.rollback(0).Code)
}

// Whoever publishes a superseded version finds that it does not hold it any more.
func TestRollbackFencesThePublisher(t *testing.T) {
	m, g, _ := deep(t)
	m.commit(g, 3)
	p := m.leasePublish()
	require.EqualValues(t, 4, p.Version)
	require.Equal(t, raftlog.Code_CODE_OK, m.rollback(2).Code)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.finishPublish(p, true, "", "engine-1").Code)
	require.EqualValues(t, 0, m.r().Live)
}

// What was measured of a superseded version says nothing of the one that takes its number.
func TestRollbackEvaluatesAnew(t *testing.T) {
	m := fleet(t, suite(1, 1), func(c *raftlog.RunConfig) {
		c.LagMax, c.Steps = 1, 4
		stop := 0.9
		c.StopEvalReward = &stop
	})
	g := m.join()
	m.evaluate(0.5)
	m.complete(8)
	m.step(g)
	require.True(t, m.take(g).Ready)
	m.evaluate(1)
	require.True(t, m.r().Stopping, "it ends with the batch that is out")
	require.Equal(t, "1 1", m.r().Best)
	require.Equal(t, raftlog.Code_CODE_OK, m.rollback(0).Code)
	require.False(t, m.r().Stopping)
	require.Equal(t, "0 0.5", m.r().Best)
	require.Len(t, m.s.Evals(m.run), 1)
}
