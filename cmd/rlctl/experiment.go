package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/experiment"
)

// experimentCommand checks and explains specs without running anything. A bad
// spec is an experiment.Error, or several joined, which the caller prints.
func experimentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experiment",
		Short: "Check and explain an experiment spec",
	}
	cmd.AddCommand(experimentValidateCommand(), experimentShowCommand(), experimentSchemaCommand())
	return cmd
}

// setFlag adds --set, which overrides fields of FILE.
func setFlag(cmd *cobra.Command, sets *[]string) {
	cmd.Flags().StringArrayVar(sets, "set", nil, "override one field, `path=value`, such as spec.lag.max=0 (may be repeated)")
}

func experimentValidateCommand() *cobra.Command {
	var sets []string
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a spec, and do nothing else",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := experiment.Load(args[0], sets)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: experiment %s is valid (%s)\n", args[0], e.Metadata.Name, e.Digest())
			return err
		},
	}
	setFlag(cmd, &sets)
	return cmd
}

func experimentShowCommand() *cobra.Command {
	var sets []string
	var defaults bool
	var output string
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Print the fields of a spec with their values and where they came from",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "yaml" && output != "json" {
				return usagef("experiment show: -o %s: want yaml or json", output)
			}
			e, err := experiment.Load(args[0], sets)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(e.Values(defaults))
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), e.Show(defaults))
			return err
		},
	}
	setFlag(cmd, &sets)
	cmd.Flags().BoolVar(&defaults, "defaults", false, "print every field, not only those that were set")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "yaml, or json for a list of path, value and from")
	return cmd
}

func experimentSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of specs, for editors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := experiment.Schema()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(s)
			return err
		},
	}
}
