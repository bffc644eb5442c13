package envpooltest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
)

var commandTests = map[string]func(*testing.T, *bench){
	"streams, status, directory, environment and input": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"F2": "hello\n", "sub/f": "below\n", "run.sh": "#!/bin/sh\necho ran $1\n"})
		r := x.run(envpool.Command{Argv: []string{"sh", "-c", "cat F2"}})
		require.Equal(t, "hello\n", string(r.Stdout))
		require.Zero(t, r.ExitCode)
		require.Empty(t, r.Stderr)
		require.EqualValues(t, 6, r.StdoutTotal)
		require.Positive(t, r.Duration)
		require.Positive(t, r.CPU)
		r = x.sh("echo out; echo err >&2; exit 7")
		require.Equal(t, "out\n", string(r.Stdout))
		require.Equal(t, "err\n", string(r.Stderr))
		require.Equal(t, 7, r.ExitCode)
		r = x.sh("kill -SEGV $$")
		require.Equal(t, -1, r.ExitCode)
		require.Equal(t, 11, r.Signal)
		require.Empty(t, r.Hit)
		require.Equal(t, "/app\n", x.out("pwd"))
		r = x.run(envpool.Command{Argv: []string{"cat", "f"}, Dir: "sub"})
		require.Equal(t, "below\n", string(r.Stdout))
		r = x.run(envpool.Command{Argv: []string{"./run.sh", "it"}})
		require.Equal(t, "ran it\n", string(r.Stdout))
		r = x.run(envpool.Command{Argv: []string{"sh", "-c", "echo $A-$B"}, Env: map[string]string{"A": "1", "B": "x y"}})
		require.Equal(t, "1-x y\n", string(r.Stdout))
		big := strings.Repeat("0123456789abcdef", 40<<10)
		r = x.run(envpool.Command{Argv: []string{"sha256sum"}, Stdin: []byte(big)})
		require.Equal(t, x.out("for i in $(seq 40960); do printf 0123456789abcdef; done | sha256sum"), string(r.Stdout))
		r = x.run(envpool.Command{Argv: []string{"true"}, Stdin: []byte(big)}) // reads none of it
		require.Zero(t, r.ExitCode)
		r = x.run(envpool.Command{Argv: []string{"cat"}})
		require.Empty(t, r.Stdout, "no input is an empty one")
	},
	"a template's workdir and environment": func(t *testing.T, b *bench) {
		id, err := b.h.Prepare(b.ctx(), envpool.Template{Digest: policy.Digest("sha256:env" + b.dir), Workdir: "/tests/deep", Env: map[string]string{"WHO": "template", "MORE": "m"}})
		require.NoError(t, err)
		x := b.open(b.claim("r", 1, id))
		r := x.run(envpool.Command{Argv: []string{"sh", "-c", "pwd; echo $WHO $MORE"}, Env: map[string]string{"WHO": "command"}})
		require.Equal(t, "/tests/deep\ncommand m\n", string(r.Stdout))
	},
	"what cannot be started is the caller's fault": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, map[string]string{"text": "no program"})
		for name, c := range map[string]envpool.Command{
			"empty":          {},
			"empty name":     {Argv: []string{""}},
			"not there":      {Argv: []string{"no-such-program"}},
			"path not there": {Argv: []string{"/usr/bin/no-such-program"}},
			"not executable": {Argv: []string{"./text"}},
			"a directory":    {Argv: []string{"/usr"}},
			"no directory":   {Argv: []string{"true"}, Dir: "/nowhere"},
			"NUL":            {Argv: []string{"echo", "a\x00b"}},
			"negative":       {Argv: []string{"true"}, Timeout: -1},
		} {
			_, err := b.h.Exec(b.ctx(), x.hd, c)
			require.ErrorIs(t, err, envpool.ErrInvalid, name)
		}
		x.out("true")
	},
	"any byte passes": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		r := x.sh(`printf '\000\377\033]0;x\007\n'`)
		require.Equal(t, "\x00\xff\x1b]0;x\x07\n", string(r.Stdout))
	},
	"what a command leaves running lives until the release": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		x.out("(while :; do date +%N >/tmp/tick; sleep 0.01; done) >/dev/null 2>&1 &")
		x.out(`a=$(cat /tmp/tick); for i in $(seq 500); do [ "$(cat /tmp/tick)" != "$a" ] && exit 0; sleep 0.01; done; exit 1`)
	},
	"an orphan that holds the streams does not hold the answer": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		start := time.Now()
		r := x.run(envpool.Command{Argv: []string{"bash", "-c", "(sleep 30; echo late) & echo now"}, Timeout: 20 * time.Second})
		require.Equal(t, "now\n", string(r.Stdout))
		require.Empty(t, r.Hit)
		require.Less(t, time.Since(start), 10*time.Second)
	},
	"the end of the context kills the command and leaves the sandbox": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		ctx, cancel := context.WithTimeout(b.ctx(), 200*time.Millisecond)
		defer cancel()
		_, err := b.h.Exec(ctx, x.hd, envpool.Command{Argv: []string{"bash", "-c", "setsid sleep 1000 & sleep 1000"}, Timeout: time.Minute})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, x.processes())
		_, err = b.h.Exec(ctx, x.hd, envpool.Command{Argv: []string{"true"}})
		require.Error(t, err)
	},
	"a thousand commands in one sandbox": func(t *testing.T, b *bench) {
		x := b.box(envpool.Limits{}, nil)
		for range 1000 {
			require.Zero(t, x.run(envpool.Command{Argv: []string{"true"}}).ExitCode)
		}
	},
}
