package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// trial is a task whose tool, tests or both misbehave. The agent says `work`
// once or twice, or seldom not at all, then `answer 0` or `answer 1`; 1 is right.
type trial struct {
	name string
	work string // body of the agent's only tool, a bash script; empty does nothing
	test string // body of tests/test.sh; empty is honest
	end  string // of episodes in which the tool or the tests ran; empty: any of class model or limit
	lost bool   // whether an answer cannot be handed in once the tool has run
}

// honest is a test that gives what the answer is worth.
const honest = `got=
if [ -f /app/answer.txt ]; then read -r got < /app/answer.txt; fi
if [ "$got" = 1 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt`

const trialConfig = `schema_version = "1.4"
artifacts = ["/app/answer.txt"]
[verifier]
environment_mode = "separate"
[environment]
workdir = "/app"
`

// writeTrials makes a task directory of each trial below dir/train.
func writeTrials(t *testing.T, dir string, trials []trial) {
	t.Helper()
	for _, x := range trials {
		test := x.test
		if test == "" {
			test = honest
		}
		for name, text := range map[string]string{
			"task.toml":              trialConfig,
			"instruction.md":         "do it\n",
			"environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY bin/ /app/.bin/\nENV PATH=/app/.bin:$PATH\n",
			"environment/bin/work":   "#!/bin/bash\n# " + x.name + "\n" + x.work + "\n",
			"tests/test.sh":          "#!/bin/bash\n# " + x.name + "\n" + test + "\n",
		} {
			p := filepath.Join(dir, "train", x.name, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
			mode := fs.FileMode(0o644)
			if strings.HasPrefix(text, "#!") {
				mode = 0o755
			}
			require.NoError(t, os.WriteFile(p, []byte(text), mode))
		}
	}
}

// obedient is the policy of the trials, made once.
var obedient struct {
	once sync.Once
	dir  string
	err  error
	said string
}

// obedientPolicy returns the directory of a policy that plays trials: it was
// fitted to random episodes of them, which it repeats about as often.
func obedientPolicy(t *testing.T) string {
	t.Helper()
	programs := setUp(t)
	obedient.once.Do(func() {
		r := rand.New(rand.NewPCG(1, 1))
		var corpus strings.Builder
		for range 2000 {
			type turn struct {
				Role    string `json:"role"`
				Content string `json:"content"`
			}
			turns := []turn{{"user", "do it"}}
			for n := []int{0, 1, 1, 1, 1, 1, 1, 2, 2, 2}[r.IntN(10)]; n > 0; n-- {
				turns = append(turns, turn{"assistant", "work"}, turn{"tool", ""})
			}
			turns = append(turns, turn{"assistant", fmt.Sprintf("answer %d", r.IntN(2))})
			b, err := json.Marshal(map[string]any{"turns": turns})
			if err != nil {
				obedient.err = err
				return
			}
			corpus.Write(append(b, '\n'))
		}
		file := filepath.Join(programs, "obedient.jsonl")
		if obedient.err = os.WriteFile(file, []byte(corpus.String()), 0o644); obedient.err != nil {
			return
		}
		obedient.dir = filepath.Join(programs, "obedient")
		obedient.said, obedient.err = rlctl(t, programs, programs, "policy", "init", "--sft", file, "--steps", "80", "--out", obedient.dir)
	})
	require.NoError(t, obedient.err, obedient.said)
	return obedient.dir
}

// trialSpec is an experiment over trials; it lies beside their directories.
const trialSpec = `apiVersion: rlfleet/v1
kind: Experiment
metadata: {name: trials}
spec:
  seed: 7
  steps: 6
  policy: {init: %s}
  envs:
%s  rollout: {workers: 2, concurrency: 16}
  lag: {max: 2}
  trainer: {groupsPerStep: 4, algorithm: {preset: grpo}, lr: {value: 1e-4}}
  storage: file://.rlfleet
  deadlines: {episode: 1m, batch: 2m, publish: 1m, noProgress: 5m}
`

const trialEnv = `  - name: %[1]s
    weight: %[2]s
    groupSize: %[6]d
    tasks: {source: ./%[1]s, order: sequential, maxAttempts: %[3]d}
    environment:
      pool: {warm: 4, max: 16}
      limits: {memory: 64Mi, pids: 32, disk: 8Mi, inodes: 200, output: 4Ki}
    agent: {maxTurns: 4, maxTokens: 16, maxTurnTokens: 4, maxContext: 64, maxObservation: 12, timeout: 3s}
    rewards:
    - {name: tests, verifier: {kind: script, mode: separate, timeout: 5s, retries: %[4]d}}
    limits: {on: {maxTokens: train}}
    shortGroup: %[5]s
`

// env renders one environment of a trial experiment.
func env(name, weight string, groupSize, maxAttempts, retries int, shortGroup string) string {
	return fmt.Sprintf(trialEnv, name, weight, maxAttempts, retries, shortGroup, groupSize)
}

// writeSpec writes the experiment and returns its path.
func writeSpec(t *testing.T, dir, policy string, envs ...string) string {
	t.Helper()
	path := filepath.Join(dir, "trials.yaml")
	require.NoError(t, os.WriteFile(path, []byte(fmt.Sprintf(trialSpec, policy, strings.Join(envs, ""))), 0o644))
	return path
}

// attempt is a row of `rlctl traj ls -o json`.
type attempt struct {
	Episode     string   `json:"episode"`
	Group       uint64   `json:"group"`
	Index       int32    `json:"index"`
	Attempt     int32    `json:"attempt"`
	Task        string   `json:"task"`
	State       string   `json:"state"`
	Turns       int64    `json:"turns"`
	End         string   `json:"end_reason"`
	Verdict     string   `json:"verdict"`
	Reward      *float64 `json:"reward"`
	Disposition string   `json:"disposition"`
	GroupEnd    string   `json:"group_end"`
	Step        *int64   `json:"step"`
}

// attempts reads back all attempts of a run.
func attempts(t *testing.T, programs, dir, run string) []attempt {
	t.Helper()
	var out []attempt
	askJSON(t, &out, programs, dir, "traj", "ls", "-o", "json", "--limit", "0", run)
	return out
}

// askJSON runs a command that prints JSON.
func askJSON(t *testing.T, into any, programs, dir string, args ...string) {
	t.Helper()
	said, err := rlctl(t, programs, dir, args...)
	require.NoError(t, err, said)
	require.NoError(t, json.Unmarshal([]byte(said), into), said)
}

// failing is a task in `rlctl runs show -o json`.
type failing struct {
	Task        string `json:"task"`
	Failures    int32  `json:"failures"`
	Quarantined bool   `json:"quarantined"`
	Reason      string `json:"reason"`
}

// shown is what `rlctl runs show -o json` says of a run.
type shown struct {
	State   string    `json:"state"`
	Reason  string    `json:"reason"`
	Step    int64     `json:"step"`
	Lost    int64     `json:"attempts_lost"`
	Dropped int64     `json:"groups_dropped"`
	Failing []failing `json:"failing_tasks"`
	Waiting string    `json:"waiting"`
}

func show(t *testing.T, programs, dir, run string) shown {
	t.Helper()
	var out shown
	askJSON(t, &out, programs, dir, "runs", "show", "-o", "json", run)
	return out
}

// clean requires that the record of a run has every invariant.
func clean(t *testing.T, programs, dir string, args ...string) {
	t.Helper()
	said, err := rlctl(t, programs, dir, append([]string{"traj", "verify"}, args...)...)
	require.NoError(t, err, said)
	require.Contains(t, said, "clean")
}

// logOf returns the log of a run's programs.
func logOf(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, ".rlfleet", "rlfleet.log"))
	return string(b)
}
