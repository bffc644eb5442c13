package robustness

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// rqlite/rqlite#2759: a restore that failed midway left nodes that differed.
// The leader is killed when it has received a snapshot, and when it has it as
// its state and nobody was told. The cluster goes on with the one state or the
// other, the same on every node; the restore is repeated, and then it is the
// snapshot's, with fences above all that were ever issued.
func TestRqlite2759_RestoreKilledMidway(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves out what builds programs")
	}
	r := newRun(t)
	ctx := t.Context()
	c, err := newCluster(ctx, r.dir, filepath.Join(r.dir, "store"), r.programs, 3, r.seed)
	defer func() { require.NoError(t, c.close()) }()
	require.NoError(t, err)
	n := &nemesis{c: c}
	cl, err := c.dial("writer")
	require.NoError(t, err)
	defer cl.Close()
	highest := uint64(0)
	write := func(name string) {
		limit, cancel := context.WithTimeout(ctx, wellLimit)
		defer cancel()
		res, err := cl.Register(limit, &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: name, Incarnation: uint64(time.Now().UnixNano())}})
		require.NoError(t, err)
		require.Greater(t, res.Fence, highest, "fences rise, whatever was restored")
		highest = res.Fence
	}
	names := func() (map[string]bool, uint64) {
		require.NoError(t, c.well(ctx))
		records, err := r.same(ctx, c)
		require.NoError(t, err)
		have, epoch := map[string]bool{}, uint64(0)
		for _, rec := range records {
			if x := rec.GetNode(); x != nil {
				have[x.Name] = true
			}
			epoch = max(epoch, rec.GetClock().GetEpoch())
		}
		return have, epoch
	}
	saved := filepath.Join(r.dir, "saved")
	write("before")
	_, err = c.rlctl(ctx, "cluster", "snapshot", "save", saved)
	require.NoError(t, err)
	for i, point := range []string{"restore.before", "restore.after"} {
		after := fmt.Sprint("after-", i)
		write(after)
		_, was := names()
		m := n.leader(ctx)
		require.NoError(t, m.arm(point+"=kill"))
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := c.rlctl(limit, "cluster", "snapshot", "restore", saved) // its leader dies over it; what it says depends on when
		cancel()
		require.True(t, m.waitEnd(time.Second), "%s was not passed: %v", point, err)
		have, epoch := names()
		require.True(t, have["before"])
		if epoch == was {
			require.True(t, have[after], "nothing was restored, and an acknowledged write is gone")
		}
		temporary, err := filepath.Glob(filepath.Join(m.disk.data(), "restore-*"))
		require.NoError(t, err)
		require.Empty(t, temporary, "what a restore left is removed at the next start")

		write("again-" + after)
		limit, cancel = context.WithTimeout(ctx, wellLimit)
		require.NoError(t, c.try(limit, "cluster", "snapshot", "restore", saved))
		cancel()
		have, epoch = names()
		require.Greater(t, epoch, was)
		require.True(t, have["before"])
		require.False(t, have[after] || have["again-"+after], "the state is the snapshot's")
		write("new-" + after)
	}
	for _, m := range c.machines {
		require.Empty(t, m.crashed())
	}
}
