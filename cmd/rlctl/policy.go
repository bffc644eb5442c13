package main

import (
	"context"
	"fmt"
	"maps"
	"os"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/store/file"
)

func policyCommand() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Make, list and export policies."}
	c.AddCommand(policyInit(), policyList(), policyExport())
	return c
}

func policyInit() *cobra.Command {
	var sft, out string
	var seed uint64
	var steps, layers, dim, heads, ffn int
	c := &cobra.Command{
		Use:   "init --sft FILE --out DIR",
		Short: "Make an initial policy: fit a small language model to a file of sequences (JSON lines of turns).",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sft == "" {
				return usagef("policy init: name the file of sequences with --sft FILE")
			}
			f, err := os.Open(sft)
			if err != nil {
				return usagef("policy init: %w", err)
			}
			defer f.Close()
			corpus, err := model.ReadCorpus(f)
			if err != nil {
				return usagef("policy init: %s: %w", sft, err)
			}
			fit := model.DefaultFit()
			fit.Seed, fit.Steps = seed, steps
			size := model.DefaultConfig(0)
			size.NumHiddenLayers, size.HiddenSize, size.NumAttentionHeads, size.NumKeyValueHeads = layers, dim, heads, heads
			size.IntermediateSize, size.HeadDim = ffn, dim/max(1, heads)
			var last float64
			fit.Progress = func(step int, loss float64) { last = loss }
			m, tok, err := model.Init(cmd.Context(), size, corpus, nil, fit)
			if err != nil {
				return fmt.Errorf("policy init: %w", err)
			}
			files, err := m.Files()
			if err != nil {
				return err
			}
			words, err := tok.Files()
			if err != nil {
				return err
			}
			maps.Copy(files, words)
			if err := model.WriteDir(out, files); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "policy: %d parameters, %d words, %d sequences, %d steps, loss %.3f -> %s\n",
				m.Params(), tok.Size(), len(corpus), steps, last, out)
			return nil
		},
	}
	fl := c.Flags()
	fl.StringVar(&sft, "sft", "", "file of sequences, one JSON object with turns a line")
	fl.StringVar(&out, "out", "policy", "directory to write, in Hugging Face layout")
	fl.Uint64Var(&seed, "seed", 7, "seed of weights and order")
	fl.IntVar(&steps, "steps", model.DefaultFit().Steps, "optimizer steps")
	fl.IntVar(&layers, "layers", 2, "layers")
	fl.IntVar(&dim, "dim", 32, "width")
	fl.IntVar(&heads, "heads", 2, "attention heads")
	fl.IntVar(&ffn, "ffn", 64, "width of the feed-forward layers")
	return c
}

func policyList() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use:   "ls RUN",
		Short: "List the policy versions of a run.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := at.state(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return st.list(cmd, args[0], at.output)
		},
	}
	at.add(c)
	return c
}

func policyExport() *cobra.Command {
	var at storageFlag
	var out string
	c := &cobra.Command{
		Use:   "export RUN@VERSION --out DIR",
		Short: "Write a policy version as a Hugging Face directory.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return usagef("policy export: name the directory with --out DIR")
			}
			return exportPolicy(cmd.Context(), &at, args[0], out)
		},
	}
	at.add(c)
	c.Flags().StringVar(&out, "out", "", "directory to write")
	return c
}

// exportPolicy writes RUN@VERSION, or RUN for its newest version.
func exportPolicy(ctx context.Context, at *storageFlag, name, out string) error {
	run, version, err := splitVersion(name)
	if err != nil {
		return err
	}
	st, err := at.state(ctx, run)
	if err != nil {
		return err
	}
	manifest, v, err := st.manifest(run, version)
	if err != nil {
		return err
	}
	objects, err := file.Open(at.dir())
	if err != nil {
		return err
	}
	if err := roles.ExportPolicy(ctx, objects, run, string(manifest), out); err != nil {
		return err
	}
	fmt.Printf("policy %s version %d -> %s\n", run, v, out)
	return nil
}
