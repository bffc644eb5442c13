package envpooltest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

var attackTests = map[string]func(*testing.T, *bench){
	"the attack program gets nowhere": func(t *testing.T, b *bench) {
		program, err := attackFile()
		require.NoError(t, err)
		x := b.box(envpool.Limits{}, nil)
		require.NoError(t, b.h.Write(b.ctx(), x.hd, "/app/attack", 0o755, program))
		r := x.run(envpool.Command{Argv: []string{"./attack"}, Timeout: 30 * time.Second})
		require.Zero(t, r.ExitCode, "%s", r.Stderr)
		require.GreaterOrEqual(t, strings.Count(string(r.Stdout), "\n"), 50, "%s", r.Stdout)
		require.NotContains(t, string(r.Stdout), ": allowed")
		require.Contains(t, string(r.Stdout), "sent ", "it did try process 1")
		x.alive()
		x.release()
		st, err := b.h.Stats(b.ctx())
		require.NoError(t, err)
		require.Zero(t, st.Destroyed, "the slot survived")
	},
	"killing everything kills only what is one's own": func(t *testing.T, b *bench) {
		neighbour := b.box(envpool.Limits{}, nil)
		neighbour.out("sleep 1000 >/dev/null 2>&1 &")
		x := b.box(envpool.Limits{}, nil)
		for _, script := range []string{"kill -9 -1; sleep 0.1", "kill -STOP 1; kill -9 1; kill -SEGV 1; kill -9 -1; exec sleep 0.1", "kill -9 0; exec sleep 0.1"} {
			r := x.sh(script)
			require.Contains(t, []envpool.LimitHit{""}, r.Hit, script)
		}
		x.alive()
		require.Contains(t, neighbour.processes(), "sleep 1000")
	},
	"no capabilities, no new privileges, a filter, no descriptor": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		status := x.out("cat /proc/self/status")
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000",
			"NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t1000\t1000\t1000\t1000", "Gid:\t1000\t1000\t1000\t1000",
		} {
			require.Contains(t, status, want)
		}
		r := x.run(envpool.Command{Argv: []string{"ls", "/proc/self/fd"}})
		require.Equal(t, "0\n1\n2\n3\n", string(r.Stdout), "3 is the listing's own")
		require.Equal(t, "agent\n", x.out("id -un"))
		for _, f := range []string{"cwd", "exe", "root", "ns/mnt", "fd/3"} {
			x.fails("readlink /proc/1/" + f)
		}
		x.fails("ls /proc/1/fd/ /proc/1/map_files/")
	},
	"only the writable directories can be written": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		for _, d := range []string{"/app", "/tmp", "/logs", "/tests", "/solution", "$HOME", "/dev/shm"} {
			x.out("echo x >" + d + "/probe && mkdir " + d + "/sub && rm -r " + d + "/probe " + d + "/sub")
		}
		for _, p := range []string{
			"/probe", "/usr/probe", "/usr/local/bin/probe", "/bin/probe", "/lib/probe", "/etc/probe", "/etc/passwd", "/etc/ld.so.preload", "/dev/probe",
			"/home/probe", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/1/oom_score_adj", "/usr/bin/env",
		} {
			x.fails("exec 2>/dev/null; echo x >" + p)
		}
		x.fails("mv /app /app2")
		x.fails("rmdir /app; ls /app/. >/dev/null && exit 1; exit 1")
		x.fails("chmod 777 /usr /etc / 2>/dev/null")
		x.fails("touch /usr/bin/sh")
		x.out("for f in null zero urandom; do [ -c /dev/$f ] || exit 1; done; echo x >/dev/null; head -c 8 /dev/urandom | wc -c | grep -q 8")
	},
	"the host and the neighbours cannot be seen": func(t *testing.T, b *bench) {
		secret := filepath.Join(b.dir, "secret")
		require.NoError(t, os.WriteFile(secret, []byte("host secret"), 0o644))
		t.Setenv("HOST_SECRET", "do-not-tell")
		y := b.box(envpool.Limits{}, map[string]string{"f": "x"})
		y.out("echo neighbour >/tmp/n; echo neighbour >/app/n; (exec -a neighbours-process sleep 1000) >/dev/null 2>&1 &")
		x := b.box(envpool.Limits{}, nil)
		for _, p := range []string{secret, "/root", "/templates", "/use", "/base", "/rlguest", "/var", "/sys", "/mnt", "/etc/shadow", "/etc/ssh", "/tmp/n", "/app/n", "/run", "/boot", "/opt"} {
			require.NotZero(t, x.sh("ls -d "+p).ExitCode, p)
		}
		require.NotContains(t, x.out("cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true"), "neighbours-process")
		require.NotContains(t, x.out("cat /proc/*/environ 2>/dev/null; env; true"), "do-not-tell")
		require.Equal(t, "1\n", x.out("ls /proc | grep -E '^[0-9]+$' | sort -n | head -1"))
		require.NotContains(t, x.out("cat /proc/self/mountinfo /proc/mounts /etc/passwd"), b.dir)
	},
	"the network is only itself": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		require.Equal(t, "lo\n", x.out("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"))
		for _, addr := range []string{"169.254.169.254/80", "10.0.0.1/80", "8.8.8.8/53", "172.17.0.1/80"} {
			x.fails("exec 2>/dev/null; echo >/dev/tcp/" + addr)
			require.NotZero(t, x.sh("exec 2>/dev/null; echo >/dev/udp/"+addr).ExitCode)
		}
		require.Contains(t, x.out("cat /proc/net/route | wc -l"), "1")
	},
	"delayed triggers do not reach the next command's shell of another use": func(t *testing.T, b *bench) {
		id := b.template(nil)
		x := b.open(b.claim("first", 1, id))
		x.out("for f in .bashrc .profile .bash_profile .bash_logout; do echo 'echo planted' >~/$f; done; mkdir ~/bin; printf '#!/bin/sh\necho planted' >~/bin/ls; chmod +x ~/bin/ls")
		x.release()
		y := b.open(b.claim("second", 1, id))
		require.NotContains(t, y.out("bash -lc 'ls -A ~'; bash -ic true 2>&1; ls"), "planted")
	},
	"a torrent of requests on a hostile sandbox": func(t *testing.T, b *bench) {
		neighbour := b.box(envpool.Limits{}, nil)
		x := b.box(envpool.Limits{Pids: 40, CPU: 0.5}, nil)
		x.sh("(while :; do kill -9 -1; done) >/dev/null 2>&1 & (while :; do mkdir /app/d; mv /app/d /app/e; rmdir /app/e; done) >/dev/null 2>&1 &")
		for range 50 {
			_, err := b.h.Collect(b.ctx(), x.hd, []string{"/app"}, 1<<20)
			require.NoError(t, err)
			x.sh("(while :; do :; done) >/dev/null 2>&1 &")
			require.NoError(t, b.h.Write(b.ctx(), x.hd, "/app/f", 0o644, []byte("x")))
		}
		neighbour.alive()
		x.release()
	},
}
