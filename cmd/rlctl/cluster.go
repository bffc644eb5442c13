package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/fsm"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

func clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Make and manage a cluster of coordinator nodes."}
	c.AddCommand(clusterInit(), clusterJoin(), clusterRemove(), clusterTransfer(), clusterStatus(), snapshotCommand(), certsCommand(), tokenCommand())
	return c
}

// clusterCall is a command that asks the cluster for one thing.
func clusterCall(use, short string, args cobra.PositionalArgs, timeout time.Duration, call func(ctx context.Context, out io.Writer, c *client.Client, args []string) error) *cobra.Command {
	var to reachFlags
	c := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			return to.with(cmd.Context(), timeout, func(ctx context.Context, c *client.Client) error {
				return call(ctx, cmd.OutOrStdout(), c, args)
			})
		},
	}
	to.add(c)
	c.Flags().DurationVar(&timeout, "timeout", timeout, "give up after this time; the command may be repeated")
	return c
}

// with calls a function with a client of the cluster.
func (f *reachFlags) with(ctx context.Context, timeout time.Duration, call func(context.Context, *client.Client) error) error {
	c, err := f.client(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return errors.Join(call(ctx, c), c.Close())
}

func clusterInit() *cobra.Command {
	c := &cobra.Command{
		Use: "init ADDRESS [ADDRESS…]", Short: "Make a new node the first of a cluster, and join further new ones to it.", Args: cobra.MinimumNArgs(1),
	}
	var to reachFlags
	to.add(c)
	_ = c.Flags().MarkHidden("coordinator") // the addresses are arguments
	c.RunE = func(cmd *cobra.Command, args []string) error {
		to.coordinator = args[0]
		return to.with(cmd.Context(), 5*time.Minute, func(ctx context.Context, c *client.Client) error {
			id, err := c.Init(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster %s begins at %s\n", id, args[0])
			for _, a := range args[1:] {
				if err := join(ctx, cmd.OutOrStdout(), c, a); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c
}

func join(ctx context.Context, out io.Writer, c *client.Client, address string) error {
	node, err := c.Join(ctx, address)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "node %s at %s has caught up and votes\n", node, address)
	return nil
}

func clusterJoin() *cobra.Command {
	return clusterCall("join ADDRESS", "Add the new node whose RPCs are at ADDRESS.", cobra.ExactArgs(1), 10*time.Minute,
		func(ctx context.Context, out io.Writer, c *client.Client, args []string) error {
			return join(ctx, out, c, args[0])
		})
}

func clusterRemove() *cobra.Command {
	return clusterCall("remove NODE", "Take a node out; refused when the others that answer are no majority.", cobra.ExactArgs(1), time.Minute,
		func(ctx context.Context, out io.Writer, c *client.Client, args []string) error {
			if err := c.Remove(ctx, args[0]); err != nil {
				return err
			}
			fmt.Fprintf(out, "node %s is out: stop it and keep its directory until you are sure\n", args[0])
			return nil
		})
}

func clusterTransfer() *cobra.Command {
	return clusterCall("transfer [NODE]", "Hand leadership to a node, or to the most advanced one.", cobra.MaximumNArgs(1), time.Minute,
		func(ctx context.Context, out io.Writer, c *client.Client, args []string) error {
			node := ""
			if len(args) > 0 {
				node = args[0]
			}
			if err := c.Transfer(ctx, node); err != nil {
				return err
			}
			m, err := c.Members(ctx)
			if err != nil {
				return err
			}
			for _, x := range m.Members {
				if x.Leader {
					fmt.Fprintf(out, "node %s leads\n", x.Member.Id)
				}
			}
			return nil
		})
}

// memberRow is the stable form of a node in -o json.
type memberRow struct {
	Node      string `json:"node"`
	State     string `json:"state"`
	Suffrage  string `json:"suffrage"`
	Address   string `json:"address"`
	Raft      string `json:"raft"`
	Behind    uint64 `json:"behind"`
	Level     int32  `json:"level"`
	Version   string `json:"version"`
	Reachable bool   `json:"reachable"`
	Failure   string `json:"failure,omitempty"`
}

func clusterStatus() *cobra.Command {
	var output string
	c := clusterCall("status", "List the nodes as the leader sees them.", cobra.NoArgs, 15*time.Second,
		func(ctx context.Context, out io.Writer, c *client.Client, _ []string) error {
			if output != "table" && output != "json" {
				return usagef("-o %s is not known: use table or json", output)
			}
			m, err := c.Members(ctx)
			if err != nil {
				return err
			}
			return printMembers(out, m, output)
		})
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func printMembers(out io.Writer, m *pb.MembersResponse, output string) error {
	var rows []memberRow
	for _, x := range m.Members {
		r := memberRow{
			Node: x.Member.Id, State: x.State, Suffrage: x.Suffrage, Address: x.Member.Address, Raft: x.Member.Raft,
			Level: x.Member.Level, Version: x.Member.Version, Reachable: x.Reachable, Failure: x.Failure,
		}
		if x.Reachable && m.Commit > x.Applied {
			r.Behind = m.Commit - x.Applied
		}
		if !x.Reachable {
			r.State = "unreachable"
		}
		rows = append(rows, r)
	}
	if output == "json" {
		return printJSON(out, map[string]any{"cluster": m.Cluster, "epoch": m.Epoch, "level": m.Level, "term": m.Term, "commit": m.Commit, "nodes": rows})
	}
	fmt.Fprintf(out, "cluster %s  term %d  entry %d  level %d  epoch %d\n\n", m.Cluster, m.Term, m.Commit, m.Level, m.Epoch)
	lines := [][]any{{"NODE", "STATE", "VOTES", "ADDRESS", "BEHIND", "LEVEL", "VERSION", "FAILURE"}}
	for _, r := range rows {
		votes := "yes"
		if r.Suffrage != "voter" {
			votes = "not yet"
		}
		lines = append(lines, []any{r.Node, r.State, votes, r.Address, r.Behind, r.Level, r.Version, r.Failure})
	}
	return table(out, lines...)
}

func snapshotCommand() *cobra.Command {
	c := &cobra.Command{Use: "snapshot", Short: "Save the whole state to a file, and bring it back."}
	c.AddCommand(clusterCall("save FILE", "Save the state as it is now; the cluster goes on.", cobra.ExactArgs(1), 10*time.Minute,
		func(ctx context.Context, out io.Writer, c *client.Client, args []string) error {
			return saveSnapshot(ctx, out, c, args[0])
		}), snapshotRestore())
	return c
}

// saveSnapshot writes a file that is whole, checked and on disk, or none.
func saveSnapshot(ctx context.Context, out io.Writer, c *client.Client, path string) (err error) {
	f, err := os.OpenFile(path+".part", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path + ".part") // it is not whole
		}
	}()
	reset := func() error {
		_, err := f.Seek(0, io.SeekStart)
		return errors.Join(err, f.Truncate(0))
	}
	if err := errors.Join(c.SaveSnapshot(ctx, f, reset), f.Sync()); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	s, err := fsm.ReadSnapshot(f)
	if err != nil {
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	fmt.Fprintf(out, "%s: cluster %s, epoch %d, %d runs\n", path, s.Clock().Cluster, s.Clock().Epoch, len(s.Runs()))
	return nil
}

func snapshotRestore() *cobra.Command {
	var foreign bool
	c := clusterCall("restore FILE", "Replace the state of the whole cluster by that of a file.", cobra.ExactArgs(1), 10*time.Minute,
		func(ctx context.Context, out io.Writer, c *client.Client, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return usageError{fmt.Errorf("restore: %w", err)}
			}
			defer f.Close()
			if _, err := fsm.ReadSnapshot(f); err != nil { // before anything is sent
				return fmt.Errorf("%s: %w", args[0], err)
			}
			r, err := c.RestoreSnapshot(ctx, f, foreign)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "restored: epoch %d, %d runs; workers register again by themselves\n", r.Epoch, r.Runs)
			return nil
		})
	c.Long = `Replaces the state of the whole cluster by that of a file. What happened after the file was saved is gone:
leases have ended, workers register again, and a run whose record in the storage goes beyond the file is ended.`
	c.Flags().BoolVar(&foreign, "foreign", false, "take a snapshot of another cluster")
	return c
}
