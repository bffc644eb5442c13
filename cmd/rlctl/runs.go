package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/cmd/internal/report"
	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store/file"
)

func runsCommand() *cobra.Command {
	c := &cobra.Command{Use: "runs", Short: "List, show and control runs."}
	c.AddCommand(runsList(), runsShow(), runsWhy())
	for _, a := range []struct{ action, short string }{
		{"pause", "Stop leasing episodes; what is running goes on."},
		{"resume", "Continue a paused run."},
		{"cancel", "End a run; its checkpoints and trajectories stay."},
	} {
		c.AddCommand(runsControl(a.action, a.short))
	}
	c.AddCommand(runsRollback(), runsReport(), runsRemove())
	return c
}

// runRow is the stable form of a run in -o json.
type runRow struct {
	ID        string         `json:"id"`
	State     string         `json:"state"`
	Reason    string         `json:"reason,omitempty"`
	Step      int64          `json:"step"`
	Steps     int64          `json:"steps"`
	Live      int64          `json:"live"`
	Episodes  int64          `json:"episodes"`
	Passed    int64          `json:"passed"`
	Failed    int64          `json:"failed"`
	Unjudged  int64          `json:"indeterminate"`
	Lost      int64          `json:"attempts_lost"`
	Consumed  int64          `json:"groups_consumed"`
	Dropped   int64          `json:"groups_dropped"`
	Stale     int64          `json:"stale"`
	Straggler int64          `json:"stragglers"`
	MaxLag    int64          `json:"max_lag"`
	Tokens    int64          `json:"tokens"`
	Best      string         `json:"best,omitempty"`
	Evals     []evalRow      `json:"evals,omitempty"`
	Tasks     []taskRow      `json:"failing_tasks,omitempty"`
	Nodes     []nodeRow      `json:"nodes,omitempty"`
	Open      map[string]int `json:"open,omitempty"`
	Waiting   string         `json:"waiting,omitempty"`
}

type evalRow struct {
	Suite    string  `json:"suite"`
	Version  int64   `json:"version"`
	Episodes int32   `json:"episodes"`
	Reward   float64 `json:"reward"`
	Done     bool    `json:"done"`
}

type taskRow struct {
	Env         string `json:"env"`
	Task        string `json:"task"`
	Failures    int32  `json:"failures"`
	Quarantined bool   `json:"quarantined"`
	Reason      string `json:"reason"`
}

type nodeRow struct {
	Role    string `json:"role"`
	Name    string `json:"name"`
	State   string `json:"state"`
	Version int64  `json:"version,omitempty"`
	// Advisory names the limits that a host cannot enforce.
	Advisory []string `json:"advisory,omitempty"`
}

func row(r *raftlog.Run) runRow {
	c := r.Counters
	return runRow{
		ID: r.Id, State: state.StateName(r.State), Reason: r.Reason, Step: r.Head, Steps: r.Config.GetSteps(), Live: r.Live,
		Episodes: c.GetEpisodesSettled(), Passed: c.GetEpisodesPassed(), Failed: c.GetEpisodesFailed(), Unjudged: c.GetEpisodesIndeterminate(),
		Lost: c.GetAttemptsLost(), Consumed: c.GetGroupsConsumed(), Dropped: c.GetGroupsDropped(), Stale: c.GetStale(),
		Straggler: c.GetStraggler(), MaxLag: c.GetMaxLag(), Tokens: c.GetTokens(), Best: r.Best,
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func table(w io.Writer, rows ...[]any) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, r := range rows {
		for i, c := range r {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, c)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func runsList() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use: "ls", Short: "List runs.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := at.state(cmd.Context(), "")
			if err != nil {
				return err
			}
			rows := []runRow{}
			lines := [][]any{{"RUN", "STATE", "STEP", "LIVE", "EPISODES", "PASSED", "LOST", "MAX LAG", "BEST"}}
			for _, r := range st.runs {
				x := row(r)
				rows = append(rows, x)
				lines = append(lines, []any{x.ID, x.State, fmt.Sprintf("%d/%d", x.Step, x.Steps), x.Live, x.Episodes, x.Passed, x.Lost, x.MaxLag, best(x.Best)})
			}
			if at.output == "json" {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			return table(cmd.OutOrStdout(), lines...)
		},
	}
	at.add(c)
	return c
}

// best renders "version reward".
func best(s string) string {
	var v int64
	var reward float64
	if n, _ := fmt.Sscanf(s, "%d %g", &v, &reward); n < 2 {
		return "-"
	}
	return fmt.Sprintf("%.3f at version %d", reward, v)
}

func runsShow() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use: "show RUN", Short: "Show one run: counters, evaluations, nodes and what it waits for.", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := at.state(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			x, err := st.detail(args[0])
			if err != nil {
				return err
			}
			if at.output == "json" {
				return printJSON(cmd.OutOrStdout(), x)
			}
			return showRun(cmd.OutOrStdout(), x)
		},
	}
	at.add(c)
	return c
}

func (r *records) detail(id string) (runRow, error) {
	run := r.run(id)
	x := row(run)
	for _, e := range r.evals {
		if e.Run == id {
			x.Evals = append(x.Evals, evalRow{Suite: e.Suite, Version: e.Version, Episodes: e.Settled, Reward: state.Reward(e), Done: e.Done})
		}
	}
	for _, f := range run.Failures {
		env := run.Config.Envs[f.Env]
		x.Tasks = append(x.Tasks, taskRow{Env: env.Name, Task: env.Tasks[f.Task].Id, Failures: f.Count, Quarantined: f.Quarantined, Reason: f.Reason})
	}
	if r.live {
		for _, n := range r.nodes {
			x.Nodes = append(x.Nodes, nodeRow{Role: n.Role, Name: n.Name, State: nodeState(n), Version: n.Version, Advisory: roles.Advisory(n.Labels)})
		}
	}
	x.Open = map[string]int{}
	for _, ep := range r.episodes {
		if ep.Run == id && ep.State != raftlog.EpisodeState_EPISODE_STATE_SETTLED {
			x.Open[episodeState(ep)]++
		}
	}
	var err error
	x.Waiting, err = r.why(id)
	return x, err
}

func showRun(w io.Writer, x runRow) error {
	fmt.Fprintf(w, "%s: %s", x.ID, x.State)
	if x.Reason != "" {
		fmt.Fprintf(w, " (%s)", x.Reason)
	}
	fmt.Fprintf(w, "\n\n")
	rows := [][]any{
		{"step", fmt.Sprintf("%d of %d, live version %d", x.Step, x.Steps, x.Live)},
		{"episodes", fmt.Sprintf("%d judged: %d passed, %d failed; %d attempts lost, %d without a verdict", x.Episodes, x.Passed, x.Failed, x.Lost, x.Unjudged)},
		{"groups", fmt.Sprintf("%d trained, %d dropped (%d stale, %d stragglers)", x.Consumed, x.Dropped, x.Stale, x.Straggler)},
		{"tokens", x.Tokens},
		{"max lag", x.MaxLag},
		{"best", best(x.Best)},
	}
	for _, e := range x.Evals {
		state := ""
		if !e.Done {
			state = " (running)"
		}
		rows = append(rows, []any{"eval " + e.Suite, fmt.Sprintf("version %d: %.3f over %d episodes%s", e.Version, e.Reward, e.Episodes, state)})
	}
	for _, t := range x.Tasks {
		rows = append(rows, []any{"task " + t.Task, fmt.Sprintf("%d failures, quarantined %v: %s", t.Failures, t.Quarantined, t.Reason)})
	}
	for _, n := range x.Nodes {
		rows = append(rows, []any{n.Role, n.Name + " " + n.State})
		for _, a := range n.Advisory {
			rows = append(rows, []any{"", a})
		}
	}
	if err := table(w, rows...); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s\n", x.Waiting)
	return nil
}

func runsWhy() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use: "why RUN", Short: "Say in one paragraph what a run waits for and since when.", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := at.state(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			text, err := st.why(args[0])
			if err != nil {
				return err
			}
			if at.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]string{"run": args[0], "why": text})
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
			return nil
		},
	}
	at.add(c)
	return c
}

func runsControl(action, short string) *cobra.Command {
	var at storageFlag
	var reason string
	c := &cobra.Command{
		Use: action + " RUN", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				reason = "asked for by rlctl runs " + action
			}
			if err := at.propose(cmd.Context(), args[0], controlOp(args[0], action, reason)); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], map[string]string{"pause": "paused", "resume": "running", "cancel": "cancelled"}[action])
			return nil
		},
	}
	at.add(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for those who look at the run")
	return c
}

func controlOp(run, action, reason string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: run, Action: action, Reason: reason}}}
}

func runsRollback() *cobra.Command {
	var at storageFlag
	var reason string
	c := &cobra.Command{
		Use: "rollback RUN@VERSION", Short: "Give up the versions above one and train their batches again.",
		Long: `Gives up the versions above VERSION, which must have its full checkpoint, and opens a new lineage: the batches
of the steps that are given up come back in the same order. What is live keeps serving until the new versions pass it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, version, err := splitVersion(args[0])
			if err != nil {
				return err
			}
			if version < 0 {
				return usagef("%s: to which version: give RUN@VERSION", args[0])
			}
			op := &raftlog.Op{Op: &raftlog.Op_Rollback{Rollback: &raftlog.Rollback{Run: run, To: version, Reason: reason}}}
			if err := at.propose(cmd.Context(), run, op); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: goes on from version %d\n", run, version)
			return nil
		},
	}
	at.add(c)
	c.Flags().StringVar(&reason, "reason", "asked for by rlctl runs rollback", "why, for those who look at the run")
	return c
}

// propose sends an operation on a run to the coordinator that runs on the
// storage, or to one started for it when none does.
func (f *storageFlag) propose(ctx context.Context, run string, op *raftlog.Op) error {
	if _, err := f.state(ctx, run); err != nil {
		return err
	}
	c, disconnect, err := f.dial(ctx)
	if err != nil {
		return err
	}
	if c == nil {
		return f.proposeAlone(ctx, op)
	}
	defer disconnect()
	_, err = c.Propose(ctx, op)
	return err
}

// proposeAlone opens the stopped coordinator for one operation and lets its events reach the storage.
func (f *storageFlag) proposeAlone(ctx context.Context, op *raftlog.Op) error {
	objects, err := file.Open(f.dir())
	if err != nil {
		return err
	}
	cfg := coordinator.DefaultConfig(filepath.Join(f.dir(), roles.CoordinatorDir))
	cfg.Mirror = roles.Mirror{ObjectStore: objects}
	n, err := coordinator.Open(ctx, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	res, err := n.Propose(ctx, &raftlog.Proposal{
		Client: fmt.Sprintf("rlctl-%d", time.Now().UnixNano()), Seq: 1,
		Op: op,
	})
	if err == nil && res.Code != raftlog.Code_CODE_OK {
		err = errors.New(res.Message)
	}
	return errors.Join(err, n.Close())
}

func runsReport() *cobra.Command {
	var at storageFlag
	var out string
	c := &cobra.Command{
		Use: "report [RUN]", Short: "Write the report of a run as one self-contained page (default: the newest run).", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := at.runArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			objects, err := at.objects()
			if err != nil {
				return err
			}
			if _, err := at.record(cmd.Context(), run); err != nil { // before a file of that name is cut
				return err
			}
			f, err := os.Create(out)
			if err != nil {
				return err
			}
			if err := errors.Join(report.Write(cmd.Context(), objects, run, f), f.Close()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "report of %s -> %s\n", run, out)
			return nil
		},
	}
	at.add(c)
	c.Flags().StringVar(&out, "out", "report.html", "file to write")
	return c
}

func runsRemove() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use: "rm RUN", Short: "Delete everything of an ended run, exported policies included, and forget it.", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := at.state(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if r := st.run(args[0]); !ended(r) {
				return fmt.Errorf("run %s is %s: end it with rlctl runs cancel %s", r.Id, state.StateName(r.State), r.Id)
			}
			objects, err := file.Open(at.dir())
			if err != nil {
				return err
			}
			// The objects go first: killed in between, the same command goes on. Were
			// the run forgotten first, a new one would take its name and find them.
			n := 0
			for info, err := range objects.List(cmd.Context(), args[0]+"/") {
				if err != nil {
					return err
				}
				if err := objects.Delete(cmd.Context(), info.Key); err != nil {
					return err
				}
				n++
			}
			// Step log, report and exported policies lie beside the objects.
			if err := os.RemoveAll(filepath.Join(at.dir(), args[0])); err != nil {
				return err
			}
			if err := at.propose(cmd.Context(), args[0], controlOp(args[0], "remove", "")); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: removed, with %d objects\n", args[0], n)
			return nil
		},
	}
	at.add(c)
	return c
}

// versions prints the policy versions of a run.
func (r *records) list(cmd *cobra.Command, run, output string) error {
	type versionRow struct {
		Version  int64  `json:"version"`
		State    string `json:"state"`
		Full     bool   `json:"full"`
		Manifest string `json:"manifest"`
		Reason   string `json:"reason,omitempty"`
	}
	rows, lines := []versionRow{}, [][]any{{"VERSION", "STATE", "FULL", "MANIFEST"}}
	for _, v := range r.versions {
		if v.Run == run {
			x := versionRow{v.Version, versionState(v), v.Full, v.Manifest, v.Reason}
			rows = append(rows, x)
			lines = append(lines, []any{x.Version, x.State, x.Full, x.Manifest})
		}
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	return table(cmd.OutOrStdout(), lines...)
}
