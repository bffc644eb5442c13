package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/verifier"
)

func taskCommand() *cobra.Command {
	c := &cobra.Command{Use: "task", Short: "Check task directories."}
	c.AddCommand(taskValidate())
	return c
}

func taskValidate() *cobra.Command {
	var guest string
	var jobs int
	c := &cobra.Command{
		Use:   "validate DIR",
		Short: "Run each task's solution, which must pass, and nothing at all, which must fail.",
		Long: "DIR is one task, a directory of tasks, or one that holds train/ and eval/. One line is printed for each task;\n" +
			"the exit code is 1 when a task is bad. A task whose artifacts do not cover its solution's work shows as a solution that fails.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if jobs < 1 {
				return usagef("task validate: --jobs %d: want at least 1", jobs)
			}
			tasks, err := loadTasks(args[0])
			if err != nil {
				return usageError{err}
			}
			return withHost(cmd.Context(), guest, jobs, func(host envpool.Host) error {
				return validateTasks(cmd.Context(), host, tasks, jobs, cmd.OutOrStdout())
			})
		},
	}
	c.Flags().StringVar(&guest, "guest", "", "rlguest program (default: beside rlctl)")
	c.Flags().IntVarP(&jobs, "jobs", "j", 4, "tasks at a time")
	return c
}

// loadTasks loads one task, or all splits of a set.
func loadTasks(dir string) ([]*task.Task, error) {
	if _, err := os.Stat(filepath.Join(dir, "task.toml")); err == nil {
		t, err := task.Load(dir)
		if err != nil {
			return nil, err
		}
		return []*task.Task{t}, nil
	}
	var out []*task.Task
	for _, split := range []string{task.SplitTrain, task.SplitEval} {
		tasks, err := task.LoadSet(dir, split)
		if err != nil && !(split == task.SplitEval && errors.Is(err, task.ErrNotFound)) {
			return nil, err
		}
		out = append(out, tasks...)
	}
	return out, nil
}

// withHost gives act a host of its own, in a directory that is removed afterwards.
func withHost(ctx context.Context, guest string, jobs int, act func(envpool.Host) error) (err error) {
	if err := bubblewrap.Check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rlctl-task-")
	if err != nil {
		return fmt.Errorf("task validate: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tier := bubblewrap.DefaultConfig(filepath.Join(dir, "host"))
	tier.Guest = guest
	rt, err := bubblewrap.New(tier)
	if err != nil {
		return err
	}
	cfg := envpool.DefaultConfig()
	cfg.MaxAgents, cfg.MaxVerifiers, cfg.WarmLow, cfg.WarmHigh = jobs, jobs, min(2, jobs), 2*jobs
	host, err := envpool.NewHost(ctx, cfg, rt)
	if err != nil {
		return errors.Join(err, rt.Close())
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, host.Close(cctx))
	}()
	return act(host)
}

// validateTasks prints one line for each task, in order, and a last one; it returns errSilent when a task is bad.
func validateTasks(ctx context.Context, host envpool.Host, tasks []*task.Task, jobs int, out io.Writer) error {
	reports := make([]verifier.Report, len(tasks))
	done := make([]chan struct{}, len(tasks))
	for i := range done {
		done[i] = make(chan struct{})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(jobs + 1) // one of them prints
	bad := 0
	g.Go(func() error {
		for i, t := range tasks {
			select {
			case <-done[i]:
			case <-gctx.Done():
				return nil // whoever ended it says why
			}
			if !reports[i].OK() {
				bad++
			}
			printReport(out, t, reports[i])
		}
		return nil
	})
	for i, t := range tasks {
		g.Go(func() (err error) {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			if reports[i], err = verifier.Validate(gctx, host, t); err == nil {
				close(done[i])
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d validated, %d bad\n", len(tasks), bad)
	if bad > 0 {
		return errSilent
	}
	return nil
}

func printReport(out io.Writer, t *task.Task, r verifier.Report) {
	if r.OK() {
		fmt.Fprintf(out, "ok   %s  solution %g, nothing %g  (%s)\n", t.ID, *r.Solution.Reward, *r.Nothing.Reward, r.Duration.Round(time.Millisecond))
		return
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "BAD  %s  %s\n", t.ID, p)
	}
}
