// Command rlfleetd is every server role of rlfleet by subcommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trajectory"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	unarm, err := failpoint.Start(ctx, os.Getenv(failpoint.Env))
	if err != nil {
		fmt.Fprintln(os.Stderr, "rlfleetd:", err)
		os.Exit(2)
	}
	defer unarm()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		role := ""
		if len(os.Args) > 1 {
			role = os.Args[1]
		}
		fmt.Fprintln(os.Stderr, roles.Complaint(role)+strings.ReplaceAll(err.Error(), "\n", "; "))
		if len(experiment.Errors(err)) > 0 {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "rlfleetd", Short: "One role of a run, as a process of its own; rlctl run --processes starts them.",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(coordinatorCommand())
	for _, r := range []struct {
		name, short string
		run         func(*roles.Process, context.Context) error
	}{
		{"host", "Give out sandboxes of this machine.", (*roles.Process).RunHost},
		{"engine", "Sample from the policy.", (*roles.Process).RunEngine},
		{"rollout", "Play episodes.", nil},
		{"verifier", "Judge episodes.", (*roles.Process).RunVerifier},
		{"trainer", "Train on complete batches.", (*roles.Process).RunTrainer},
		{"publisher", "Bring new versions to the engines.", (*roles.Process).RunPublisher},
	} {
		root.AddCommand(roleCommand(r.name, r.short, r.run))
	}
	return root
}

func logger(role string) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("role", role, "pid", os.Getpid())
}

func coordinatorCommand() *cobra.Command {
	var storage, config string
	c := &cobra.Command{
		Use: "coordinator", Short: "Keep the replicated state: as a node of a cluster (--config), or alone for the runs of a storage.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config != "" {
				node, err := roles.LoadNode(config)
				if err != nil {
					return err
				}
				return roles.RunNode(cmd.Context(), node, roles.Build(), logger("coordinator").With("node", node.Node))
			}
			objects, err := file.Open(storage)
			if err != nil {
				return err
			}
			return roles.RunCoordinator(cmd.Context(), roles.CoordinatorConfig{
				Storage: storage, Store: objects, Build: roles.Build(), Log: logger("coordinator"),
			}, func() {})
		},
	}
	c.Flags().StringVar(&storage, "storage", ".rlfleet", "directory of the file storage")
	c.Flags().StringVar(&config, "config", "", "file of a node of a cluster")
	return c
}

// roleFlags are those of every role but the coordinator.
type roleFlags struct {
	experiment  string
	sets        []string
	run         string
	coordinator string
	tls         string
	name        string
	acks        string
	guest       string
	index, of   int
}

func roleCommand(name, short string, run func(*roles.Process, context.Context) error) *cobra.Command {
	var f roleFlags
	if run == nil {
		run = func(p *roles.Process, ctx context.Context) error { return p.RunRollout(ctx, f.index, f.of) }
	}
	c := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.start(cmd.Context(), name, run) },
	}
	fl := c.Flags()
	fl.StringVar(&f.experiment, "experiment", "", "spec of the run")
	fl.StringArrayVar(&f.sets, "set", nil, "override a field: path=value")
	fl.StringVar(&f.run, "run", "", "run to work for")
	fl.StringVar(&f.coordinator, "coordinator", "", "addresses of the coordinator's nodes, HOST:PORT[,HOST:PORT…]; empty: the coordinator of the storage")
	fl.StringVar(&f.tls, "tls", "", "directory with ca.pem, cert.pem and key.pem, as rlctl cluster certs makes it; without it the coordinator is on this machine")
	fl.StringVar(&f.name, "name", "apart", "name of this process's node")
	fl.StringVar(&f.acks, "acks", "", "append every acknowledgement to this file")
	fl.StringVar(&f.guest, "guest", "", "rlguest program (default: beside rlfleetd)")
	fl.IntVar(&f.index, "index", 0, "which of the rollout workers this is")
	fl.IntVar(&f.of, "of", 1, "rollout workers of the run; they share its concurrency")
	return c
}

// connect returns a client of the cluster that was named, or of the storage's own coordinator.
func (f *roleFlags) connect(ctx context.Context, role, storage string) (*client.Client, func() error, error) {
	if f.coordinator == "" {
		return roles.Connect(ctx, storage, role+"-"+f.name)
	}
	cfg := client.DefaultConfig(role+"-"+f.name, strings.Split(f.coordinator, ",")...)
	if f.tls != "" {
		creds, err := auth.FilesIn(f.tls).Load(logger(role))
		if err != nil {
			return nil, nil, err
		}
		if cfg.Dial, err = auth.DialOptions(creds, ""); err != nil {
			return nil, nil, err
		}
	}
	c, err := client.New(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

func (f *roleFlags) start(ctx context.Context, role string, run func(*roles.Process, context.Context) error) (err error) {
	if f.experiment == "" || f.run == "" {
		return errors.New("name the spec and the run: --experiment FILE --run RUN")
	}
	x, err := experiment.Load(f.experiment, f.sets)
	if err != nil {
		return err
	}
	plan, err := roles.NewPlan(x)
	if err != nil {
		return err
	}
	dir, ok := x.StorageDir()
	if !ok {
		return fmt.Errorf("storage %s is not in this build", x.Spec.Storage)
	}
	objects, err := file.Open(dir)
	if err != nil {
		return err
	}
	c, disconnect, err := f.connect(ctx, role, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disconnect()) }()
	var journal *trajectory.AckJournal
	if f.acks != "" {
		if journal, err = trajectory.NewAckJournal(f.acks); err != nil {
			return err
		}
		defer journal.Close()
	}
	p, err := roles.NewProcess(ctx, roles.Config{
		Plan: plan, Run: f.run, Storage: dir, Store: objects, Client: c, Apart: true,
		Name: f.name, Guest: f.guest, Build: roles.Build(), Log: logger(role), Journal: journal,
	})
	if err != nil {
		return err
	}
	return errors.Join(run(p, ctx), p.Close())
}
