// Command rlctl runs, watches and inspects agentic RL training.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/experiment"
)

// usageError is the caller's mistake: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errSilent ends with code 1 after everything has been said.
var errSilent = errors.New("")

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	// The first signal drains, the second stops at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return exitCode(err)
}

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSilent):
		return 1
	case errors.As(err, &usage), len(experiment.Errors(err)) > 0, strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintln(os.Stderr, "rlctl: "+err.Error())
		return 2
	default:
		fmt.Fprintln(os.Stderr, "rlctl: "+err.Error())
		return 1
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "rlctl",
		Short:         "Train agents by reinforcement learning in sandboxes; lose nothing, see everything.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(), runsCommand(), tryCommand(), evalCommand(), policyCommand(), doctorCommand(),
		experimentCommand(), taskCommand(), trajCommand())
	for _, c := range root.Commands() {
		argsAreUsage(c)
	}
	return root
}

// argsAreUsage makes a wrong number of arguments the caller's mistake.
func argsAreUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		argsAreUsage(sub)
	}
}
