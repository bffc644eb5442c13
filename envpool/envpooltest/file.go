package envpooltest

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
)

var fileTests = map[string]func(*testing.T, *bench){
	"write and read": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"old": "was here"})
		ctx := b.ctx()
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/a/b/c.sh", 0o755, []byte("#!/bin/sh\necho $0\n")))
		require.Equal(t, "a/b/c.sh\n", x.out("a/b/c.sh"))
		require.Equal(t, "755 1000\n", x.out("stat -c '%a %u' a/b/c.sh"))
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/old", 0o600, []byte("new")))
		require.Equal(t, "new", x.out("cat old"))
		for _, p := range []string{"/tmp/x", "/logs/verifier/x", "/tests/x", "/solution/x", "/home/agent/x", "/dev/shm/x"} {
			require.NoError(t, b.h.Write(ctx, x.hd, p, 0o644, []byte(p)))
			got, err := b.h.Read(ctx, x.hd, p, 100)
			require.NoError(t, err)
			require.Equal(t, p, string(got))
			x.out("rm " + p)
		}
		big := make([]byte, 3<<20)
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/big", 0o644, big))
		got, err := b.h.Read(ctx, x.hd, "/app/big", 3<<20)
		require.NoError(t, err)
		require.Equal(t, big, got)
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/empty", 0o644, nil))
		got, err = b.h.Read(ctx, x.hd, "/app/empty", 0)
		require.NoError(t, err)
		require.Empty(t, got)
		x.out("chmod 000 big") // unreadable for the command is not unreadable for the host
		_, err = b.h.Read(ctx, x.hd, "/app/big", 3<<20)
		require.NoError(t, err)
	},
	"each refusal has its kind": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		x.out("echo 12345 >/app/f; mkfifo /app/p; mkdir /app/d; ln -s f /app/l")
		ctx := b.ctx()
		for p, kind := range map[string]error{
			"/app/none": envpool.ErrNotFound, "/app/none/f": envpool.ErrNotFound, "/app/f": envpool.ErrTooLarge, "/app/p": envpool.ErrUnsafe,
			"/app/d": envpool.ErrInvalid, "/app/l": envpool.ErrUnsafe, "/app/f/x": envpool.ErrInvalid, "/etc/passwd": envpool.ErrUnsafe,
			"/proc/1/environ": envpool.ErrUnsafe, "/app/../etc/passwd": envpool.ErrUnsafe, "app/f": envpool.ErrUnsafe, "/": envpool.ErrUnsafe, "": envpool.ErrUnsafe,
		} {
			_, err := b.h.Read(ctx, x.hd, p, 3)
			require.ErrorIs(t, err, kind, "read %q", p)
		}
		for p, kind := range map[string]error{
			"/app": envpool.ErrInvalid, "/app/d": envpool.ErrInvalid, "/app/f/x": envpool.ErrInvalid, "/usr/bin/x": envpool.ErrUnsafe,
			"/app/../usr/x": envpool.ErrUnsafe, "/x": envpool.ErrUnsafe, "x": envpool.ErrUnsafe,
		} {
			require.ErrorIs(t, b.h.Write(ctx, x.hd, p, 0o644, nil), kind, "write %q", p)
		}
	},
	"links lead nowhere": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		x.out(`mkdir /app/out; echo secret >/tmp/secret
			ln -s /etc /app/etc; ln -s ../tmp /app/rel; ln -s /tmp/secret /app/file; ln -s /proc/self/root /app/root; ln -s loop /app/loop
			ln -s /etc/passwd /app/out/passwd; ln -s / /app/out/all; mkfifo /app/out/fifo; echo real >/app/out/real; ln /app/out/real /app/out/hard`)
		ctx := b.ctx()
		for _, p := range []string{"/app/etc/passwd", "/app/rel/secret", "/app/file", "/app/root/etc/passwd", "/app/loop", "/app/out/all/etc/passwd"} {
			_, err := b.h.Read(ctx, x.hd, p, 1<<20)
			require.ErrorIs(t, err, envpool.ErrUnsafe, "read %s", p)
		}
		for _, p := range []string{"/app/etc/x", "/app/rel/x", "/app/root/tmp/x", "/app/loop/x"} {
			require.Error(t, b.h.Write(ctx, x.hd, p, 0o644, []byte("x")), "write %s", p)
		}
		// A link or a FIFO in a file's place is replaced, not followed.
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/file", 0o644, []byte("mine")))
		require.NoError(t, b.h.Write(ctx, x.hd, "/app/out/fifo", 0o644, []byte("mine")))
		require.Equal(t, "secret\n", x.out("cat /tmp/secret"))
		require.Equal(t, "minemine", x.out("cat /app/file /app/out/fifo"))
		files, err := b.h.Collect(ctx, x.hd, []string{"/app"}, 1<<20)
		require.NoError(t, err)
		got := map[string]string{}
		for _, f := range files {
			got[f.Path] = string(f.Data)
		}
		require.Equal(t, map[string]string{"/app/file": "mine", "/app/out/fifo": "mine", "/app/out/real": "real\n", "/app/out/hard": "real\n"}, got)
	},
	"a path that changes while the host looks": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		x.out("mkdir /app/a; echo inside >/app/a/f; mkdir /tmp/evil; echo outside >/tmp/evil/f; ln -s /tmp/evil /app/b; cp -r /app/a /app/c")
		// Swaps a directory and a link under one name as fast as it can.
		x.out(`(while :; do mv -T /app/a /app/a1; mv -T /app/b /app/a; mv -T /app/a /app/b; mv -T /app/a1 /app/a; done) >/dev/null 2>&1 &`)
		for range 300 {
			got, err := b.h.Read(b.ctx(), x.hd, "/app/a/f", 100)
			if err == nil {
				require.Equal(t, "inside\n", string(got))
			} else {
				require.NotErrorIs(t, err, envpool.ErrEnvironment)
			}
			if err := b.h.Write(b.ctx(), x.hd, "/app/a/g", 0o644, []byte("w")); err != nil {
				require.NotErrorIs(t, err, envpool.ErrEnvironment)
			}
		}
		require.Equal(t, "f\n", x.out("ls /tmp/evil"))
	},
	"collect": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"from/template": "t"})
		x.out(`mkdir -p /logs/verifier/deep /app/from; echo 1 >/logs/verifier/reward.txt; printf abc >/logs/verifier/deep/x; chmod 750 /logs/verifier/deep/x
			printf n >$'/app/from/new\nline'; printf b >$'/app/from/bad\377'; mkdir /app/from/locked; printf l >/app/from/locked/f; chmod 000 /app/from/locked
			while :; do date >/logs/verifier/moving; done >/dev/null 2>&1 &`)
		files, err := b.h.Collect(b.ctx(), x.hd, []string{"/logs/verifier/reward.txt", "/logs/verifier/deep", "/app/from", "/app/absent", "/tests/absent/too"}, 1<<20)
		require.NoError(t, err)
		got := map[string]string{}
		for _, f := range files {
			got[f.Path] = string(f.Data)
			if f.Path == "/logs/verifier/deep/x" {
				require.Equal(t, fs.FileMode(0o750), f.Mode)
			}
		}
		require.Equal(t, map[string]string{
			"/logs/verifier/reward.txt": "1\n", "/logs/verifier/deep/x": "abc", "/app/from/template": "t",
			"/app/from/new\nline": "n", "/app/from/bad\xff": "b", "/app/from/locked/f": "l",
		}, got)
		require.Empty(t, x.processes(), "the sandbox is frozen by ending its processes")
	},
	"collect keeps to its limit": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		x.out("head -c 1000 /dev/zero >/app/a; head -c 1000 /dev/zero >/app/b; truncate -s 200M /app/sparse; mkdir -p /tmp/$(printf 'd/%.0s' $(seq 100)); touch /tmp/$(printf 'd/%.0s' $(seq 100))f")
		ctx := b.ctx()
		files, err := b.h.Collect(ctx, x.hd, []string{"/app/a", "/app/b"}, 2000)
		require.NoError(t, err)
		require.Len(t, files, 2)
		for name, paths := range map[string][]string{"sum": {"/app/a", "/app/b"}, "sparse": {"/app/sparse"}, "depth": {"/tmp"}} {
			_, err = b.h.Collect(ctx, x.hd, paths, 1999)
			require.ErrorIs(t, err, envpool.ErrTooLarge, name)
		}
		for _, p := range []string{"/etc/passwd", "/app/../etc", "/", "/proc/self"} {
			_, err = b.h.Collect(ctx, x.hd, []string{p}, 1<<20)
			require.ErrorIs(t, err, envpool.ErrUnsafe, p)
		}
		x.out("true")
	},
	"templates come as they are": func(t *testing.T, b *bench) {
		src := b.source(map[string]string{"run": "#!/bin/sh\necho hi\n", "d/f": "f", "l -> d/f": "", "empty/": ""})
		tests := b.source(map[string]string{"test.sh": "#!/bin/sh\nexit 0\n"})
		tm := envpool.Template{Digest: policy.Digest("sha256:as" + b.dir), Image: "host", Layers: []envpool.Layer{
			{Source: src, Dest: "/app"}, {Source: tests, Dest: "/tests"}, {Source: filepath.Join(tests, "test.sh"), Dest: "/solution/a/solve.sh"},
		}}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if id, err := b.h.Prepare(b.ctx(), tm); err != nil || id != envpool.SnapshotID(tm.Digest) {
					t.Error(id, err)
				}
			})
		}
		wg.Wait()
		x := b.open(b.claim("r", 1, envpool.SnapshotID(tm.Digest)))
		require.Equal(t, "hi\nf\nd\nempty\nl\nrun\n", x.out("./run; cat l; echo; ls"))
		x.out("bash /tests/test.sh && /solution/a/solve.sh")
		// The copy belongs to the sandbox's user, whoever made the source.
		x.out("echo more >>d/f; chmod 700 run; mv d e; rm -r empty; mkdir empty; touch empty/x; rm /tests/test.sh; ln e/f hard; echo >>hard")
		y := b.open(b.claim("s", 1, envpool.SnapshotID(tm.Digest)))
		require.Equal(t, "755 f\nd\nempty\nl\nrun\n", y.out("stat -c %a run | tr '\n' ' '; cat d/f; echo; ls; ls empty"))
		require.NoError(t, os.WriteFile(filepath.Join(src, "run"), []byte("changed later"), 0o755))
		require.Equal(t, "hi\n", y.out("./run"), "a template is a copy")
	},
	"unsafe templates are refused": func(t *testing.T, b *bench) {
		fifo := b.source(nil)
		require.NoError(t, syscall.Mkfifo(filepath.Join(fifo, "p"), 0o644))
		ok := b.source(map[string]string{"f": "x"})
		for name, c := range map[string]struct {
			layer envpool.Layer
			kind  error
		}{
			"absolute link":    {envpool.Layer{Source: b.source(map[string]string{"l -> /etc/passwd": ""}), Dest: "/app"}, envpool.ErrUnsafe},
			"climbing link":    {envpool.Layer{Source: b.source(map[string]string{"d/l -> ../../x": ""}), Dest: "/app"}, envpool.ErrUnsafe},
			"FIFO":             {envpool.Layer{Source: fifo, Dest: "/app"}, envpool.ErrUnsafe},
			"not writable":     {envpool.Layer{Source: ok, Dest: "/usr/x"}, envpool.ErrInvalid},
			"climbing":         {envpool.Layer{Source: ok, Dest: "/app/../../etc"}, envpool.ErrInvalid},
			"relative":         {envpool.Layer{Source: ok, Dest: "app"}, envpool.ErrInvalid},
			"source not there": {envpool.Layer{Source: ok + "/none", Dest: "/app"}, fs.ErrNotExist},
		} {
			tm := envpool.Template{Digest: policy.Digest("sha256:bad" + name), Layers: []envpool.Layer{c.layer}}
			_, err := b.h.Prepare(b.ctx(), tm)
			if c.kind == fs.ErrNotExist {
				require.Error(t, err, name)
			} else {
				require.ErrorIs(t, err, c.kind, name)
			}
			_, err = b.h.Claim(b.ctx(), b.claim("r", 1, envpool.SnapshotID(tm.Digest)))
			require.ErrorIs(t, err, envpool.ErrUnknown, name)
		}
		_, err := b.h.Prepare(b.ctx(), envpool.Template{})
		require.ErrorIs(t, err, envpool.ErrInvalid)
		_, err = b.h.Prepare(b.ctx(), envpool.Template{Digest: "sha256:dir", Workdir: "/usr"})
		require.ErrorIs(t, err, envpool.ErrInvalid)
	},
}
