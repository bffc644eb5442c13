package envpooltest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

var snapshotTests = map[string]func(*testing.T, *bench){
	"a fork has the files, not the processes, and is alone": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"gone": "g", "kept": "k", "changed": "c", "dir/a": "a", "dir/b": "b", "whole/x": "x", "moved/m": "m"})
		x.out(`rm gone; echo C >changed; rm dir/a; echo n >dir/new; rm -r whole; mkdir whole; echo y >whole/y; mv moved elsewhere; chmod 700 kept
			ln -s kept link; echo t >/tmp/t; echo h >~/h; echo s >/dev/shm/s; mkfifo /app/p; printf b >$'/app/odd\n\377'; sleep 1000 &`)
		const look = `ls -AR; stat -c %a kept; cat changed dir/new whole/y elsewhere/m link /tmp/t ~/h /dev/shm/s`
		before := x.out("rm p;" + look)
		id, err := b.h.Snapshot(b.ctx(), x.hd)
		require.NoError(t, err)
		require.Empty(t, x.processes(), "a snapshot ends the processes")
		require.Equal(t, before, x.out(look), "the sandbox goes on with its files")
		y, z := b.open(b.claim("y", 1, id)), b.open(b.claim("z", 1, id))
		require.Equal(t, before, y.out(look))
		require.Empty(t, y.processes())
		x.out("echo parent >>changed; rm kept")
		y.out("echo fork >>changed; echo fork >dir/b; rm -r whole; touch gone")
		require.Equal(t, before, z.out(look), "neither the parent's nor another fork's changes are seen")
		x.release()
		y.release()
		require.Equal(t, before, z.out(look))
		w := b.open(b.claim("w", 1, id))
		require.Equal(t, before, w.out(look))
	},
	"forks of forks": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"0": "zero\n"})
		for i := 1; i <= 20; i++ {
			x.out(fmt.Sprintf("echo %d >%d; rm -f ./%d", i, i, i-2))
			id, err := b.h.Snapshot(b.ctx(), x.hd)
			require.NoError(t, err)
			x.release()
			x = b.open(b.claim(fmt.Sprint("fork/", i), 1, id))
			require.Equal(t, fmt.Sprintf("%d\n", i), x.out(fmt.Sprintf("cat %d", i)))
		}
		require.Equal(t, "19\n20\n", x.out("ls"))
	},
	"a snapshot keeps workdir and environment": func(t *testing.T, b *bench) {
		id, err := b.h.Prepare(b.ctx(), envpool.Template{Digest: "sha256:keeps", Workdir: "/app/w", Env: map[string]string{"K": "v"}})
		require.NoError(t, err)
		x := b.open(b.claim("r", 1, id))
		id, err = b.h.Snapshot(b.ctx(), x.hd)
		require.NoError(t, err)
		y := b.open(b.claim("s", 1, id))
		require.Equal(t, "/app/w v\n", y.out("echo $PWD $K"))
	},
}
