package bubblewrap_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

// Memory is bounded whatever kind it is of, and what several processes share
// counts once, with cgroups and without.
func TestSharedMemory(t *testing.T) {
	need(t)
	program := filepath.Join(t.TempDir(), "hold")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./testdata/hold")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	hold, err := os.ReadFile(program)
	require.NoError(t, err)
	for mode, without := range map[string]bool{"cgroups": false, "no cgroups": true} {
		t.Run(mode, func(t *testing.T) {
			rc := config(t, t.TempDir())
			rc.NoCgroups = without
			h := newHost(t, envpool.DefaultConfig(), rc)
			holdMemory(t, h, hold)
		})
	}
}

func holdMemory(t *testing.T, h envpool.Host, hold []byte) {
	ctx := context.Background()
	c := claim(files(t, h), 0)
	c.Limits = envpool.Limits{Memory: 64 << 20, Disk: 96 << 20}
	hd, err := h.Claim(ctx, c)
	require.NoError(t, err)
	require.NoError(t, h.Write(ctx, hd, "/app/hold", 0o755, hold))
	for _, c := range []struct {
		name, script string
		hit          envpool.LimitHit
	}{
		{"shared anonymous memory that fits", "/app/hold anonymous 48 1", ""},
		{"shared anonymous memory", "exec /app/hold anonymous 400 1", envpool.HitMemory},
		{"a memory file of four processes that fits", "/app/hold memfd 48 4", ""},
		{"memory files, each within the limit on a file", "for i in 1 2 3; do /app/hold memfd 80 1 & done; wait", envpool.HitMemory},
		{"a file in memory counts as disk", "/app/hold file 80 4; rm /app/held", ""},
		// The last ones: a segment stays until it is removed.
		{"a segment that fits", "/app/hold segment 32 1", ""},
		{"a segment that nobody maps", "/app/hold segment 400 1", envpool.HitMemory},
	} {
		r, err := h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", c.script}, Timeout: 30 * time.Second})
		require.NoError(t, err, c.name)
		require.Equal(t, c.hit, r.Hit, "%s: %s%s", c.name, r.Stdout, r.Stderr)
		if c.hit == "" {
			require.Equal(t, "held\n", string(r.Stdout), "%s: %s", c.name, r.Stderr)
		}
	}
	require.NoError(t, h.Release(ctx, hd))
	st, err := h.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, st.Destroyed)
}
