// Package envpooltest is the conformance suite of envpool.Host: every tier, and every way to reach one, passes it.
//
// Its hosts must have WarmLow 1 or more, at least 4 slots for agents and 2 for
// verifiers, and nothing else on them.
package envpooltest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
)

// NewHost makes a fresh host that ends with the test.
type NewHost func(t *testing.T) envpool.Host

// Run runs the suite.
func Run(t *testing.T, newHost NewHost) {
	for _, g := range []struct {
		name  string
		tests map[string]func(*testing.T, *bench)
	}{
		{"lease", leaseTests},
		{"command", commandTests},
		{"file", fileTests},
		{"snapshot", snapshotTests},
		{"limit", limitTests},
		{"attack", attackTests},
		{"reset", resetTests},
	} {
		t.Run(g.name, func(t *testing.T) {
			for name, f := range g.tests {
				t.Run(name, func(t *testing.T) { f(t, &bench{t: t, h: newHost(t), dir: t.TempDir()}) })
			}
		})
	}
}

// bench is one host under test.
type bench struct {
	t    *testing.T
	h    envpool.Host
	dir  string
	made int
}

// ctx bounds a whole test, generously.
func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	b.t.Cleanup(cancel)
	return ctx
}

// source writes files, by path, into a new directory. "x/" is a directory, "a -> b" a link.
func (b *bench) source(files map[string]string) string {
	b.made++
	dir := filepath.Join(b.dir, fmt.Sprintf("source%d", b.made))
	require.NoError(b.t, os.Mkdir(dir, 0o755))
	for name, text := range files {
		if link, target, ok := strings.Cut(name, " -> "); ok {
			require.NoError(b.t, os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755))
			require.NoError(b.t, os.Symlink(target, filepath.Join(dir, link)))
			continue
		}
		p := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			require.NoError(b.t, os.MkdirAll(p, 0o755))
			continue
		}
		require.NoError(b.t, os.MkdirAll(filepath.Dir(p), 0o755))
		mode := os.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		require.NoError(b.t, os.WriteFile(p, []byte(text), mode))
	}
	return dir
}

// template prepares a template of files in /app.
func (b *bench) template(files map[string]string) envpool.SnapshotID {
	src := b.source(files)
	id, err := b.h.Prepare(b.ctx(), envpool.Template{
		Digest: policy.Digest("sha256:" + filepath.Base(b.dir) + filepath.Base(src)), Image: "host", Layers: []envpool.Layer{{Source: src, Dest: "/app"}},
	})
	require.NoError(b.t, err)
	return id
}

// claim is a claim on the resource for an agent.
func (b *bench) claim(resource string, fence lease.Fence, id envpool.SnapshotID) envpool.Claim {
	return envpool.Claim{
		Lease: lease.Token{Resource: resource, Holder: "test", Incarnation: 1, Fence: fence}, Snapshot: id, Quota: envpool.QuotaAgent, Entropy: 1,
	}
}

// box is one claimed sandbox.
type box struct {
	*bench
	hd envpool.Handle
}

// box claims a sandbox with limits over a template of files.
func (b *bench) box(l envpool.Limits, files map[string]string) *box {
	b.made++
	c := b.claim(fmt.Sprintf("test/%d", b.made), 1, b.template(files))
	c.Limits = l
	return b.open(c)
}

// open makes a claim that must succeed.
func (b *bench) open(c envpool.Claim) *box {
	b.t.Helper()
	hd, err := b.h.Claim(b.ctx(), c)
	require.NoError(b.t, err)
	return &box{b, hd}
}

// run runs a command that must not fail to run.
func (x *box) run(c envpool.Command) envpool.Result {
	x.t.Helper()
	r, err := x.h.Exec(x.ctx(), x.hd, c)
	require.NoError(x.t, err)
	return r
}

// sh runs a script.
func (x *box) sh(script string) envpool.Result {
	x.t.Helper()
	return x.run(envpool.Command{Argv: []string{"bash", "-c", script}})
}

// out runs a script that must succeed and returns what it printed.
func (x *box) out(script string) string {
	x.t.Helper()
	r := x.sh(script)
	require.Zero(x.t, r.ExitCode, "%s: %s%s (signal %d, hit %q)", script, r.Stdout, r.Stderr, r.Signal, r.Hit)
	return string(r.Stdout)
}

// fails runs a script that must fail without any limit.
func (x *box) fails(script string) {
	x.t.Helper()
	r := x.sh(script)
	require.NotZero(x.t, r.ExitCode, "%s succeeded: %s", script, r.Stdout)
	require.Empty(x.t, r.Hit, script)
}

func (x *box) release() {
	x.t.Helper()
	require.NoError(x.t, x.h.Release(x.ctx(), x.hd))
}

// processes lists what runs in the sandbox, beside process 1 and the listing itself.
func (x *box) processes() string {
	x.t.Helper()
	return x.out(`for p in /proc/[0-9]*; do n=${p#/proc/}; [ $n = 1 ] || [ $n = $$ ] || tr '\0' ' ' <$p/cmdline; done 2>/dev/null; true`)
}

// BuildAttack builds the attack program into a directory and returns its path.
func BuildAttack(dir string) (string, error) {
	file := filepath.Join(dir, "attack")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", file, "github.com/rlfleet/rlfleet/envpool/envpooltest/attack")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("envpooltest: build attack: %w: %s", err, out)
	}
	return file, nil
}

// attackFile is the attack program, built once or, for those who run the suite
// where it cannot be built, found beside the test program.
var attackFile = sync.OnceValues(func() ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if b, err := os.ReadFile(filepath.Join(filepath.Dir(self), "attack")); err == nil {
		return b, nil
	}
	dir, err := os.MkdirTemp("", "attack-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f, err := BuildAttack(dir)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(f)
})
