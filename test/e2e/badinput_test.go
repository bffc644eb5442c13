package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// refuses runs rlctl and requires one clear sentence and the exit code. The
// sentence has the words, and no more than two lines tell it.
func refuses(t *testing.T, programs, dir string, exit int, words []string, args ...string) {
	t.Helper()
	refusesWith(t, exec.Command(filepath.Join(programs, "rlctl"), args...), dir, exit, words)
}

func refusesWith(t *testing.T, cmd *exec.Cmd, dir string, exit int, words []string) {
	t.Helper()
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	err := cmd.Run()
	require.Equal(t, exit, code(t, err), out.String())
	said := complaint(out.String())
	for _, w := range words {
		require.Contains(t, said, w)
	}
	require.LessOrEqual(t, strings.Count(said, "\n"), 2, said)
	for _, noise := range []string{"Usage:", "goroutine ", "panic", "Available Commands"} {
		require.NotContains(t, out.String(), noise)
	}
}

// complaint is what follows the progress of a run, if there was any.
func complaint(said string) string {
	if i := strings.Index(said, "rlctl: "); i >= 0 {
		return said[i:]
	}
	return said
}

// refusal is a command line that cannot be carried out.
type refusal struct {
	name  string
	exit  int
	words []string // of the sentence
	args  []string
}

func TestBadInput(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	spec := filepath.Join(programs, "example", "small.yaml")
	tasks := func(name string) string { return "spec.envs[0].tasks.source=" + filepath.Join(dir, name) }
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "empty", "train"), 0o755))
	for _, name := range []string{"no-tests", "no-toml"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(programs, "example", "tasks"))))
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "no-tests", "train", "train-0003", "tests", "test.sh")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "no-toml", "train", "train-0003", "task.toml"), []byte("artefacts = 7\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("spec: [\n"), 0o644))
	run := func(args ...string) []string { return append([]string{"run", spec}, args...) }
	set := func(s ...string) []string {
		args := run()
		for _, x := range s {
			args = append(args, "--set", x)
		}
		return args
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()

	for _, c := range []refusal{
		{"no such command", 2, []string{`"rnu"`, "there are", "run"}, []string{"rnu"}},
		{"no such subcommand", 2, []string{`"lss"`, "there are", "ls"}, []string{"runs", "lss"}},
		{"no file", 2, []string{"rlctl run FILE"}, []string{"run"}},
		{"too many files", 2, []string{"rlctl run FILE"}, run("other.yaml")},
		{"no such flag", 2, []string{"--sett"}, run("--sett", "x")},
		{"no such spec", 2, []string{"absent.yaml"}, []string{"run", "absent.yaml"}},
		{"no YAML", 2, []string{"broken.yaml:"}, []string{"run", "broken.yaml"}},
		{"a misspelt key", 2, []string{`"stps"`, `did you mean "steps"`}, set("spec.stps=1")},
		{"an impossible size", 2, []string{"memory", `"12parsecs"`, "256Mi"}, set("spec.envs[0].environment.limits.memory=12parsecs")},
		{"lag below 0", 2, []string{"spec.lag.max", "-1", "at least 0"}, set("spec.lag.max=-1")},
		{"nobody to compare with", 2, []string{"groupSize is at least 2"}, set("spec.envs[0].groupSize=1")},
		{"what is not in this build", 2, []string{"s3://", "not in this build", "file://"}, set("spec.storage=s3://bucket/x")},
		{"an empty task directory", 2, []string{"no task directory"}, set(tasks("empty"))},
		{"no task directory", 2, []string{"no such task directory"}, set(tasks("absent"))},
		{"a task without tests", 2, []string{"train-0003", "no tests/test.sh"}, set(tasks("no-tests"))},
		{"a task with a misspelt key", 2, []string{"train-0003", "unknown key artefacts"}, set(tasks("no-toml"))},
		{"no policy", 2, []string{"no policy in", "rlctl policy init"}, set("spec.policy.init=./absent")},
		{"an unknown architecture", 2, []string{"tiny://llama"}, set("spec.policy.init=tiny://gpt")},
		{"metrics for everybody", 2, []string{"0.0.0.0:9", "loopback"}, run("--metrics", "0.0.0.0:9")},
		{"metrics nowhere", 2, []string{`"nonsense"`, "HOST:PORT"}, run("--metrics", "nonsense")},
		{"a port in use", 1, []string{busy.Addr().String(), "in use", "another port"}, run("--metrics", busy.Addr().String())},
		{"no rlguest", 1, []string{"/absent/rlguest", "make build"}, run("--guest", "/absent/rlguest")},
		{"no corpus", 2, []string{"absent.jsonl"}, []string{"policy", "init", "--sft", "absent.jsonl"}},
		{"no corpus named", 2, []string{"--sft FILE"}, []string{"policy", "init"}},
		{"nothing to validate", 2, []string{"no task directory"}, []string{"task", "validate", "empty"}},
		{"no jobs", 2, []string{"--jobs 0"}, []string{"task", "validate", "empty", "--jobs", "0"}},
		{"no storage", 1, []string{"no storage here"}, []string{"runs", "ls"}},
		{"no storage to verify", 1, []string{"no storage here"}, []string{"traj", "verify"}},
		{"a storage of another kind", 2, []string{"s3://x", "file://DIR"}, []string{"runs", "ls", "--storage", "s3://x"}},
		{"another output", 2, []string{"-o yaml", "json"}, []string{"runs", "ls", "-o", "yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer os.RemoveAll(filepath.Join(dir, ".rlfleet"))
			refuses(t, programs, dir, c.exit, c.words, c.args...)
			require.NoDirExists(t, filepath.Join(dir, ".rlfleet", "files-small-1"), "a run that cannot start was created")
		})
	}
}

// What the machine lacks is said before anything is made, with the one command that mends it.
func TestMissingOnTheMachine(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	spec := filepath.Join(programs, "example", "small.yaml")
	rlctl := filepath.Join(programs, "rlctl")
	refusing, err := os.MkdirTemp("", "rlfleet-bwrap-") // where other users can reach it, as they can /usr/bin
	require.NoError(t, err)
	defer os.RemoveAll(refusing)
	require.NoError(t, os.Chmod(refusing, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(refusing, "bwrap"), []byte("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"), 0o755))
	for _, c := range []struct {
		name  string
		words []string
		cmd   func(args ...string) *exec.Cmd
	}{
		{"bubblewrap", []string{"bubblewrap is not installed; run: apt-get install -y bubblewrap\n"}, func(args ...string) *exec.Cmd {
			cmd := exec.Command(rlctl, args...)
			cmd.Env = []string{"PATH=/absent", "HOME=" + dir}
			return cmd
		}},
		// The kernel's own switch, thrown in a user namespace of its own.
		{"user namespaces", []string{"user namespaces are switched off; run: sysctl -w user.max_user_namespaces="}, func(args ...string) *exec.Cmd {
			return exec.Command("unshare", slices.Concat([]string{"-Ur", "sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"`, rlctl}, args)...)
		}},
		// A bwrap that is refused for reasons of its own, as in a container.
		{"the right to make namespaces", []string{"bwrap cannot make namespaces here", "No permissions", "run: docker run"}, func(args ...string) *exec.Cmd {
			cmd := exec.Command(rlctl, args...)
			cmd.Env = append(os.Environ(), "PATH="+refusing+":"+os.Getenv("PATH"))
			return cmd
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refusesWith(t, c.cmd("run", spec), dir, 1, c.words)
			refusesWith(t, c.cmd("run", spec, "--processes"), dir, 1, c.words)
			require.NoDirExists(t, filepath.Join(dir, ".rlfleet"))
			out, err := c.cmd("doctor").CombinedOutput()
			require.Equal(t, 1, code(t, err))
			require.Contains(t, string(out), "BAD  bubblewrap")
		})
	}
}

// Names that are not there, for every command that takes one.
func TestUnknownNames(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	said, err := rlctl(t, programs, dir, "run", filepath.Join(programs, "example", "small.yaml"), "--set", "spec.steps=1")
	require.NoError(t, err, said)
	for _, args := range [][]string{
		{"runs", "show", "nope"},
		{"runs", "why", "nope"},
		{"runs", "pause", "nope"},
		{"runs", "resume", "nope"},
		{"runs", "cancel", "nope"},
		{"runs", "rm", "nope"},
		{"policy", "ls", "nope"},
		{"policy", "export", "nope", "--out", "q"},
	} {
		refuses(t, programs, dir, 1, []string{`no run "nope"`, "files-small-1"}, args...)
	}
	for _, args := range [][]string{
		{"traj", "ls", "nope"}, {"traj", "show", "nope", "1/0"}, {"traj", "verify", "nope"}, {"traj", "replay", "nope", "--step", "0"}, {"runs", "report", "nope"},
	} {
		refuses(t, programs, dir, 1, []string{`no run "nope"`, "rlctl runs ls"}, args...)
	}
	for _, c := range []refusal{
		{"an episode", 1, []string{"no episode 9999/0", "rlctl traj ls files-small-1"}, []string{"traj", "show", "files-small-1", "9999/0"}},
		{"a version", 1, []string{"no version 99"}, []string{"policy", "export", "files-small-1@99", "--out", "q"}},
		{"no version", 2, []string{"a version is a number from 0"}, []string{"policy", "export", "files-small-1@x", "--out", "q"}},
		{"a step", 1, []string{"step 99"}, []string{"traj", "replay", "files-small-1", "--step", "99"}},
		{"a run and nothing more", 2, []string{"rlctl traj show RUN EPISODE"}, []string{"traj", "show", "files-small-1"}},
	} {
		t.Run(c.name, func(t *testing.T) { refuses(t, programs, dir, c.exit, c.words, c.args...) })
	}
	require.NoDirExists(t, filepath.Join(dir, "q"))
	clean(t, programs, dir)
}
