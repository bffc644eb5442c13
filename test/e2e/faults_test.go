package e2e

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trainer/objective"
	"github.com/rlfleet/rlfleet/trajectory"
)

// agentFaults are tools with which an agent harms its own sandbox. What it
// brings about is its own doing: a result that it sees, or an end of class limit.
var agentFaults = []trial{
	{name: "kills", work: `kill -9 -1; kill -9 1; kill -9 $PPID; kill -9 $$`},
	{name: "hangs", work: `sleep 1000.25`, end: "wall_clock_agent"},
	{name: "hangs-behind", work: `setsid sleep 1000.25 & echo started`},
	{name: "floods", work: `yes`},
	{name: "bombs", work: `b() { b | b & }; b`},
	{name: "memory", work: `head -c 1000m /dev/zero | tail`},
	{name: "disk", work: `head -c 1000m /dev/zero > /app/big`, end: "sandbox_limit"},
	{name: "inodes", work: `mkdir -p many; cd many; for i in {1..1000}; do : > f$i; done`, end: "sandbox_limit"},
	{name: "razes", work: `cd /; rm -rf /app; ls /app`},
	{name: "no-shell", work: `printf 'nothing' > /app/.bin/sh; chmod 755 /app/.bin/sh`},
	{name: "link", work: `rm -f answer.txt; ln -s /etc/passwd answer.txt`},
	{name: "directory", work: `rm -f answer.txt; mkdir -p answer.txt/x`, end: "stop", lost: true},
	{name: "peeks", work: `for p in /tests /solution /logs/verifier; do [ -n "$(ls -A $p 2>/dev/null)" ] && exit 7; done
cat /proc/1/environ && exit 8
find / -xdev -name test.sh -o -name expected.txt -o -name reward.txt 2>/dev/null | grep . && exit 9
exit 3`},
	{name: "plants", work: `mkdir -p /logs/verifier /tests
echo 1 | tee /logs/verifier/reward.txt /tests/expected.txt > /app/reward.txt
echo '{"reward": 1}' | tee /logs/verifier/reward.json > /app/reward.json
printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n' > /tests/test.sh
chmod 755 /tests/test.sh`},
}

// verifierFaults are tests that reach no reward.
var verifierFaults = []trial{
	{name: "bad-dies", test: `kill -9 $$`, end: "verifier_crash"},
	{name: "bad-hangs", test: `sleep 1000.25`, end: "verifier_timeout"},
	{name: "bad-floods", test: `yes`, end: "verifier_crash"},
	{name: "bad-nan", test: `echo NaN > /logs/verifier/reward.txt`, end: "malformed_reward"},
	{name: "bad-huge", test: `echo 1e999 > /logs/verifier/reward.txt`, end: "malformed_reward"},
	{name: "bad-absent", test: `echo 1`, end: "reward_missing"},
	{name: "bad-forged", test: `ln -s /proc/1/environ /logs/verifier/reward.txt`, end: "reward_missing"},
}

// innocents judge as they should, some of them among trouble of their own making.
var innocents = []trial{
	{name: "honest-1"},
	{name: "honest-2"},
	{name: "honest-late", test: honest + "\n(sleep 0.2; echo 1 > /logs/verifier/reward.txt) &"},
}

// flaky tests die one time in three. Groups are kept short where that happens.
var flaky = []trial{
	{name: "flaky-1", test: "(( RANDOM % 3 )) || kill -9 $$\n" + honest},
	{name: "flaky-2", test: "(( RANDOM % 3 )) || kill -9 $$\n" + honest},
}

// faulted is one run of all of these, read back; every test of this file looks at it.
var faulted struct {
	once   sync.Once
	dir    string
	run    *trajectory.Run
	played []played
	rows   []attempt
	shown  shown
}

// played is an attempt that was sealed, with what the agent did in it.
type played struct {
	*trajectory.Attempt
	trial  trial
	worked int    // times that it ran the tool
	last   string // its last message
	tools  []trajectory.Step
}

const faultedRun = "trials-1"

func runFaults(t *testing.T) {
	programs := setUp(t)
	policy := obedientPolicy(t)
	f := &faulted
	f.once.Do(func() {
		f.dir = filepath.Join(programs, "faults")
		require.NoError(t, os.Mkdir(f.dir, 0o755))
		writeTrials(t, filepath.Join(f.dir, "main"), slices.Concat(agentFaults, verifierFaults, innocents))
		writeTrials(t, filepath.Join(f.dir, "flaky"), flaky)
		spec := writeSpec(t, f.dir, policy,
			env("main", "1.0", 4, 3, 0, "replace"), env("flaky", "0.6", 6, 50, 0, "{kind: keep, min: 2}"))
		said, err := rlctl(t, programs, f.dir, "run", spec, "--set", "spec.steps=9")
		require.NoError(t, err, "%s\n%s", said, tail(logOf(f.dir), 6000))
		require.Contains(t, lastLine(said), "done: succeeded")
		f.rows, f.shown = attempts(t, programs, f.dir, faultedRun), show(t, programs, f.dir, faultedRun)
		s, err := file.Open(filepath.Join(f.dir, ".rlfleet"))
		require.NoError(t, err)
		r, err := trajectory.OpenRun(context.Background(), s, faultedRun)
		require.NoError(t, err)
		readPlayed(t, r, slices.Concat(agentFaults, verifierFaults, innocents, flaky))
		f.run = r
	})
	require.NotNil(t, f.run, "the run of all faults failed")
}

func readPlayed(t *testing.T, r *trajectory.Run, trials []trial) {
	for _, a := range r.Attempts() {
		if a.Sealed == nil {
			continue
		}
		i := slices.IndexFunc(trials, func(x trial) bool { return x.name == a.Group.Task.GetId() })
		p := played{Attempt: a, trial: trials[i]}
		steps, err := r.StepRows(context.Background(), a)
		require.NoError(t, err)
		for _, s := range steps {
			switch {
			case s.Role == trajectory.Assistant:
				p.last = *s.Content
			case s.Role == trajectory.Tool && strings.HasPrefix(p.last, "work"):
				p.worked++
				fallthrough
			case s.Role == trajectory.Tool:
				p.tools = append(p.tools, s)
			}
		}
		faulted.played = append(faulted.played, p)
	}
}

// of returns the sealed attempts of a trial in which the tool ran; there is at least one.
func of(t *testing.T, name string) []played {
	t.Helper()
	runFaults(t)
	var out []played
	for _, p := range faulted.played {
		if p.trial.name == name && p.worked > 0 {
			out = append(out, p)
		}
	}
	require.NotEmpty(t, out, "no agent ran the tool of %s", name)
	return out
}

// TestFaults holds every attempt against what its fault must come to.
// Infrastructure never becomes a reward: a reward is there exactly where honest
// tests saw an episode to its end, and it is what the answer was worth.
func TestFaults(t *testing.T) {
	runFaults(t)
	for _, p := range faulted.played {
		end := outcome.EndReason(p.Sealed.EndReason)
		class, err := outcome.Class(end)
		require.NoError(t, err)
		require.Contains(t, []outcome.EndClass{outcome.ClassModel, outcome.ClassLimit}, class, "%s: %s", p.ID, end)
		if p.trial.work != "" && p.trial.end != "" && p.worked > 0 && p.Sealed.EndReason != "max_tokens" {
			require.Equal(t, p.trial.end, p.Sealed.EndReason, "%s of %s", p.ID, p.trial.name)
		}
		if p.Settled == nil || p.Settled.Reward == nil {
			continue
		}
		worth := 0.0
		if end == outcome.Stop && p.last == "answer 1" && (!p.trial.lost || p.worked == 0) {
			worth = 1
		}
		require.Equal(t, worth, *p.Settled.Reward, "%s of %s said %q", p.ID, p.trial.name, p.last)
		require.Equal(t, string(outcome.Decide(end, outcome.Verdict(p.Settled.Verdict), map[outcome.EndReason]outcome.Disposition{outcome.MaxTokens: outcome.Train})),
			p.Settled.Disposition, "%s ended %s", p.ID, end)
	}
	for _, x := range agentFaults {
		of(t, x.name)
	}
	cut := []string{"stale_cancelled", "cancelled", "drained"} // with its group or run, whatever its task
	for _, r := range faulted.rows {
		i := slices.IndexFunc(verifierFaults, func(x trial) bool { return x.name == r.Task })
		switch {
		case i >= 0:
			require.Nil(t, r.Reward, "%s of %s", r.Episode, r.Task)
			require.Equal(t, "lost", r.State, "%s of %s", r.Episode, r.Task)
			require.Equal(t, "drop", r.Disposition, "%s of %s", r.Episode, r.Task)
			if !slices.Contains(cut, r.End) {
				require.Equal(t, verifierFaults[i].end, r.End, "%s of %s", r.Episode, r.Task)
				require.Equal(t, "indeterminate", r.Verdict, "%s of %s", r.Episode, r.Task)
			}
		case !strings.HasPrefix(r.Task, "flaky") && r.State == "lost":
			require.Contains(t, cut, r.End, "%s of %s", r.Episode, r.Task)
		}
	}
}

// A task that can never be judged is quarantined with its reason, and no other is.
func TestFaults_Blame(t *testing.T) {
	runFaults(t)
	reasons := map[string]string{}
	for _, f := range faulted.shown.Failing {
		if f.Quarantined {
			reasons[f.Task] = f.Reason
		}
	}
	for _, x := range verifierFaults {
		require.True(t, strings.HasPrefix(reasons[x.name], x.end+": "), "%s: %q", x.name, reasons[x.name])
		delete(reasons, x.name)
	}
	require.Empty(t, reasons, "innocent tasks are quarantined")
}

// TestFaults_Advantages recomputes the advantages of the recorded batches with
// and without the members that failed: the same bits, and those that were trained on.
func TestFaults_Advantages(t *testing.T) {
	runFaults(t)
	estimator := objective.Estimator{Kind: objective.KindGRPO, Std: true}
	telling := 0
	for _, step := range faulted.run.Steps {
		rows, err := faulted.run.LedgerRows(context.Background(), step)
		require.NoError(t, err)
		trained := map[string]*float64{}
		for _, r := range rows {
			trained[r.EpisodeID] = r.AdvantageScalar
		}
		for _, id := range step.Groups {
			var all, healthy []objective.Member
			var ids []string
			for _, a := range faulted.run.Group(id).Members() {
				m := objective.Member{Reward: a.Settled.Reward, Disposition: outcome.Disposition(a.Settled.Disposition)}
				all = append(all, m)
				if m.Disposition.InStatistics() {
					require.NotNil(t, m.Reward, a.ID)
					healthy, ids = append(healthy, m), append(ids, a.ID)
				}
			}
			with, st, err := estimator.Group(all)
			without, same, err2 := estimator.Group(healthy)
			require.Equal(t, same, st)
			if err != nil { // a single healthy member is compared with nobody
				require.ErrorIs(t, err, objective.ErrSingleton)
				require.ErrorIs(t, err2, objective.ErrSingleton)
				continue
			}
			require.NoError(t, err2)
			n := 0
			for i, m := range all {
				if !m.Disposition.InStatistics() {
					require.False(t, with[i].Valid)
					continue
				}
				bits := math.Float64bits(without[n].Value)
				require.Equal(t, bits, math.Float64bits(with[i].Value), ids[n])
				require.NotNil(t, trained[ids[n]], ids[n])
				require.Equal(t, bits, math.Float64bits(*trained[ids[n]]), ids[n])
				n++
			}
			if len(healthy) < len(all) && !st.ZeroVariance {
				telling++
			}
		}
	}
	t.Logf("%d groups with failed members and rewards that differ", telling)
	require.Positive(t, telling, "no group had failed members beside rewards that differ: nothing was compared")
}
