package verifier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/task"
)

// maxArtifacts bounds what a solution may hand in, in bytes.
const maxArtifacts = 64 << 20

// Report is what Validate found about a task.
type Report struct {
	Task     string
	Solution Judgement // of what solution/solve.sh did; zero when it could not be run
	Nothing  Judgement // of an untouched sandbox
	Problems []string  // one sentence each; empty for a good task
	Duration time.Duration
}

// OK reports whether the task can be trained on.
func (r Report) OK() bool { return len(r.Problems) == 0 }

// Validate runs a task's own solution, which must pass, and nothing at all,
// which must fail. A task whose artifacts do not cover its solution's work
// shows as a solution that fails: it would only ever give false zeros. An error
// is infrastructure and says nothing about the task.
func Validate(ctx context.Context, host envpool.Host, t *task.Task) (Report, error) {
	started := time.Now()
	r := Report{Task: t.ID}
	var err error
	if !t.HasSolution {
		r.Problems = append(r.Problems, "there is no solution/solve.sh: nothing shows that the task can be solved")
	} else if err = r.trySolution(ctx, host, t); err != nil {
		return Report{}, err
	}
	files, _, err := visit(ctx, host, t, "nothing", func(envpool.Handle) (string, error) { return "", nil })
	if err != nil {
		return Report{}, err
	}
	if r.Nothing, err = judgeAs(ctx, host, t, "nothing", files); err != nil {
		return Report{}, err
	}
	switch r.Nothing.Verdict {
	case outcome.Fail:
	case outcome.Pass:
		r.Problems = append(r.Problems, fmt.Sprintf("doing nothing passes (reward %g): the tests do not test the work", *r.Nothing.Reward))
	default:
		r.Problems = append(r.Problems, fmt.Sprintf("doing nothing is %s (%s): %s", r.Nothing.Verdict, r.Nothing.Reason, r.Nothing.Detail))
	}
	r.Duration = time.Since(started)
	return r, nil
}

// trySolution runs solve.sh in the agent's sandbox and has its artifacts judged.
func (r *Report) trySolution(ctx context.Context, host envpool.Host, t *task.Task) error {
	files, trouble, err := visit(ctx, host, t, "solution", func(h envpool.Handle) (string, error) {
		return solve(ctx, host, h, t)
	})
	if err != nil {
		return err
	}
	if trouble != "" {
		r.Problems = append(r.Problems, trouble)
		return nil
	}
	if r.Solution, err = judgeAs(ctx, host, t, "solution", files); err != nil {
		return err
	}
	switch j := r.Solution; {
	case j.Verdict == outcome.Pass:
	case j.Verdict == outcome.Fail && j.Reason == NoArtifact:
		r.Problems = append(r.Problems, fmt.Sprintf("solution fails (reward %g): it left none of the artifacts %v", *j.Reward, t.Artifacts))
	case j.Verdict == outcome.Fail:
		r.Problems = append(r.Problems, fmt.Sprintf("solution fails (reward %g): the tests are wrong, or the artifacts do not cover the work", *j.Reward))
	default:
		r.Problems = append(r.Problems, fmt.Sprintf("solution is %s (%s): %s", j.Verdict, j.Reason, j.Detail))
	}
	return nil
}

// visit opens the agent's sandbox, lets act work in it and copies the declared
// artifacts out. Trouble is what act says against the task.
func visit(ctx context.Context, host envpool.Host, t *task.Task, who string, act func(envpool.Handle) (trouble string, err error)) (files []envpool.File, trouble string, err error) {
	fail := func(op string, err error) error {
		return fmt.Errorf("verifier: validate %s: %s: %w: %w", t.ID, op, ErrInfrastructure, err)
	}
	snapshot, err := host.Prepare(ctx, envpool.TaskTemplate(t.AgentTemplate()))
	if err != nil {
		return nil, "", fail("prepare", err)
	}
	h, err := host.Claim(ctx, envpool.Claim{
		Lease: token(t, who, "agent"), Snapshot: snapshot, Quota: envpool.QuotaAgent, Limits: envpool.Limits{}.Over(t.Limits),
	})
	if err != nil {
		return nil, "", fail("claim", err)
	}
	defer release(ctx, host, h)
	if trouble, err = act(h); err != nil {
		return nil, "", fail("act", err)
	}
	files, err = host.Collect(ctx, h, t.Artifacts, maxArtifacts)
	switch {
	case errors.Is(err, envpool.ErrTooLarge) || errors.Is(err, envpool.ErrUnsafe):
		return nil, fmt.Sprintf("%s: the artifacts cannot be taken out: %v", who, err), nil
	case err != nil:
		return nil, "", fail("collect", err)
	}
	return files, trouble, nil
}

// solve uploads solution/ and runs solve.sh as an agent would act: in the workdir, with the agent's environment.
func solve(ctx context.Context, host envpool.Host, h envpool.Handle, t *task.Task) (trouble string, err error) {
	root := filepath.Join(t.Dir, "solution")
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return host.Write(ctx, h, path.Join(task.SolutionDir, filepath.ToSlash(rel)), info.Mode().Perm(), data)
	})
	if err != nil {
		return "", err
	}
	wall := t.AgentTimeout
	if wall == 0 {
		wall = defaultWall
	}
	res, err := host.Exec(ctx, h, envpool.Command{
		Argv: []string{"bash", task.SolutionDir + "/solve.sh"}, Env: t.SolutionEnv, Timeout: wall, Output: MaxExcerpt,
	})
	switch {
	case err != nil:
		return "", err
	case res.Hit == envpool.HitTime:
		return fmt.Sprintf("solution did not end within %s", wall), nil
	case res.ExitCode != 0:
		return fmt.Sprintf("solution ended with code %d%s: %s", res.ExitCode, hit(res.Hit), excerpt(res.Stderr)), nil
	}
	return "", nil
}

func judgeAs(ctx context.Context, host envpool.Host, t *task.Task, who string, files []envpool.File) (Judgement, error) {
	return Judge(ctx, host, Job{Run: "validate", Attempt: 1, Task: t, Artifacts: files, EndReason: outcome.Stop, Lease: token(t, who, "verifier")})
}

// token is a lease for a host without a coordinator: the clock raises the fence, so that a task can be validated again.
func token(t *task.Task, who, role string) lease.Token {
	return lease.Token{Resource: fmt.Sprintf("validate/%s/%s/%s", t.ID, who, role), Holder: "validate", Fence: lease.Fence(time.Now().UnixNano()), TTL: time.Hour}
}
