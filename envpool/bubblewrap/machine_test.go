package bubblewrap_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/policy"
)

func TestGuestIsSmall(t *testing.T) {
	f, err := guestFile()
	require.NoError(t, err)
	st, err := os.Stat(f)
	require.NoError(t, err)
	require.LessOrEqual(t, st.Size(), int64(5<<20))
}

func TestCheckNamesTheCommand(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := bubblewrap.Check()
	require.ErrorContains(t, err, "run: apt-get install -y bubblewrap")
	require.ErrorIs(t, err, envpool.ErrEnvironment)
	_, err = bubblewrap.New(bubblewrap.DefaultConfig(t.TempDir()))
	require.ErrorContains(t, err, "run: apt-get install -y bubblewrap")
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  bubblewrap.Config
		says string
	}{
		"relative":   {bubblewrap.DefaultConfig("data"), "is not absolute"},
		"root's uid": {bubblewrap.Config{DataDir: t.TempDir()}, "UIDBase 0"},
		"no guest":   {bubblewrap.Config{DataDir: t.TempDir(), UIDBase: 1, Bwrap: "/bin/true", Guest: "/no/rlguest"}, "/no/rlguest"},
	} {
		_, err := bubblewrap.New(c.cfg)
		require.ErrorContains(t, err, c.says, name)
	}
}

// A bwrap that does not work says why, in the error and not only in a log.
func TestBrokenBwrap(t *testing.T) {
	need(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "bwrap")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho 'bwrap: no permissions to create new namespace' >&2\nexit 1\n"), 0o755))
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	c := config(t, filepath.Join(dir, "data"))
	c.Bwrap = script
	cfg := envpool.DefaultConfig()
	cfg.WarmLow = 0
	h := newHost(t, cfg, c)
	_, err := h.Claim(context.Background(), claim(files(t, h), 1))
	require.ErrorIs(t, err, envpool.ErrNoSlot)
	require.ErrorContains(t, err, "no permissions to create new namespace")
}

// As root, every sandbox has an unprivileged user id of its own, and reaches
// its files although the data directory is closed to everyone.
func TestUserIDs(t *testing.T) {
	need(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	ctx := context.Background()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	cfg := envpool.DefaultConfig()
	cfg.WarmLow = 0
	h := newHost(t, cfg, config(t, filepath.Join(dir, "deep", "data")))
	id := files(t, h)
	for i := range 3 {
		hd, err := h.Claim(ctx, claim(id, i))
		require.NoError(t, err)
		_, err = h.Exec(ctx, hd, envpool.Command{Argv: []string{"sh", "-c", "echo x >>F1; chmod 700 F2; sleep 1000 >/dev/null 2>&1 &"}})
		require.NoError(t, err)
	}
	users := map[string]int{}
	for pid := range descendants(t, os.Getpid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		for line := range strings.Lines(string(b)) {
			if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
				users[strings.Fields(ids)[0]]++
			}
			if ids, ok := strings.CutPrefix(line, "Groups:"); ok {
				require.Empty(t, strings.TrimSpace(ids))
			}
		}
	}
	st, err := h.Stats(ctx)
	require.NoError(t, err)
	want := map[string]int{"100000": 3, "100001": 3, "100002": 3} // bwrap, rlguest, sleep
	if strings.Contains(fmt.Sprint(st.Advisory), "share user id") {
		want = map[string]int{"100000": 9}
	}
	require.Equal(t, want, users)
}

// Templates that nobody uses make room for others; those in use stay.
func TestTemplatesAreBounded(t *testing.T) {
	need(t)
	ctx := context.Background()
	cfg := envpool.DefaultConfig()
	cfg.MaxTemplates, cfg.WarmLow = 3, 0
	dir := t.TempDir()
	h := newHost(t, cfg, config(t, dir))
	used := files(t, h)
	hd, err := h.Claim(ctx, claim(used, 0))
	require.NoError(t, err)
	var last envpool.SnapshotID
	for i := range 6 {
		last, err = h.Prepare(ctx, envpool.Template{Digest: policy.Digest(fmt.Sprint("sha256:", i))})
		require.NoError(t, err)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "host-*", "templates", "*"))
	require.NoError(t, err)
	require.Len(t, kept, 3)
	r, err := h.Exec(ctx, hd, envpool.Command{Argv: []string{"cat", "F1"}})
	require.NoError(t, err)
	require.Equal(t, "content of F1\n", string(r.Stdout))
	_, err = h.Claim(ctx, claim("sha256:0", 1))
	require.ErrorIs(t, err, envpool.ErrUnknown)
	_, err = h.Claim(ctx, claim(last, 2))
	require.NoError(t, err)
	again, err := h.Prepare(ctx, envpool.Template{Digest: "sha256:0"})
	require.NoError(t, err)
	_, err = h.Claim(ctx, claim(again, 3))
	require.NoError(t, err)
}

// The sentences can be had without a host, and beside one.
func TestAdvisory(t *testing.T) {
	need(t)
	dir := t.TempDir()
	for _, without := range []bool{false, true} {
		rc := config(t, filepath.Join(dir, "deep", fmt.Sprint(without)))
		rc.NoCgroups = without
		alone, err := bubblewrap.Advisory(rc)
		require.NoError(t, err)
		require.NoDirExists(t, rc.DataDir)
		h := newHost(t, envpool.DefaultConfig(), rc)
		beside, err := bubblewrap.Advisory(rc)
		require.NoError(t, err)
		st, err := h.Stats(context.Background())
		require.NoError(t, err)
		require.Equal(t, st.Advisory, alone)
		require.Equal(t, st.Advisory, beside)
		if without {
			require.Contains(t, fmt.Sprint(alone), "between commands")
		}
		for _, d := range []string{dir, rc.DataDir} {
			left, err := filepath.Glob(filepath.Join(d, ".advisory-*"))
			require.NoError(t, err)
			require.Empty(t, left)
		}
	}
	_, err := bubblewrap.Advisory(bubblewrap.DefaultConfig("data"))
	require.ErrorContains(t, err, "is not absolute")
}
