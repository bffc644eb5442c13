package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/trainer"
)

func trajReplay() *cobra.Command {
	var at storageFlag
	var steps []int64
	c := &cobra.Command{
		Use:   "replay [RUN] --step N",
		Short: "Train a step again from ledger, shards and checkpoint, and compare the checkpoint that it gives.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := at.runArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			objects, err := at.objects()
			if err != nil {
				return err
			}
			rec, err := at.record(cmd.Context(), run)
			if err != nil {
				return err
			}
			cfg, backend, err := roles.ReplayConfig(run, rec.Spec)
			if err != nil {
				return err
			}
			bad := false
			for _, n := range steps {
				got, err := trainer.Replay(cmd.Context(), objects, cfg, backend, n)
				if err != nil {
					return err
				}
				want := ""
				for _, s := range rec.Steps {
					if s.Step == n {
						want = s.Manifest
					}
				}
				word := "same"
				if string(got) != want {
					word, bad = "DIFFERENT from "+want, true
				}
				fmt.Fprintf(cmd.OutOrStdout(), "replay: step %d gives %s: %s\n", n, got, word)
			}
			if bad {
				return errSilent
			}
			return nil
		},
	}
	at.add(c)
	c.Flags().Int64SliceVar(&steps, "step", []int64{0}, "steps to train again")
	return c
}
