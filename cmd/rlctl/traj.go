package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trajectory"
)

func trajCommand() *cobra.Command {
	c := &cobra.Command{Use: "traj", Short: "List, show and verify what a run recorded. Needs only the storage."}
	c.AddCommand(trajList(), trajShow(), trajVerify(), trajReplay())
	return c
}

// objects opens the storage for reading.
func (f *storageFlag) objects() (store.ObjectStore, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(f.dir()); err != nil {
		return nil, fmt.Errorf("%s: there is no storage here: start a run, or name another with --storage", f.storage)
	}
	return file.Open(f.dir())
}

// record opens the record of a run.
func (f *storageFlag) record(ctx context.Context, run string) (*trajectory.Run, error) {
	s, err := f.objects()
	if err != nil {
		return nil, err
	}
	r, err := trajectory.OpenRun(ctx, s, run)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("no run %q in %s has recorded anything: `rlctl runs ls` lists the runs", run, f.storage)
	}
	return r, err
}

// trajRow is the stable form of an attempt in -o json.
type trajRow struct {
	Episode     string   `json:"episode"`
	Group       uint64   `json:"group"`
	Index       int32    `json:"index"`
	Attempt     int32    `json:"attempt"`
	Suite       string   `json:"suite,omitempty"`
	Task        string   `json:"task"`
	State       string   `json:"state"`
	MinVersion  int64    `json:"policy_version_min"`
	MaxVersion  int64    `json:"policy_version_max"`
	Turns       int64    `json:"turns"`
	Tokens      int64    `json:"tokens"`
	End         string   `json:"end_reason"`
	Verdict     string   `json:"verdict"`
	Reward      *float64 `json:"reward"`
	Disposition string   `json:"disposition"`
	GroupEnd    string   `json:"group_end"`
	Step        *int64   `json:"step"`
}

func trajRowOf(a *trajectory.Attempt) trajRow {
	x := trajRow{
		Episode: a.ID, Group: a.Group.Group, Index: a.Index, Attempt: a.Attempt, Suite: a.Group.Suite, Task: a.Group.Task.GetId(),
		State: "sealed", MinVersion: -1, MaxVersion: -1,
	}
	if s := a.Sealed; s != nil {
		x.MinVersion, x.MaxVersion, x.Turns, x.Tokens, x.End = s.MinVersion, s.MaxVersion, s.Turns, s.Tokens, s.EndReason
	}
	switch {
	case a.Settled != nil:
		x.State, x.Verdict, x.Reward, x.Disposition = "settled", a.Settled.Verdict, a.Settled.Reward, a.Settled.Disposition
	case a.Lost != nil: // no reward, in no statistics; another attempt replaces it, or its group has ended too
		x.State, x.End, x.Verdict, x.Disposition = "lost", a.Lost.Reason, string(outcome.NotRun), string(outcome.Drop)
		if class, _ := outcome.Class(outcome.EndReason(x.End)); class == outcome.ClassVerifier {
			x.Verdict = string(outcome.Indeterminate)
		}
	}
	if end := a.Group.End; end != nil {
		x.GroupEnd = end.Outcome
		if end.Outcome == "consumed" {
			x.Step = &end.Step
		}
		if end.Reason != "" {
			x.GroupEnd += ": " + end.Reason
		}
	}
	return x
}

// versions is the range of versions that made an episode's tokens.
func (x trajRow) versions() string {
	switch {
	case x.MinVersion < 0:
		return "-"
	case x.MinVersion == x.MaxVersion:
		return strconv.FormatInt(x.MinVersion, 10)
	}
	return fmt.Sprintf("%d-%d", x.MinVersion, x.MaxVersion)
}

func trajList() *cobra.Command {
	var at storageFlag
	var group, limit int64
	var suite, verdict string
	c := &cobra.Command{
		Use: "ls RUN", Short: "List the episodes of a run, newest first.", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := at.record(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows, left := []trajRow{}, 0
			all := r.Attempts()
			for i := len(all) - 1; i >= 0; i-- {
				x := trajRowOf(all[i])
				if (group >= 0 && x.Group != uint64(group)) || (suite != "" && x.Suite != suite) || (verdict != "" && x.Verdict != verdict) {
					continue
				}
				if limit > 0 && int64(len(rows)) >= limit {
					left++
					continue
				}
				rows = append(rows, x)
			}
			if r.Gap != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "only part of the record is there: %s\n", r.Gap)
			}
			if at.output == "json" {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			lines := [][]any{{"EPISODE", "SUITE", "STATE", "VERSION", "TURNS", "TOKENS", "END", "VERDICT", "REWARD", "DISPOSITION", "GROUP"}}
			for _, x := range rows {
				lines = append(lines, []any{x.Episode, dash(x.Suite), x.State, x.versions(), x.Turns, x.Tokens, dash(x.End), dash(x.Verdict), reward(x.Reward), dash(x.Disposition), dash(x.GroupEnd)})
			}
			if err := table(cmd.OutOrStdout(), lines...); err != nil {
				return err
			}
			if left > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d more: --limit 0 lists all\n", left)
			}
			return nil
		},
	}
	at.add(c)
	c.Flags().Int64Var(&group, "group", -1, "only this group")
	c.Flags().StringVar(&suite, "suite", "", "only this evaluation suite")
	c.Flags().StringVar(&verdict, "verdict", "", "only this verdict")
	c.Flags().Int64Var(&limit, "limit", 50, "most episodes to list; 0 lists all")
	return c
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func reward(x *float64) string {
	if x == nil {
		return "-"
	}
	return strconv.FormatFloat(*x, 'g', 4, 64)
}

func trajVerify() *cobra.Command {
	var at storageFlag
	var acks string
	c := &cobra.Command{
		Use:   "verify [RUN]",
		Short: "Check every invariant of a run's record from the stored data alone (default: the newest run).",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := at.objects()
			if err != nil {
				return err
			}
			run, err := at.runArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			rep, err := trajectory.Verify(cmd.Context(), s, run, trajectory.VerifyOptions{AcksFile: acks})
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("no run %q in %s has recorded anything: `rlctl runs ls` lists the runs", run, at.storage)
			}
			if err != nil {
				return err
			}
			if at.output == "json" {
				err = printJSON(cmd.OutOrStdout(), rep)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), rep)
			}
			if err == nil && !rep.Clean() {
				err = errSilent
			}
			return err
		},
	}
	at.add(c)
	c.Flags().StringVar(&acks, "acks", "", "journal of acknowledgements to hold the record against")
	return c
}

// findEpisode takes an episode id, GROUP/INDEX or GROUP/INDEX/ATTEMPT; without an attempt the one that settled, or else the last.
func findEpisode(r *trajectory.Run, name string) (*trajectory.Attempt, error) {
	if a := r.Find(name); a != nil {
		return a, nil
	}
	missing := fmt.Errorf("run %s has no episode %s: `rlctl traj ls %s` lists them", r.ID, name, r.ID)
	parts := strings.Split(strings.TrimPrefix(name, r.ID+"/"), "/")
	if len(parts) < 2 || len(parts) > 3 {
		return nil, missing
	}
	var n [3]int64
	for i, p := range parts {
		x, err := strconv.ParseInt(p, 10, 64)
		if err != nil || x < 0 {
			return nil, missing
		}
		n[i] = x
	}
	g := r.Group(uint64(n[0]))
	if g == nil {
		return nil, missing
	}
	var found *trajectory.Attempt
	for _, a := range g.Attempts {
		if int64(a.Index) != n[1] || (len(parts) == 3 && int64(a.Attempt) != n[2]) {
			continue
		}
		if found == nil || found.Settled == nil {
			found = a
		}
	}
	if found == nil {
		return nil, missing
	}
	return found, nil
}

// trajFull is an attempt with all of its rows, in -o json.
type trajFull struct {
	trajRow
	SealedAt  *time.Time        `json:"sealed_at"`
	SettledAt *time.Time        `json:"settled_at"`
	Row       json.RawMessage   `json:"episode_row"`
	Steps     []json.RawMessage `json:"steps"`
	Verdict   json.RawMessage   `json:"verdict_row"`
}
