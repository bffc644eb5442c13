package verifier

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/outcome"
)

// realHost is a bubblewrap host with a guest built for this test; without bubblewrap the test is skipped and says why.
func realHost(t testing.TB) envpool.Host {
	t.Helper()
	if err := bubblewrap.Check(); err != nil {
		t.Skipf("SKIPPED, nothing was judged in a real sandbox: %v", err)
	}
	guest := filepath.Join(t.TempDir(), "rlguest")
	build := exec.Command("go", "build", "-o", guest, "../cmd/rlguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	tier := bubblewrap.DefaultConfig(filepath.Join(t.TempDir(), "host"))
	tier.Guest = guest
	rt, err := bubblewrap.New(tier)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cfg := envpool.DefaultConfig()
	cfg.WarmLow = 1
	host, err := envpool.NewHost(ctx, cfg, rt)
	require.NoError(t, err)
	t.Cleanup(func() {
		defer cancel()
		require.NoError(t, host.Close(ctx))
	})
	return host
}

func TestVerdicts_Bubblewrap(t *testing.T) { runVerdictCases(t, realHost(t)) }

func TestValidate_Bubblewrap(t *testing.T) { runValidateCases(t, realHost(t)) }

// TestForgedReward_Bubblewrap lets an agent plant everything it can think of in its own
// sandbox; the judge sees its answer and nothing else.
func TestForgedReward_Bubblewrap(t *testing.T) {
	host := realHost(t)
	ctx := context.Background()
	tk := makeTask(t, compare, "")
	snapshot, err := host.Prepare(ctx, envpool.TaskTemplate(tk.AgentTemplate()))
	require.NoError(t, err)
	h, err := host.Claim(ctx, envpool.Claim{
		Lease: lease.Token{Resource: "episode/r/3/1", Holder: "w", Fence: 3, TTL: time.Minute}, Snapshot: snapshot, Quota: envpool.QuotaAgent,
	})
	require.NoError(t, err)
	res, err := host.Exec(ctx, h, envpool.Command{Timeout: 5 * time.Second, Argv: []string{"sh", "-c", `
		mkdir -p /logs/verifier /tests
		echo '{"reward": 1}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt
		echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; echo 3 > /tests/expected.txt
		echo 3 > answer.txt; mkdir out; echo x > out/file; ln -s /tests out/tests
		( while :; do echo 1 > /logs/verifier/reward.txt; done ) > /dev/null 2>&1 &`}})
	require.NoError(t, err)
	require.Zero(t, res.ExitCode, string(res.Stderr))
	_, err = host.Read(ctx, h, "/tests/expected.txt", 10)
	require.NoError(t, err, "the agent wrote its own tests")
	files, err := host.Collect(ctx, h, []string{"/app/answer.txt"}, 1<<20)
	require.NoError(t, err)
	require.NoError(t, host.Release(ctx, h))

	job := makeJob(tk)
	job.Artifacts = files
	j, err := Judge(ctx, host, job)
	require.NoError(t, err)
	require.Equal(t, outcome.Fail, j.Verdict, "%s %v", j.Detail, j.Evidence)
	require.Equal(t, ChecksFailed, j.Reason)
	require.Equal(t, 0.0, *j.Reward)
}

// BenchmarkJudge_Bubblewrap is one judgement of the usual kind: claim, artifact, tests, reward, release.
func BenchmarkJudge_Bubblewrap(b *testing.B) {
	host := realHost(b)
	job := makeJob(makeTask(b, compare, ""))
	job.Artifacts = answer("7")
	for b.Loop() {
		job.Lease.Fence++
		j, err := Judge(context.Background(), host, job)
		require.NoError(b, err)
		require.Equal(b, outcome.Pass, j.Verdict)
	}
}
