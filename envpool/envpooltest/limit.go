package envpooltest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

// advised reports that the host says it cannot enforce or name a limit here.
func (b *bench) advised(limit string) bool {
	st, err := b.h.Stats(b.ctx())
	require.NoError(b.t, err)
	for _, a := range st.Advisory {
		if strings.HasPrefix(a, limit+": ") && !strings.Contains(a, "one bound of memory + disk") {
			return true
		}
	}
	return false
}

// alive checks that a sandbox goes on and that a neighbour was not harmed.
func (x *box) alive() {
	x.t.Helper()
	require.Equal(x.t, "alive\n", x.out("echo alive"))
}

var limitTests = map[string]func(*testing.T, *bench){
	"time": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Wall: 700 * time.Millisecond}, nil)
		for name, script := range map[string]string{
			"plain":        "sleep 1000",
			"spin":         "while :; do :; done",
			"double fork":  "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000 & sleep 1000' &) ; sleep 1000",
			"stopped":      "kill -STOP $$",
			"holds output": "sleep 1000 & exec sleep 1000",
		} {
			start := time.Now()
			r := x.sh("echo begun; " + script)
			require.Equal(t, envpool.HitTime, r.Hit, name)
			require.Equal(t, -1, r.ExitCode, name)
			require.Equal(t, 9, r.Signal, name)
			require.Equal(t, "begun\n", string(r.Stdout), name)
			require.Less(t, time.Since(start), 20*time.Second, name)
			require.Empty(t, x.processes(), name)
		}
		r := x.run(envpool.Command{Argv: []string{"sleep", "1"}, Timeout: 20 * time.Second}) // its own deadline counts
		require.Empty(t, r.Hit)
	},
	"memory of one process": func(t *testing.T, b *bench) {
		neighbour := b.box(envpool.Limits{}, nil)
		x := b.box(envpool.Limits{Memory: 64 << 20, Disk: 16 << 20}, nil)
		r := x.run(envpool.Command{Argv: []string{"tail", "/dev/zero"}, Timeout: 30 * time.Second})
		require.NotZero(t, r.ExitCode)
		if !b.advised("memory") {
			require.Equal(t, envpool.HitMemory, r.Hit)
			require.Equal(t, 9, r.Signal)
		} else {
			require.Contains(t, []envpool.LimitHit{envpool.HitMemory, ""}, r.Hit)
		}
		x.alive()
		neighbour.alive()
	},
	"memory of many processes": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Memory: 64 << 20, Disk: 16 << 20}, nil)
		// tail holds all it has read while the reader sleeps.
		r := x.run(envpool.Command{Argv: []string{"bash", "-c", "for i in 1 2 3 4 5 6; do head -c 30000000 /dev/zero | tail -c 30000000 | sleep 1 & done; wait"}, Timeout: 60 * time.Second})
		require.Equal(t, envpool.HitMemory, r.Hit)
		x.alive()
	},
	"memory that fits": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Memory: 128 << 20}, nil)
		r := x.sh("head -c 50000000 /dev/zero | tail -c 50000000 | wc -c")
		require.Equal(t, "50000000\n", string(r.Stdout))
		require.Empty(t, r.Hit)
	},
	"processes": func(t *testing.T, b *bench) {
		neighbour := b.box(envpool.Limits{}, nil)
		x := b.box(envpool.Limits{Pids: 20}, nil)
		r := x.run(envpool.Command{Argv: []string{"bash", "-c", "for i in $(seq 40); do sleep 50 & done; sleep 1"}, Timeout: 8 * time.Second})
		require.Equal(t, envpool.HitPids, r.Hit)
		neighbour.alive()
		x.alive()
		// What it leaves behind fills the sandbox, and the next command finds no room.
		x.run(envpool.Command{Argv: []string{"bash", "-c", "for i in $(seq 19); do sleep 50 >/dev/null 2>&1 & done"}, Timeout: 8 * time.Second})
		r = x.run(envpool.Command{Argv: []string{"bash", "-c", "sleep 60; true"}, Timeout: 5 * time.Second})
		require.Equal(t, envpool.HitPids, r.Hit)
		require.NotZero(t, r.ExitCode)
		y := b.box(envpool.Limits{Pids: 20}, nil)
		require.Empty(t, y.sh("for i in $(seq 12); do sleep 0.1 & done; wait").Hit, "another sandbox has its own count")
	},
	"fork bomb": func(t *testing.T, b *bench) {
		neighbour := b.box(envpool.Limits{}, nil)
		x := b.box(envpool.Limits{Pids: 50, CPU: 0.5}, nil)
		r := x.run(envpool.Command{Argv: []string{"bash", "-c", "bomb() { bomb | bomb & bomb; }; bomb 2>/dev/null"}, Timeout: 2 * time.Second})
		require.Contains(t, []envpool.LimitHit{envpool.HitPids, envpool.HitTime}, r.Hit)
		if !b.advised("pids") {
			require.Equal(t, envpool.HitPids, r.Hit)
		}
		neighbour.alive()
		x.release()
		b.box(envpool.Limits{}, nil).alive()
	},
	"disk": func(t *testing.T, b *bench) {
		for _, dir := range []string{"/app", "/tmp", "/dev/shm", "/home/agent", "/logs"} {
			x := b.box(envpool.Limits{Disk: 8 << 20}, nil)
			r := x.sh("head -c 20000000 /dev/zero >" + dir + "/big")
			require.NotZero(t, r.ExitCode)
			require.Equal(t, envpool.HitDisk, r.Hit, dir)
			got := x.sh("stat -c %s " + dir + "/big")
			require.LessOrEqual(t, strings.TrimSpace(string(got.Stdout)), "8388608")
			require.Empty(t, got.Hit, "a command that succeeds on a full disk has hit nothing")
			require.ErrorIs(t, b.h.Write(b.ctx(), x.hd, "/app/more", 0o644, make([]byte, 1<<20)), envpool.ErrTooLarge)
			x.out("rm " + dir + "/big")
			require.Empty(t, x.sh("head -c 4000000 /dev/zero >"+dir+"/fits").Hit)
			x.release()
		}
	},
	"a file with a hole": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Disk: 8 << 20}, nil)
		r := x.run(envpool.Command{Argv: []string{"truncate", "-s", "1P", "/app/hole"}})
		require.NotZero(t, r.ExitCode)
		require.Equal(t, envpool.HitDisk, r.Hit)
	},
	"files": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Inodes: 200}, nil)
		require.Empty(t, x.sh("cd /tmp; touch $(seq 100)").Hit)
		r := x.sh("cd /tmp; touch $(seq 1000)")
		require.NotZero(t, r.ExitCode)
		require.Equal(t, envpool.HitInodes, r.Hit)
		x.out("rm -r /tmp/*; touch /tmp/again")
	},
	"open files": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{OpenFiles: 40}, nil)
		require.Equal(t, "40 40\n", x.out("echo $(ulimit -Sn) $(ulimit -Hn)"))
		x.fails("for i in $(seq 60); do exec {fd}</dev/null || exit 1; done")
		x.alive()
	},
	"output": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{Output: 1000}, nil)
		r := x.sh("head -c 1000 /dev/zero")
		require.Empty(t, r.Hit)
		require.Len(t, r.Stdout, 1000)
		r = x.sh("seq 100000; seq 10 >&2")
		require.Equal(t, envpool.HitOutput, r.Hit)
		require.Zero(t, r.ExitCode)
		require.Len(t, r.Stdout, 1000)
		require.True(t, strings.HasPrefix(string(r.Stdout), "1\n2\n3\n"), "the head is kept")
		require.EqualValues(t, 588895, r.StdoutTotal)
		require.EqualValues(t, 21, r.StderrTotal)
		r = x.run(envpool.Command{Argv: []string{"seq", "1000"}, Output: 10})
		require.Len(t, r.Stdout, 10)
		for name, script := range map[string]string{"stdout": "yes", "stderr": "yes >&2", "both": "yes & yes >&2", "one line": "cat /dev/zero"} {
			r = x.run(envpool.Command{Argv: []string{"bash", "-c", script + "; wait"}, Timeout: 60 * time.Second})
			require.Equal(t, envpool.HitOutput, r.Hit, name)
			require.LessOrEqual(t, len(r.Stdout)+len(r.Stderr), 2000, name)
			require.Equal(t, -1, r.ExitCode, name)
		}
		require.Empty(t, x.processes())
	},
	"an ordinary failure hits nothing": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		for _, script := range []string{"exit 1", "kill -9 $$", "false", "cat /nope", "echo x >/usr/x", "exit 137", "exit 124"} {
			r := x.sh(script)
			require.Empty(t, r.Hit, script)
		}
	},
	"absurd limits are refused": func(t *testing.T, b *bench) {
		id := b.template(nil)
		for name, l := range map[string]envpool.Limits{
			"negative": {Memory: -1}, "tiny memory": {Memory: 4096}, "no files": {OpenFiles: 1}, "huge output": {Output: 1 << 40},
		} {
			c := b.claim("r", 1, id)
			c.Limits = l
			_, err := b.h.Claim(b.ctx(), c)
			require.ErrorIs(t, err, envpool.ErrInvalid, name)
		}
	},
}
