package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/task"
)

func generate(t *testing.T, args ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tasks")
	require.NoError(t, run(append([]string{"-out", dir}, args...), io.Discard))
	return dir
}

func digests(t *testing.T, dir, split string) []policy.Digest {
	t.Helper()
	tasks, err := task.LoadSet(dir, split)
	require.NoError(t, err)
	var out []policy.Digest
	for _, x := range tasks {
		out = append(out, x.Digest)
	}
	return out
}

// TestSplits checks that the same flags make the same tasks, that no
// evaluation task is a training task, and that neither split moves the other.
func TestSplits(t *testing.T) {
	dir := generate(t, "-seed", "3", "-train", "40", "-eval", "20")
	train, eval := digests(t, dir, "train"), digests(t, dir, "eval")
	require.Len(t, train, 40)
	require.Len(t, eval, 20)
	require.Equal(t, train, digests(t, generate(t, "-seed", "3", "-train", "40", "-eval", "20"), "train"))
	require.NotEqual(t, train, digests(t, generate(t, "-seed", "4", "-train", "40", "-eval", "20"), "train"))
	wider := generate(t, "-seed", "3", "-train", "50", "-eval", "5")
	require.Equal(t, train, digests(t, wider, "train")[:40])
	require.Equal(t, eval[:5], digests(t, wider, "eval"))
	for _, d := range eval {
		require.NotContains(t, train, d)
	}
}

// TestNoOverlapWhenCrowded draws most of a small space, where chance alone would repeat.
func TestNoOverlapWhenCrowded(t *testing.T) {
	seen := map[world]bool{}
	a := draw(1, streamTrain, 20000, seen)
	b := draw(1, streamEval, 20000, seen)
	require.Len(t, seen, len(a)+len(b))
}

func TestTaskContent(t *testing.T) {
	dir := generate(t, "-train", "30", "-eval", "1")
	tasks, err := task.LoadSet(dir, "train")
	require.NoError(t, err)
	for _, x := range tasks {
		require.Regexp(t, `^read F[0-7]\n$`, x.Instruction)
		name := strings.Fields(x.Instruction)[1]
		digit, err := os.ReadFile(filepath.Join(x.Dir, "environment/files", name))
		require.NoError(t, err, "the target is there")
		want, err := os.ReadFile(filepath.Join(x.Dir, "tests/expected.txt"))
		require.NoError(t, err)
		require.Equal(t, want, digit)
		require.Regexp(t, `^\d\n$`, string(digit))
		list, err := os.ReadDir(filepath.Join(x.Dir, "environment/files"))
		require.NoError(t, err)
		require.Len(t, list, kept)
		require.Equal(t, []string{"/app/answer.txt"}, x.Artifacts)
		require.True(t, x.HasSolution)
	}
}

func TestLatencyVariant(t *testing.T) {
	dir := generate(t, "-train", "30", "-eval", "1", "-latency")
	tasks, err := task.LoadSet(dir, "train")
	require.NoError(t, err)
	plain, err := task.LoadSet(generate(t, "-train", "30", "-eval", "1"), "train")
	require.NoError(t, err)
	for i, x := range tasks {
		require.Equal(t, "/app/.bin:"+task.BasePath, x.Env["PATH"])
		require.Equal(t, plain[i].Instruction, x.Instruction, "only the latency differs")
		info, err := os.Stat(filepath.Join(x.Dir, "environment/bin/cat"))
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&0o111)
	}
	require.NotEqual(t, tasks[0].AgentTemplate().Digest, plain[0].AgentTemplate().Digest)

	r := rand.New(rand.NewPCG(1, 2))
	var all []float64
	for range 2000 {
		all = append(all, drawLatencies(r)...)
	}
	slices.Sort(all)
	require.InDelta(t, 0.050, all[len(all)/2], 0.005)
	require.InDelta(t, 1.5, all[len(all)*99/100], 0.15)
	require.LessOrEqual(t, all[len(all)-1], latencyMost)

	// The script is a cat in everything but time.
	script := filepath.Join(t.TempDir(), "cat")
	require.NoError(t, os.WriteFile(script, []byte(slowCat([]float64{0, 0.001})), 0o755))
	out, err := exec.Command(script, script).Output()
	require.NoError(t, err)
	require.Equal(t, slowCat([]float64{0, 0.001}), string(out))
}

func TestRunRefuses(t *testing.T) {
	dir := generate(t, "-train", "2", "-eval", "1")
	var out bytes.Buffer
	require.NoError(t, run([]string{"-out", dir, "-train", "2", "-eval", "1"}, &out))
	require.Contains(t, out.String(), "there already")
	other := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "mine"), nil, 0o644))
	for _, c := range []struct {
		says string
		args []string
	}{
		{"nothing to make", nil},
		{"at least 1", []string{"-out", "x", "-train", "0"}},
		{"more would repeat", []string{"-out", "x", "-train", "1000000"}},
		{"made with other flags", []string{"-out", dir, "-train", "3", "-eval", "1"}},
		{"not made by this program", []string{"-out", other}},
		{"unexpected argument", []string{"-out", "x", "y"}},
	} {
		require.ErrorContains(t, run(c.args, io.Discard), c.says)
	}
}

// TestVerdictScript runs tests/test.sh with its two directories moved below a temporary one.
func TestVerdictScript(t *testing.T) {
	for _, c := range []struct {
		name, expected, answer, want string // "-" is no file
	}{
		{"right", "7\n", "7\n", "1\n"},
		{"right without newline", "7\n", "7", "1\n"},
		{"wrong", "7\n", "3\n", "0\n"},
		{"longer", "7\n", "77\n", "0\n"},
		{"pattern", "7\n", "*\n", "0\n"},
		{"empty", "7\n", "", "0\n"},
		{"missing", "7\n", "-", "0\n"},
		{"no expectation", "-", "-", "-"},
		{"empty expectation", "", "", "-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range []struct{ name, text string }{{"tests/expected.txt", c.expected}, {"app/answer.txt", c.answer}, {"logs/verifier/keep", ""}} {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f.name)), 0o755))
				if f.text != "-" {
					require.NoError(t, os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o644))
				}
			}
			script := strings.NewReplacer("/tests/", dir+"/tests/", "/app/", dir+"/app/", "/logs/", dir+"/logs/").Replace(strings.TrimPrefix(testScript, "#!/bin/bash"))
			_ = exec.Command("bash", "-c", script).Run() // its exit code is not what decides
			got, err := os.ReadFile(filepath.Join(dir, "logs/verifier/reward.txt"))
			if c.want == "-" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
		})
	}
}

func corpus(t *testing.T, args ...string) [][]turn {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sft.jsonl")
	require.NoError(t, run(append([]string{"-sft", file}, args...), io.Discard))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var out [][]turn
	for line := range strings.Lines(string(text)) {
		var e struct {
			Turns []turn `json:"turns"`
		}
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&e))
		out = append(out, e.Turns)
	}
	return out
}

// What turns of the corpus look like.
var (
	asks    = regexp.MustCompile(`^read F[0-7]$`)
	says    = regexp.MustCompile(`^(ls|cat F[0-7]|answer \d)$`)
	replies = regexp.MustCompile(`^(\d|F\d(\nF\d){3}|cat: F\d: No such file or directory)$`)
)

// TestCorpus checks the scripted policy's promises on what it wrote: valid
// syntax, answers that repeat a digit seen, mostly looking first, and a choice
// of file that is independent of the target.
func TestCorpus(t *testing.T) {
	episodes := corpus(t, "-episodes", "8000", "-seed", "5")
	require.Len(t, episodes, 8000)
	require.Equal(t, episodes[:50], corpus(t, "-episodes", "50", "-seed", "5"))
	reads, ofTarget, looks, lookedTarget, blind, answers := 0, 0, 0, 0, 0, 0
	for _, turns := range episodes {
		require.Equal(t, "user", turns[0].Role)
		require.Regexp(t, asks, turns[0].Content)
		target := strings.Fields(turns[0].Content)[1]
		require.Equal(t, "assistant", turns[len(turns)-1].Role)
		require.LessOrEqual(t, len(turns), 2*maxTurns)
		var seen []string
		listed := ""
		for i, x := range turns[1:] {
			require.Equal(t, []string{"assistant", "tool"}[i%2], x.Role)
			if x.Role == "tool" {
				require.Regexp(t, replies, x.Content)
				if len(x.Content) == 1 {
					seen = append(seen, x.Content)
				}
				if strings.HasPrefix(x.Content, "F") {
					listed = x.Content
				}
				continue
			}
			require.Regexp(t, says, x.Content)
			if name, ok := strings.CutPrefix(x.Content, "cat "); ok {
				reads++
				if name == target {
					ofTarget++
				}
				if listed != "" {
					require.Contains(t, listed, name, "it reads what it was shown")
					looks++
					if name == target {
						lookedTarget++
					}
				}
			}
			if digit, ok := strings.CutPrefix(x.Content, "answer "); ok {
				answers++
				require.Equal(t, len(turns)-2, i, "an answer ends the episode")
				if len(seen) == 0 {
					blind++
				} else {
					require.Contains(t, seen, digit)
				}
			}
		}
	}
	require.InDelta(t, 1.0/names, float64(ofTarget)/float64(reads), 0.01, "the target is read as often as any other file")
	require.InDelta(t, 1.0/names, float64(lookedTarget)/float64(looks), 0.015, "also after ls")
	require.Less(t, float64(blind)/float64(answers), 0.3)
	require.Greater(t, blind, 0)
}

// TestRepliesAreReal runs the same commands with the real tools on the task's own files.
func TestRepliesAreReal(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 3 {
		w := drawWorld(r)
		dir := t.TempDir()
		require.NoError(t, writeFiles(dir, w.taskFiles()))
		sh := func(command string) string {
			c := exec.Command("sh", "-c", command)
			c.Dir, c.Env = filepath.Join(dir, "environment/files"), []string{"PATH=" + task.BasePath}
			out, _ := c.CombinedOutput() // cat of a missing file exits 1
			return strings.TrimSuffix(string(out), "\n")
		}
		require.Equal(t, w.ls(), sh("ls"))
		for i := range names {
			require.Equal(t, w.cat(i), sh(fmt.Sprintf("cat F%d", i)))
		}
	}
}
