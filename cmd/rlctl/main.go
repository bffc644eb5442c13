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
	// The first signal drains; the second finds its usual action again, which ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
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
	case errors.As(err, &usage), len(experiment.Errors(err)) > 0:
		fmt.Fprintln(os.Stderr, "rlctl: "+err.Error())
		return 2
	default:
		text := err.Error()
		if errors.Is(err, syscall.ENOSPC) && !strings.Contains(text, "free space") {
			text += ": free space and run the same command again"
		}
		fmt.Fprintln(os.Stderr, "rlctl: "+text)
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
		experimentCommand(), taskCommand(), trajCommand(), clusterCommand())
	argsAreUsage(root)
	return root
}

// argsAreUsage makes a wrong number of arguments, and an unknown subcommand, the caller's mistake.
func argsAreUsage(c *cobra.Command) {
	if c.HasSubCommands() {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, sub := range cmd.Commands() {
				if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
					names = append(names, sub.Name())
				}
			}
			return usagef("there is no command %q below %s: there are %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
		}
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		c.DisableFlagsInUseLine = true
	} else if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) != nil {
				return usagef("%d arguments where it wants: %s", len(args), cmd.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		argsAreUsage(sub)
	}
}
