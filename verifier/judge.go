package verifier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/task"
)

// Where tests leave the reward; the JSON is read first.
const (
	rewardJSON = task.VerifierLogs + "/reward.json"
	rewardText = task.VerifierLogs + "/reward.txt"
)

// releaseWithin bounds the release of a sandbox after the caller's context has ended.
const releaseWithin = 10 * time.Second

// Judge runs the task's tests on the job's artifacts, up to 1 + Retries times
// while the result is indeterminate, each time in a new sandbox of the
// verifier's quota. The only errors are infrastructure: they wrap
// ErrInfrastructure and the host's kind, say nothing about the episode, and
// mean that the caller may try the job again.
func Judge(ctx context.Context, host envpool.Host, job Job) (Judgement, error) {
	started := time.Now()
	t := job.Task.VerifierTemplate()
	finish := func(j Judgement, tries int) Judgement {
		j.Tries, j.Started, j.Duration = tries, started, time.Since(started)
		j.Verifier, j.Digest = Script, t.Digest
		return j
	}
	if p, bad := undeclared(job); bad {
		return finish(indeterminate(Tampering, outcome.VerifierCrash, "%q was handed in but is not a declared artifact", p), 1), nil
	}
	snapshot, err := host.Prepare(ctx, envpool.TaskTemplate(t))
	if err != nil {
		return Judgement{}, infrastructure(job, "prepare", err)
	}
	resource := job.Lease.Resource
	for try := 1; ; try++ {
		if try > 1 { // a released resource cannot be claimed again under its fence
			job.Lease.Resource = fmt.Sprintf("%s/try-%d", resource, try)
		}
		j, err := attempt(ctx, host, job, snapshot)
		if err != nil {
			return Judgement{}, err
		}
		if j.Verdict != outcome.Indeterminate || j.Reason == Tampering || try > job.Retries {
			return finish(j, try), nil
		}
	}
}

// undeclared returns the first artifact that the task does not declare, or that lies where no artifact may.
func undeclared(job Job) (string, bool) {
	for _, f := range job.Artifacts {
		ok := f.Path == path.Clean(f.Path) && !under(f.Path, task.TestsDir) && !under(f.Path, task.VerifierLogs)
		declared := false
		for _, a := range job.Task.Artifacts {
			declared = declared || under(f.Path, a)
		}
		if !ok || !declared {
			return f.Path, true
		}
	}
	return "", false
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// attempt judges once, in a sandbox of its own.
func attempt(ctx context.Context, host envpool.Host, job Job, snapshot envpool.SnapshotID) (Judgement, error) {
	h, err := host.Claim(ctx, envpool.Claim{
		Lease: job.Lease, Snapshot: snapshot, Quota: envpool.QuotaVerifier,
		Limits: job.Limits.Over(job.Task.Limits), Entropy: uint64(job.Lease.Fence),
	})
	if err != nil {
		return Judgement{}, infrastructure(job, "claim", err)
	}
	j, err := runTests(ctx, host, h, job)
	release(ctx, host, h)
	switch {
	case errors.Is(err, envpool.ErrEnvironment):
		return indeterminate(SandboxFailure, outcome.VerifierCrash, "the verifier's sandbox failed: %v", err), nil
	case err != nil:
		return Judgement{}, infrastructure(job, "run tests", err)
	}
	return j, nil
}

// release ends a sandbox even when the caller's context has ended. What was
// learnt in it stands whether that works or not; a host that cannot end a
// sandbox quarantines it and says so itself.
func release(ctx context.Context, host envpool.Host, h envpool.Handle) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_ = host.Release(ctx, h)
}

// runTests fills a new sandbox, runs the tests and reads what they decided. Its errors are the host's.
func runTests(ctx context.Context, host envpool.Host, h envpool.Handle, job Job) (Judgement, error) {
	if p, err := planted(ctx, host, h); err != nil {
		return Judgement{}, err
	} else if p != "" {
		return indeterminate(Tampering, outcome.VerifierCrash, "%s was there before the tests ran", p), nil
	}
	for _, f := range job.Artifacts {
		if err := host.Write(ctx, h, f.Path, f.Mode.Perm(), f.Data); err != nil {
			return Judgement{}, fmt.Errorf("write artifact %s: %w", f.Path, err)
		}
	}
	// The directory must exist for tests to write to; a file makes it without starting a process.
	if err := host.Write(ctx, h, task.VerifierLogs+"/.ready", fs.FileMode(0o644), nil); err != nil {
		return Judgement{}, fmt.Errorf("make %s: %w", task.VerifierLogs, err)
	}
	wall := timeout(job)
	res, err := host.Exec(ctx, h, envpool.Command{
		Argv: []string{"bash", task.TestScript}, Env: job.Task.VerifierEnv, Timeout: wall, Output: MaxExcerpt,
	})
	if err != nil {
		return Judgement{}, fmt.Errorf("run %s: %w", task.TestScript, err)
	}
	j, err := decide(ctx, host, h, job, res, wall)
	j.CPU = res.CPU
	j.Evidence = append(evidence(res), j.Evidence...)
	if err == nil && res.Signal == 0 && res.ExitCode >= 0 && res.Hit != envpool.HitTime {
		code := res.ExitCode
		j.ExitCode = &code
	}
	return j, err
}

// timeout is the lower of the experiment's and the task's.
func timeout(job Job) time.Duration {
	switch own := job.Task.VerifierTimeout; {
	case job.Timeout > 0 && (own == 0 || job.Timeout < own):
		return job.Timeout
	case own > 0:
		return own
	}
	return defaultWall
}

// planted returns a reward file that is there before the tests have run. A
// fresh fork of the tests has none; this is the proof.
func planted(ctx context.Context, host envpool.Host, h envpool.Handle) (string, error) {
	for _, p := range []string{rewardJSON, rewardText} {
		_, err := host.Read(ctx, h, p, 1)
		switch {
		case errors.Is(err, envpool.ErrNotFound):
		case err == nil, errors.Is(err, envpool.ErrTooLarge), errors.Is(err, envpool.ErrUnsafe):
			return p, nil
		default:
			return "", fmt.Errorf("look for %s: %w", p, err)
		}
	}
	return "", nil
}

// decide turns the end of the tests and the reward they left into a judgement.
// The exit code does not count: the reward does, as in the Harbor layout.
func decide(ctx context.Context, host envpool.Host, h envpool.Handle, job Job, res envpool.Result, wall time.Duration) (Judgement, error) {
	switch {
	case res.Hit == envpool.HitTime:
		return indeterminate(VerifierTimeout, outcome.VerifierTimeout, "the tests did not end within %s", wall), nil
	case res.Signal != 0 || res.ExitCode < 0:
		return indeterminate(VerifierCrash, outcome.VerifierCrash, "the tests were killed by signal %d%s", res.Signal, hit(res.Hit)), nil
	}
	// Collect stops every process of the sandbox before it copies: what the
	// tests left running cannot write between the look and the copy.
	files, err := host.Collect(ctx, h, []string{rewardJSON, rewardText}, 2*MaxReward)
	switch {
	case errors.Is(err, envpool.ErrTooLarge):
		return indeterminate(MalformedOutput, outcome.MalformedReward, "the reward file is larger than 1 MiB"), nil
	case errors.Is(err, envpool.ErrUnsafe):
		return indeterminate(MalformedOutput, outcome.MalformedReward, "the reward is not a regular file"), nil
	case err != nil:
		return Judgement{}, fmt.Errorf("read the reward: %w", err)
	}
	f, ok := pick(files)
	if !ok {
		return indeterminate(MalformedOutput, outcome.RewardMissing, "the tests ended with code %d and left no reward in %s%s", res.ExitCode, task.VerifierLogs, hit(res.Hit)), nil
	}
	j := score(f, len(job.Artifacts) > 0)
	j.Evidence = append(j.Evidence, Evidence{Kind: "file", Name: f.Path, Bytes: int64(len(f.Data)), Digest: policy.DigestOf(f.Data), Excerpt: excerpt(f.Data)})
	return j, nil
}

// pick returns the reward file that counts.
func pick(files []envpool.File) (envpool.File, bool) {
	for _, want := range []string{rewardJSON, rewardText} {
		for _, f := range files {
			if f.Path == want {
				return f, true
			}
		}
	}
	return envpool.File{}, false
}

// hit names a limit that the tests ran into, which often explains their end.
func hit(h envpool.LimitHit) string {
	if h == "" || h == envpool.HitOutput {
		return ""
	}
	return fmt.Sprintf(" (%s limit of the sandbox)", h)
}

func indeterminate(reason Reason, end outcome.EndReason, format string, args ...any) Judgement {
	return Judgement{Verdict: outcome.Indeterminate, Reason: reason, End: end, Detail: fmt.Sprintf(format, args...)}
}

func infrastructure(job Job, op string, err error) error {
	return fmt.Errorf("verifier: judge %s: %s: %w: %w", job.episode(), op, ErrInfrastructure, err)
}

func evidence(res envpool.Result) []Evidence {
	return []Evidence{
		{Kind: "stdout", Bytes: res.StdoutTotal, Digest: policy.DigestOf(res.Stdout), Excerpt: excerpt(res.Stdout)},
		{Kind: "stderr", Bytes: res.StderrTotal, Digest: policy.DigestOf(res.Stderr), Excerpt: excerpt(res.Stderr)},
	}
}

// excerpt returns the head of b as valid UTF-8.
func excerpt(b []byte) string {
	if len(b) > MaxExcerpt {
		b = b[:MaxExcerpt]
	}
	s := strings.ToValidUTF8(string(b), "\ufffd")
	for len(s) > MaxExcerpt { // a replacement is longer than the byte it stands for
		s = strings.ToValidUTF8(s[:MaxExcerpt], "")
	}
	return s
}
