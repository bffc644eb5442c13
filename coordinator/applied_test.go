package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// What a node has been handed and has not applied yet is not applied, whatever
// raft calls it; raft's own entries at the end of the log are. Who waits for a
// node to catch up would go on while it still reads its log.
func TestAppliedIsApplied(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	propose(t, n, "c", 1, registerOp("h"))
	require.NoError(t, n.raft.Barrier(time.Minute).Error())
	s := n.Status()
	require.Equal(t, s.Commit, s.Applied, "the barrier has nothing to apply")

	off, err := failpoint.Start(t.Context(), "apply.before=1*sleep(2s)")
	require.NoError(t, err)
	defer off()
	done := make(chan error, 1)
	go func() {
		_, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 2, Op: registerOp("i")})
		done <- err
	}()
	require.Eventually(t, func() bool { return n.raft.AppliedIndex() > s.Commit }, time.Minute, time.Millisecond)
	require.Equal(t, s.Commit, n.Status().Applied)
	require.NoError(t, <-done)
	require.Greater(t, n.Status().Applied, s.Commit)
}
