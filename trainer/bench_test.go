package trainer

import (
	"testing"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// BenchmarkIntake reads and checks a batch of the example's size: 16 groups of 16
// members of 4 messages, and writes its ledger.
func BenchmarkIntake(b *testing.B) {
	s := newMemory()
	members := make([]member, 16)
	for i := range members {
		members[i] = trained(float64(i % 2))
	}
	var groups []*raftlog.BatchGroup
	for g := range uint64(16) {
		groups = append(groups, record(b, s, g, members...))
	}
	st := newTestStep(s)
	for b.Loop() {
		got, err := st.intake(b.Context(), batchOf(0, groups...))
		require.NoError(b, err)
		require.Len(b, got.samples, 256)
		_, err = st.ledger(0, 1, got)
		require.NoError(b, err)
	}
}
