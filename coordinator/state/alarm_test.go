package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (m *machine) alarm(name string) *raftlog.Alarm {
	for _, a := range m.s.Alarms(m.run) {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// What waits past its deadline, or has no owner, has a name before the run fails of it (invariant I8).
func TestOverdueRecordsRaiseAlarms(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*machine) int64 // returns since when
		wait int64
		want string
	}{
		"batch-unowned": {func(m *machine) int64 {
			g := m.join()
			m.complete(8)
			m.take(g)
			since := m.now
			m.register(RoleTrainer, "trainer-1", 2)
			return since
		}, LeaseTTL, "the batch of step 0 is assigned, and nobody has it"},
		"publish-late": {func(m *machine) int64 {
			g := m.join()
			m.complete(8)
			m.step(g)
			return m.now
		}, 120 * second, "version 1 to be published, which nobody has begun"},
		"episode-late": {func(m *machine) int64 {
			m.lease(1)
			return m.now
		}, 300 * second, "episode 1/1 to be leased; it needs a rollout worker to take it"},
		"verdict-late": {func(m *machine) int64 {
			m.seal(m.lease(1)[0])
			return m.now
		}, 300 * second, "episode 1/0 to be judged; it needs a verifier to take it"},
		"store-late": {func(m *machine) int64 { return m.now }, mirrorLate, "events are not written"},
	} {
		t.Run(name, func(t *testing.T) {
			m := fleet(t)
			since := tc.do(m)
			m.advance(tc.wait - second)
			require.Nil(t, m.alarm(name))
			m.advance(second)
			a := m.alarm(name)
			require.NotNil(t, a, "%v", m.s.Alarms(m.run))
			require.Equal(t, since, a.SinceNs)
			require.Contains(t, a.Text, tc.want)
			if name != storeAlarm {
				require.Contains(t, m.s.Why(m.run), tc.want)
			}
			m.advance(20 * second)
			require.Equal(t, a.String(), m.alarm(name).String(), "an alarm that stands does not change")
		})
	}
	m := fleet(t)
	m.advance(mirrorLate)
	m.mirrorAll()
	require.Empty(t, m.s.Alarms(m.run))
}
