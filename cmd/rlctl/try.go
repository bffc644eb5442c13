package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/task"
)

// stage is what single episodes need: tasks, a policy and a host, without a run.
type stage struct {
	plan   *roles.Plan
	player *roles.Player
	close  func() error
}

// openStage loads the experiment's tasks and the policy, which may be another than the experiment's.
func openStage(ctx context.Context, path string, sets []string, policyURI, guest string) (*stage, error) {
	x, err := experiment.Load(path, sets)
	if err != nil {
		return nil, err
	}
	plan, err := roles.NewPlan(x)
	if err != nil {
		return nil, usageError{err}
	}
	dir := x.ResolvePath(x.Spec.Policy.Init)
	uri := x.Spec.Policy.Init
	if policyURI != "" {
		uri, dir = policyURI, policyURI
	}
	files, err := roles.OpenPolicy(uri, dir, x.Spec.Seed, plan.Instructions())
	if err != nil {
		return nil, usageError{err}
	}
	work, err := os.MkdirTemp("", "rlctl-")
	if err != nil {
		return nil, fmt.Errorf("make a work directory: %w", err)
	}
	host, err := roles.OpenHost(ctx, roles.Config{Plan: plan, Guest: guest, Log: slog.New(slog.DiscardHandler)}, work)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(work))
	}
	p, err := roles.NewPlayer(ctx, plan, files, host)
	s := &stage{plan: plan, player: p, close: func() error {
		errs := []error{}
		if p != nil {
			errs = append(errs, p.Close())
		}
		return errors.Join(append(errs, host.Close(context.WithoutCancel(ctx)), os.RemoveAll(work))...)
	}}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// find returns a task of the experiment and its env.
func (s *stage) find(id string) (int, *task.Task, error) {
	for i, e := range s.plan.Envs {
		for _, t := range e.Tasks {
			if t.ID == id || id == "" {
				return i, t, nil
			}
		}
	}
	for _, su := range s.plan.Suites {
		for _, t := range su.Tasks {
			if t.ID == id {
				return su.Env, t, nil
			}
		}
	}
	return 0, nil, fmt.Errorf("no task %q in the experiment", id)
}

func tryCommand() *cobra.Command {
	var sets []string
	var id, policyURI, guest string
	var n int
	var seed uint64
	c := &cobra.Command{
		Use:   "try FILE",
		Short: "Play episodes of one task and print conversation and verdict; nothing is trained or recorded.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := openStage(cmd.Context(), args[0], sets, policyURI, guest)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.close()) }()
			env, t, err := s.find(id)
			if err != nil {
				return err
			}
			for i := range n {
				p, err := s.player.Play(cmd.Context(), env, t, nil, seed+uint64(i))
				if err != nil {
					return err
				}
				printEpisode(cmd.OutOrStdout(), i, p)
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&sets, "set", nil, "override a field: path=value")
	fl.StringVar(&id, "task", "", "task (default: the first)")
	fl.StringVar(&policyURI, "policy", "", "policy directory (default: the experiment's policy.init)")
	fl.StringVar(&guest, "guest", "", "rlguest program (default: beside rlctl)")
	fl.IntVarP(&n, "episodes", "n", 1, "episodes")
	fl.Uint64Var(&seed, "seed", 1, "seed of the first episode")
	return c
}

func printEpisode(w io.Writer, i int, p roles.Played) {
	fmt.Fprintf(w, "episode %d of task %s\n", i+1, p.Task.ID)
	for _, s := range p.Steps {
		text := strings.TrimSpace(strings.ReplaceAll(*s.Content, "\n", "\n             "))
		logp := ""
		if s.Sampled {
			sum := float32(0)
			for _, l := range s.Logprobs {
				sum += l
			}
			logp = fmt.Sprintf("   (%d tokens, log-probability %.2f)", s.SampledTokens(), sum)
		}
		fmt.Fprintf(w, "  %-10s %s%s\n", s.Role, text, logp)
	}
	fmt.Fprintf(w, "  end        %s\n", p.End)
	j := p.Judgement
	reward := "none"
	if j.Reward != nil {
		reward = fmt.Sprint(*j.Reward)
	}
	fmt.Fprintf(w, "  verdict    %s (%s), reward %s\n", j.Verdict, j.Reason, reward)
	for _, e := range j.Evidence {
		if text := strings.TrimSpace(e.Excerpt); text != "" {
			fmt.Fprintf(w, "  %-10s %s\n", e.Kind, strings.ReplaceAll(text, "\n", "\n             "))
		}
	}
	fmt.Fprintln(w)
}

func evalCommand() *cobra.Command {
	var sets []string
	var policyURI, suite, guest, output string
	c := &cobra.Command{
		Use:   "eval FILE",
		Short: "Measure a policy on the experiment's evaluation suites; nothing is trained or recorded.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := openStage(cmd.Context(), args[0], sets, policyURI, guest)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.close()) }()
			rows := []evalResult{}
			for _, su := range s.plan.Suites {
				if suite != "" && su.Spec.Name != suite {
					continue
				}
				r, err := s.measure(cmd.Context(), su)
				if err != nil {
					return err
				}
				rows = append(rows, r)
			}
			if len(rows) == 0 {
				return usagef("eval: the experiment has no suite %q", suite)
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			lines := [][]any{{"SUITE", "EPISODES", "REWARD", "PASSED", "INDETERMINATE"}}
			for _, r := range rows {
				lines = append(lines, []any{r.Suite, r.Episodes, fmt.Sprintf("%.3f", r.Reward), r.Passed, r.Indeterminate})
			}
			return table(cmd.OutOrStdout(), lines...)
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&sets, "set", nil, "override a field: path=value")
	fl.StringVar(&policyURI, "policy", "", "policy directory (default: the experiment's policy.init)")
	fl.StringVar(&suite, "suite", "", "suite (default: all)")
	fl.StringVar(&guest, "guest", "", "rlguest program (default: beside rlctl)")
	fl.StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// evalResult is the measurement of one suite.
type evalResult struct {
	Suite         string  `json:"suite"`
	Episodes      int     `json:"episodes"`
	Scored        int     `json:"scored"`
	Reward        float64 `json:"reward"` // mean over the scored
	Passed        int     `json:"passed"`
	Indeterminate int     `json:"indeterminate"`
}

// together is how many episodes are played at once.
const together = 16

func (s *stage) measure(ctx context.Context, su roles.SuitePlan) (evalResult, error) {
	tasks := su.Tasks
	if n := su.Spec.Episodes / su.Spec.Samples; n > 0 && n < len(tasks) {
		tasks = tasks[:n]
	}
	sampling := engine.Sampling{Temperature: float32(su.Spec.Sampling.Temperature), TopP: float32(su.Spec.Sampling.TopP), TopK: int32(su.Spec.Sampling.TopK)}
	played := make([]roles.Played, len(tasks)*su.Spec.Samples)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(together)
	for i := range played {
		g.Go(func() (err error) {
			played[i], err = s.player.Play(ctx, su.Env, tasks[i/su.Spec.Samples], &sampling, uint64(i)+1)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return evalResult{}, err
	}
	r := evalResult{Suite: su.Spec.Name, Episodes: len(played)}
	for _, p := range played {
		if p.Judgement.Reward == nil {
			r.Indeterminate++
			continue
		}
		r.Scored++
		r.Reward += *p.Judgement.Reward
		if p.Judgement.Verdict == "pass" {
			r.Passed++
		}
	}
	if r.Scored > 0 {
		r.Reward /= float64(r.Scored)
	}
	return r, nil
}
