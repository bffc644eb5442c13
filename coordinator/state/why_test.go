package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*machine)
		want string
	}{
		"nothing there": {func(m *machine) { m.run = "none" }, `There is no run "none".`},
		"nobody there": {func(m *machine) { m.create(config()) }, "Run r is at step 0 of 3 (live version -1). It waits for an engine: none is ready; an environment host: none is ready; " +
			"a rollout worker: none is ready; a verifier: none is ready; a trainer: none is ready; a publisher: none is ready. Last progress 0s ago: created."},
		"first publish": {func(m *machine) { m.registerAll(); m.create(config()) }, "It waits for version 0 to be published. Last"},
		"episodes": {
			func(m *machine) { m.live(); m.lease(3); m.advance(7 * second) },
			"It waits for episodes (1 queued, 3 acting, 0 to judge, 0 being judged); the oldest is 1/0, leased 7s ago, waiting for model. Last progress 7s ago: version 0 went live.",
		},
		"an attempt after one that failed": {
			func(m *machine) { m.live(); m.failEpisode(m.lease(1)[0], "env_crash"); m.lease(4) },
			"the oldest is 1/0, leased 0s ago, waiting for start (attempt 2; the one before ended with env_crash: ",
		},
		"verdicts": {func(m *machine) { m.live(); m.seal(m.lease(1)[0]) }, "(1 queued, 0 acting, 1 to judge, 0 being judged). Last"},
		"a batch": {func(m *machine) {
			m.live()
			m.take(m.join())
			m.complete(8)
			m.take(&raftlog.JoinGangResult{Epoch: 1, Fence: m.s.Gang("r").Lease.Fence})
		}, "the trainer to commit step 0, assigned 0s ago"},
		"a batch that nobody took": {func(m *machine) { m.live(); m.complete(8) }, "It waits for the trainer to take the batch of step 0. Last"},
		"a publication": {func(m *machine) {
			m.live()
			g := m.join()
			m.complete(8)
			m.step(g)
			m.step(g)
			m.leasePublish()
			m.advance(5 * second)
		}, "It waits for version 2 to be published, which publisher-1 began 5s ago. Last progress 5s ago: step 1 was committed."},
		"paused":              {func(m *machine) { m.live(); m.control("pause", "lunch"); m.advance(60 * second) }, "Run r is paused for 1m0s: lunch. Continue it with: rlctl runs resume r"},
		"paused, no words":    {func(m *machine) { m.live(); m.control("pause", "") }, "Run r is paused for 0s. Continue it with: rlctl runs resume r"},
		"cancelled":           {func(m *machine) { m.live(); m.control("cancel", "enough") }, "Run r was cancelled: enough."},
		"cancelled, no words": {func(m *machine) { m.live(); m.control("cancel", "") }, "Run r was cancelled."},
		"failed":              {func(m *machine) { m.live(); m.control("fail", "disk full") }, "Run r has failed: disk full."},
		"succeeded": {func(m *machine) {
			m.live()
			g := m.join()
			m.complete(8)
			m.step(g)
			m.step(g)
			m.publishNow()
			m.complete(4)
			m.step(g)
		}, "Run r has succeeded: 3 steps committed."},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			tc.do(m)
			require.Contains(t, m.s.Why(m.run), tc.want)
		})
	}
}

func (m *machine) live() {
	m.registerAll()
	m.create(config())
	m.publishNow()
}

// An alarm about the quality of a run is no reason why it waits.
func TestMaskedIsAnAlarmButNoWait(t *testing.T) {
	m := fleet(t)
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(m.lease(1)[0], sealed("max_tokens", 0, 0)))
	m.judge(0)
	a := m.s.Alarms(m.run)
	require.Len(t, a, 1)
	require.Equal(t, "masked", a[0].Name)
	require.Contains(t, a[0].Text, "1 of 1")
	require.Contains(t, m.s.Why(m.run), "It waits for episodes")
}

func TestWork(t *testing.T) {
	m := newMachine(t)
	require.Equal(t, Work{}, m.s.Work("r"))
	m.create(config())
	require.Equal(t, Work{State: "running"}, m.s.Work("r"), "nobody could publish: no engine")
	m.registerAll()
	require.Equal(t, Work{State: "running", Publish: true}, m.s.Work("r"))
	m.publishNow()
	require.Equal(t, Work{State: "running", Episodes: 8}, m.s.Work("r"))
	g := m.join()
	grants := m.lease(8)
	require.Equal(t, Work{State: "running"}, m.s.Work("r"))
	m.seal(grants[0])
	require.Equal(t, Work{State: "running", Jobs: 1}, m.s.Work("r"))
	for _, x := range grants[1:] {
		m.seal(x)
	}
	m.judge(1)
	require.Equal(t, Work{State: "running", Batch: true}, m.s.Work("r"))
	m.step(g)
	require.Equal(t, Work{State: "running", Batch: true, Publish: true}, m.s.Work("r"))
	m.control("pause", "")
	require.Equal(t, Work{State: "paused"}, m.s.Work("r"))
	m.control("cancel", "")
	require.Equal(t, Work{State: "cancelled"}, m.s.Work("r"))
}

func TestReads(t *testing.T) {
	m := busy(t)
	require.Len(t, m.s.Runs(), 1)
	require.Len(t, m.s.Nodes(), 6)
	require.Len(t, m.s.Versions("r"), 2)
	require.Len(t, m.s.Steps("r"), 2)
	require.NotEmpty(t, m.s.Groups("r"))
	require.Nil(t, m.s.Gang("none"))
	require.Empty(t, m.s.Groups("none"))
	require.Nil(t, m.s.Run("none"))
	require.Nil(t, m.s.Alarms("none"))
	m.run = "r2" // a name that begins with another run's
	m.create(config())
	require.Len(t, m.s.Versions("r2"), 1)
	require.Len(t, m.s.Versions("r"), 2)
}
