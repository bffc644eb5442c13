package verifier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// makeTask writes and loads a task with the given tests/test.sh and solution/solve.sh (none when empty).
func makeTask(t testing.TB, test, solve string) *task.Task {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a-task")
	files := map[string]string{
		"task.toml":                  "artifacts = [\"/app/answer.txt\", \"/app/out\"]\n[verifier]\nenvironment_mode = \"separate\"\nenv = {EXTRA = \"seen\"}\n",
		"instruction.md":             "do it\n",
		"environment/Dockerfile":     "FROM x\nWORKDIR /app\nCOPY files /app\n",
		"environment/files/question": "7\n",
		"tests/test.sh":              test,
		"tests/expected.txt":         "7\n",
	}
	if solve != "" {
		files["solution/solve.sh"] = solve
	}
	for name, text := range files {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	out, err := task.Load(dir)
	require.NoError(t, err)
	return out
}

func makeJob(tk *task.Task) Job {
	return Job{
		Run: "r", Group: 3, Index: 1, Attempt: 1, Task: tk, EndReason: outcome.Stop, Timeout: 5 * time.Second,
		Lease: lease.Token{Resource: "verify/r/3/1", Holder: "v", Fence: 4, TTL: time.Minute},
	}
}

func answer(text string) []envpool.File {
	return []envpool.File{{Path: "/app/answer.txt", Mode: 0o644, Data: []byte(text)}}
}

const compare = `read -r want < /tests/expected.txt
got=; [ -f /app/answer.txt ] && read -r got < /app/answer.txt
if [ "$got" = "$want" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
`

func number64(v float64) *float64 { return &v }

// verdictCase is one tests/test.sh and the judgement it must lead to.
type verdictCase struct {
	name      string
	test      string
	artifacts []envpool.File
	timeout   time.Duration
	verdict   outcome.Verdict
	reason    Reason
	end       outcome.EndReason
	reward    *float64
	says      string
	exit      int // −1: none
}

// verdictCases hold on every host.
func verdictCases() []verdictCase {
	pass := func(name, test string) verdictCase {
		return verdictCase{name: name, test: test, artifacts: answer("7"), verdict: outcome.Pass, reason: ChecksPassed, reward: number64(1)}
	}
	missing := func(name, test string, exit int) verdictCase {
		return verdictCase{name: name, test: test, artifacts: answer("7"), verdict: outcome.Indeterminate, reason: MalformedOutput, end: outcome.RewardMissing, says: "left no reward", exit: exit}
	}
	malformed := func(name, test, says string) verdictCase {
		return verdictCase{name: name, test: test, artifacts: answer("7"), verdict: outcome.Indeterminate, reason: MalformedOutput, end: outcome.MalformedReward, says: says}
	}
	fail := pass("wrong", compare)
	fail.artifacts, fail.verdict, fail.reason, fail.reward = answer("3"), outcome.Fail, ChecksFailed, number64(0)
	none := fail
	none.name, none.artifacts, none.reason = "nothing handed in", nil, NoArtifact
	background := fail
	background.name = "background writer"
	background.test = compare + "( while :; do [ -e /logs/verifier/reward.txt ] && { sleep 0.2; echo 1 > /logs/verifier/reward.txt; }; done ) > /logs/out 2>&1 &\n"
	exits := pass("exit code does not count", compare+"exit 3\n")
	exits.exit = 3
	fromJSON := pass("reward.json comes first", "echo 0 > /logs/verifier/reward.txt; echo '{\"reward\": 2, \"style\": 0.5}' > /logs/verifier/reward.json\n")
	fromJSON.reward = number64(2)
	return []verdictCase{
		pass("right", compare), fail, none, exits, background, fromJSON,
		pass("floods its output", compare+"n=0; while [ $n -lt 20000 ]; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; echo bbbbbbbbbbbbbbbb >&2; n=$((n+1)); done\n"),
		pass("sees its environment", "[ \"$EXTRA\" = seen ] && echo 1 > /logs/verifier/reward.txt\n"),
		{
			name: "hangs", test: compare + "while :; do read -t 1 x <> /dev/null; done\n", artifacts: answer("7"), timeout: 300 * time.Millisecond,
			verdict: outcome.Indeterminate, reason: VerifierTimeout, end: outcome.VerifierTimeout, says: "did not end within 300ms", exit: -1,
		},
		{
			name: "is killed", test: compare + "kill -9 $$\n", artifacts: answer("7"),
			verdict: outcome.Indeterminate, reason: VerifierCrash, end: outcome.VerifierCrash, says: "signal 9", exit: -1,
		},
		missing("writes nothing", "exit 4\n", 4),
		missing("does not parse", "if\n", 2),
		missing("writes a directory", "mkdir -p /logs/verifier/other\n", 0),
		malformed("writes NaN", "echo NaN > /logs/verifier/reward.txt\n", "not a finite decimal number"),
		malformed("writes an empty file", "echo > /logs/verifier/reward.txt\n", "not a finite decimal number"),
		malformed("writes broken JSON over a good text", compare+"echo '{\"reward\":' > /logs/verifier/reward.json\n", "reward.json"),
		malformed("writes too much", "x=0000000000; for i in 1 2 3 4 5; do x=$x$x$x$x$x$x$x$x$x$x; done; echo $x > /logs/verifier/reward.txt; echo $x >> /logs/verifier/reward.txt; echo $x >> /logs/verifier/reward.txt\n", "larger than 1 MiB"),
		missing("writes a link", "ln -s /app/answer.txt /logs/verifier/reward.txt\n", 0),
	}
}

func runVerdictCases(t *testing.T, host envpool.Host) {
	for _, c := range verdictCases() {
		t.Run(c.name, func(t *testing.T) {
			job := makeJob(makeTask(t, c.test, ""))
			job.Lease.Resource += "/" + strings.ReplaceAll(c.name, " ", "-")
			job.Artifacts = c.artifacts
			if c.timeout > 0 {
				job.Timeout = c.timeout
			}
			j, err := Judge(context.Background(), host, job)
			require.NoError(t, err)
			require.Equal(t, c.verdict, j.Verdict, "%s: %v", j.Detail, j.Evidence)
			require.Equal(t, c.reason, j.Reason)
			require.Equal(t, c.end, j.End)
			require.Equal(t, c.reward, j.Reward)
			require.Contains(t, j.Detail, c.says)
			if c.exit < 0 {
				require.Nil(t, j.ExitCode)
			} else {
				require.NotNil(t, j.ExitCode)
				require.Equal(t, c.exit, *j.ExitCode)
			}
			require.Equal(t, 1, j.Tries)
			require.Equal(t, Script, j.Verifier)
			require.Equal(t, job.Task.VerifierTemplate().Digest, j.Digest)
			require.NotZero(t, j.Duration)
			for _, e := range j.Evidence {
				require.LessOrEqual(t, len(e.Excerpt), MaxExcerpt)
			}
			if c.name == "floods its output" {
				require.EqualValues(t, 20000*33, j.Evidence[0].Bytes)
			}
		})
	}
}

func TestVerdicts(t *testing.T) { runVerdictCases(t, newDirHost(t)) }

func TestComponentsAndChecks(t *testing.T) {
	j, err := Judge(context.Background(), newDirHost(t), makeJob(makeTask(t, "echo '{\"b\": 0.5, \"reward\": 0.75, \"a\": 1}' > /logs/verifier/reward.json\n", "")))
	require.NoError(t, err)
	require.Equal(t, outcome.Fail, j.Verdict, "below the threshold")
	require.Equal(t, map[string]float64{"a": 1, "b": 0.5, "reward": 0.75}, j.Components)
	require.Equal(t, []Check{{"a", true, 1}, {"b", false, 0.5}, {"reward", false, 0.75}}, j.Checks)
}

func TestParseJSON(t *testing.T) {
	for text, want := range map[string]float64{
		"1": 1, " -0.5 ": -0.5, `{"x": 1e0}`: 1, `{"reward": 0, "x": 1}`: 0,
	} {
		got, _, err := parseJSON([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "x", "[1]", `"1"`, "true", "null", "{}", `{"a": 1, "b": 1}`, `{"a": 1, "a": 1}`, `{"reward": null}`, `{"reward": "1"}`,
		`{"reward": {"a": 1}}`, `{"reward": 1e309}`, `{"reward": NaN}`, `{"reward": 1`, `{"reward": 1} 2`, `{"reward": 1}}`, "1 2", `{"reward": true}`,
	} {
		_, _, err := parseJSON([]byte(text))
		require.ErrorIs(t, err, errReward, text)
	}
	for _, text := range []string{"", "inf", "-Infinity", "nan", "0x1p3", "1_0", "1e309", "1 2", "one"} {
		_, _, err := parseText([]byte(text))
		require.ErrorIs(t, err, errReward, text)
	}
}

func TestRetries(t *testing.T) {
	// The first two tries find no marker on the host and leave no reward.
	marker := filepath.Join(t.TempDir(), "n")
	test := fmt.Sprintf("echo x >> %s; n=0; while read -r _; do n=$((n+1)); done < %s; [ $n -gt 2 ] && echo 1 > /logs/verifier/reward.txt\n", marker, marker)
	host := newDirHost(t)
	job := makeJob(makeTask(t, test, ""))
	job.Retries = 1
	j, err := Judge(context.Background(), host, job)
	require.NoError(t, err)
	require.Equal(t, outcome.Indeterminate, j.Verdict)
	require.Equal(t, 2, j.Tries)
	job.Lease.Fence++
	j, err = Judge(context.Background(), host, job)
	require.NoError(t, err)
	require.Equal(t, outcome.Pass, j.Verdict)
	require.Equal(t, 1, j.Tries)
	require.Equal(t, 3, host.released, "every try had a sandbox of its own")
	var resources []string
	for _, c := range host.claims {
		require.Equal(t, envpool.QuotaVerifier, c.Quota)
		resources = append(resources, c.Lease.Resource)
	}
	require.Equal(t, []string{"verify/r/3/1", "verify/r/3/1/try-2", "verify/r/3/1"}, resources)
}

// TestInfrastructure checks that trouble of the host is an error, or
// indeterminate with evidence from the host, and never a fail.
func TestInfrastructure(t *testing.T) {
	always := func(err error) func(int) error { return func(int) error { return err } }
	for _, c := range []struct {
		name string
		set  func(h *dirHost)
		kind error
	}{
		{"no slot", func(h *dirHost) { h.onClaim = always(envpool.ErrNoSlot) }, envpool.ErrNoSlot},
		{"cannot be made", func(h *dirHost) { h.onClaim = always(envpool.ErrEnvironment) }, envpool.ErrEnvironment},
		{"fenced", func(h *dirHost) { h.onExec = always(lease.ErrFenced) }, lease.ErrFenced},
		{"host restarted", func(h *dirHost) { h.onExec = always(envpool.ErrUnknown) }, envpool.ErrUnknown},
		{"deadline", func(h *dirHost) { h.onExec = always(context.DeadlineExceeded) }, context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := newDirHost(t)
			c.set(host)
			job := makeJob(makeTask(t, compare, ""))
			job.Retries = 2
			_, err := Judge(context.Background(), host, job)
			require.ErrorIs(t, err, ErrInfrastructure)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, "r/3/1.1")
			require.Len(t, host.claims, 1, "the caller retries, not Judge")
		})
	}
	t.Run("sandbox dies once", func(t *testing.T) {
		host := newDirHost(t)
		host.onExec = func(n int) error {
			if n == 1 {
				return envpool.ErrEnvironment
			}
			return nil
		}
		job := makeJob(makeTask(t, compare, ""))
		job.Retries, job.Artifacts = 2, answer("7")
		j, err := Judge(context.Background(), host, job)
		require.NoError(t, err)
		require.Equal(t, outcome.Pass, j.Verdict)
		require.Equal(t, 2, j.Tries)
	})
	t.Run("sandbox always dies", func(t *testing.T) {
		host := newDirHost(t)
		host.onExec = always(envpool.ErrEnvironment)
		job := makeJob(makeTask(t, compare, ""))
		job.Retries = 2
		j, err := Judge(context.Background(), host, job)
		require.NoError(t, err)
		require.Equal(t, outcome.Indeterminate, j.Verdict)
		require.Equal(t, SandboxFailure, j.Reason)
		require.Nil(t, j.Reward)
		require.Equal(t, 3, j.Tries)
	})
	t.Run("release fails", func(t *testing.T) {
		host := newDirHost(t)
		host.onRelease = always(errors.New("release failed"))
		job := makeJob(makeTask(t, compare, ""))
		j, err := Judge(context.Background(), host, job)
		require.NoError(t, err, "a judgement that stands is kept")
		require.Equal(t, outcome.Fail, j.Verdict)
	})
}

func TestTampering(t *testing.T) {
	for _, p := range []string{"/logs/verifier/reward.json", "/tests/test.sh", "/app/other", "/app/out/../other", "/app/answer.txt/..", "/app/answer.txt2"} {
		job := makeJob(makeTask(t, compare, ""))
		job.Artifacts, job.Retries = []envpool.File{{Path: p, Data: []byte("1")}}, 5
		host := newDirHost(t)
		j, err := Judge(context.Background(), host, job)
		require.NoError(t, err)
		require.Equal(t, outcome.Indeterminate, j.Verdict, p)
		require.Equal(t, Tampering, j.Reason, p)
		require.Nil(t, j.Reward)
		require.Empty(t, host.claims)
	}
	host := newDirHost(t)
	host.plant = "/logs/verifier/reward.txt"
	j, err := Judge(context.Background(), host, makeJob(makeTask(t, compare, "")))
	require.NoError(t, err)
	require.Equal(t, Tampering, j.Reason)
	require.Contains(t, j.Detail, "before the tests ran")

	job := makeJob(makeTask(t, compare, ""))
	job.Artifacts = []envpool.File{{Path: "/app/out/deep/file", Data: []byte("1")}}
	j, err = Judge(context.Background(), newDirHost(t), job)
	require.NoError(t, err, "below a declared directory")
	require.Equal(t, ChecksFailed, j.Reason)
}

func TestTimeoutIsTheLower(t *testing.T) {
	for _, c := range []struct{ spec, own, want time.Duration }{
		{0, 0, defaultWall}, {3, 0, 3}, {0, 4, 4}, {3, 4, 3}, {5, 4, 4},
	} {
		require.Equal(t, c.want, timeout(Job{Timeout: c.spec, Task: &task.Task{VerifierTimeout: c.own}}))
	}
}

func TestExcerptIsText(t *testing.T) {
	got := excerpt([]byte(strings.Repeat("\xff", 2*MaxExcerpt)))
	require.LessOrEqual(t, len(got), MaxExcerpt)
	require.True(t, strings.HasPrefix(got, "\ufffd"))
	require.Equal(t, "a\x1b[1mb", excerpt([]byte("a\x1b[1mb")))
}
