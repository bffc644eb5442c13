package envpooltest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var resetTests = map[string]func(*testing.T, *bench){
	"nothing of a use is left for the next": func(t *testing.T, b *bench) {
		id := b.template(map[string]string{"F": "original\n"})
		const look = `find / -xdev -newer /app/F -user agent 2>/dev/null | sort; ls -A /app /tmp /logs /tests /solution ~ /dev/shm; cat F /proc/sysvipc/* | wc -l
			cat /proc/net/unix /proc/net/tcp | wc -l; grep -vc overlay /proc/mounts; cat /proc/sys/kernel/hostname; ulimit -a | grep -v processes; umask; cat /proc/self/status | grep -E 'Cap|NoNew|Secc|Uid|Gid|Groups|Sig[IC]'`
		clean := b.open(b.claim("clean", 1, id))
		want := clean.out(look)
		clean.release()
		for i := range 30 { // every slot has its turn
			x := b.open(b.claim(fmt.Sprint("dirty/", i), 1, id))
			require.Equal(t, want, x.out(look))
			x.out(`echo changed >F; for d in /app /tmp /logs /tests /solution ~ /dev/shm; do mkdir -p $d/x/y; echo dirty >$d/x/y/z; chmod 000 $d/x; done
				ipcmk -M 1000 -S 2 -Q >/dev/null; setsid sleep 1000 >/dev/null 2>&1 & trap '' TERM HUP; (sleep 1000 & sleep 1000 &) >/dev/null 2>&1; kill -STOP $! ; true`)
			x.release()
		}
		st, err := b.h.Stats(b.ctx())
		require.NoError(t, err)
		require.EqualValues(t, 31, st.Resets)
		require.Zero(t, st.Destroyed, "all of them could be reset")
		require.Zero(t, st.Quarantined)
		require.Zero(t, st.Leased)
	},
	"200 uses leak no process, mount or descriptor": func(t *testing.T, b *bench) {
		id := b.template(map[string]string{"F": "x"})
		use := func(n int) {
			x := b.open(b.claim(fmt.Sprint("use/", n), 1, id))
			x.out("echo y >F; sleep 100 >/dev/null 2>&1 & cat F")
			x.release()
		}
		for i := range 8 {
			use(i)
		}
		before := leftovers(t)
		for i := range 200 {
			use(1000 + i)
		}
		require.Equal(t, before, leftovers(t))
		st, err := b.h.Stats(b.ctx())
		require.NoError(t, err)
		require.EqualValues(t, 208, st.Claims)
		require.EqualValues(t, 208, st.Resets)
		require.Zero(t, st.Leased+st.Quarantined)
		require.Zero(t, st.Destroyed)
	},
}

// left counts what a host holds of this machine.
type left struct{ processes, mounts, descriptors int }

// leftovers counts this process's descendants, its mounts and its open descriptors.
func leftovers(t *testing.T) left {
	t.Helper()
	var l left
	parents := map[string]string{}
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (comm) state ppid …; comm may hold anything, so cut at its last bracket.
		s := string(b)
		if f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]); len(f) > 1 {
			parents[e.Name()] = f[1]
		}
	}
	self := fmt.Sprint(os.Getpid())
	for p := range parents {
		for q := p; q != "" && q != "0"; q = parents[q] {
			if parents[q] == self {
				l.processes++
				break
			}
		}
	}
	m, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	l.mounts = strings.Count(string(m), "\n")
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	l.descriptors = len(fds)
	return l
}
