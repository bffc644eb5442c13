package bubblewrap_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

// The guest's runtime collects garbage when it likes, and its first timer then
// opens a poller. That must not look like something a use has left.
func TestProofOutlivesTheGuestsTimers(t *testing.T) {
	need(t)
	ctx := context.Background()
	cfg := envpool.DefaultConfig()
	cfg.WarmLow, cfg.WarmHigh = 0, 1
	h := newHost(t, cfg, config(t, t.TempDir()))
	id := files(t, h)
	var first []int
	for i := range 40 {
		hd, err := h.Claim(ctx, claim(id, i))
		require.NoError(t, err)
		if i == 0 {
			first = guests(t)
			require.Len(t, first, 1)
			if os.Geteuid() == 0 { // nobody else may look
				require.Contains(t, descriptors(t, first[0]), "anon_inode:[eventpoll]", "the poller is there before the first use")
			}
		}
		require.NoError(t, h.Write(ctx, hd, "/app/x", 0o644, make([]byte, 8<<20)))
		_, err = h.Read(ctx, hd, "/app/x", 8<<20)
		require.NoError(t, err)
		require.NoError(t, h.Release(ctx, hd))
		st, err := h.Stats(ctx)
		require.NoError(t, err)
		require.Zero(t, st.Destroyed, "after use %d", i)
	}
	require.Equal(t, first, guests(t), "one sandbox served all uses")
}

// descriptors says what a process has open.
func descriptors(t *testing.T, pid int) []string {
	t.Helper()
	entries, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink(e); err == nil {
			out = append(out, to)
		}
	}
	slices.Sort(out)
	require.NotEmpty(t, strings.Join(out, ""))
	return out
}
