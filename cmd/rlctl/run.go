package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/experiment"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/trajectory"
)

// runFlags are those of rlctl run.
type runFlags struct {
	sets      []string
	processes bool
	fresh     bool
	acks      string
	metrics   string
	guest     string
	daemon    string
	verbose   bool
	to        reachFlags // a cluster; else a coordinator of its own
}

func runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run an experiment on this machine; the same command continues it after any end.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExperiment(cmd.Context(), cmd.OutOrStdout(), args[0], f)
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.sets, "set", nil, "override a field: path=value")
	fl.BoolVar(&f.processes, "processes", false, "run each role as a process of its own, restarted when it dies")
	fl.BoolVar(&f.fresh, "new", false, "start a new run even where one of this experiment exists")
	fl.StringVar(&f.acks, "acks", "", "append every acknowledgement to this file, for rlctl traj verify --acks")
	fl.StringVar(&f.metrics, "metrics", "127.0.0.1:0", "loopback address for Prometheus metrics; empty for none")
	fl.StringVar(&f.guest, "guest", "", "rlguest program (default: beside rlctl)")
	fl.StringVar(&f.daemon, "rlfleetd", "", "rlfleetd program, for --processes (default: beside rlctl)")
	f.to.add(c)
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log to the terminal instead of the storage's rlfleet.log")
	return c
}

// session is one call of rlctl run.
type session struct {
	flags   runFlags
	file    string
	plan    *roles.Plan
	storage string
	store   *file.Store
	log     *slog.Logger
	reg     *prometheus.Registry
	journal *trajectory.AckJournal
	out     io.Writer
	run     string
	metrics net.Listener // nil: none
}

func runExperiment(ctx context.Context, out io.Writer, path string, f runFlags) error {
	s, cleanup, err := openSession(path, f, out)
	if err != nil {
		return err
	}
	defer cleanup()
	switch {
	case f.processes:
		return s.apart(ctx)
	case f.to.named():
		return s.workers(ctx)
	}
	return s.together(ctx)
}

// openSession loads the experiment with its tasks and opens the storage. What
// would keep the run from working is found here, before anything is created.
func openSession(path string, f runFlags, out io.Writer) (_ *session, _ func(), err error) {
	x, err := experiment.Load(path, f.sets)
	if err != nil {
		return nil, nil, err
	}
	dir, ok := x.StorageDir()
	if !ok {
		return nil, nil, usagef("storage %s is not in this build; it has: file://DIR", x.Spec.Storage)
	}
	plan, err := roles.NewPlan(x)
	if err != nil {
		return nil, nil, usageError{err}
	}
	if err := roles.CheckHost(f.guest); err != nil {
		return nil, nil, err
	}
	s := &session{flags: f, file: path, plan: plan, storage: dir, reg: prometheus.NewRegistry(), out: out}
	s.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var closers []io.Closer
	cleanup := func() {
		for i := len(closers) - 1; i >= 0; i-- {
			_ = closers[i].Close()
		}
	}
	defer func() {
		if err != nil {
			cleanup()
		}
	}()
	lock, err := lockStorage(dir)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, lock)
	if s.store, err = file.Open(dir); err != nil {
		return nil, nil, err
	}
	logs := io.Writer(os.Stderr)
	if !f.verbose {
		lf, err := os.OpenFile(filepath.Join(dir, "rlfleet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, fmt.Errorf("open the log: %w", err)
		}
		logs = lf
		closers = append(closers, lf)
	}
	s.log = slog.New(slog.NewTextHandler(logs, nil))
	if f.acks != "" {
		if s.journal, err = trajectory.NewAckJournal(f.acks); err != nil {
			return nil, nil, err
		}
		closers = append(closers, s.journal)
	}
	if s.metrics, err = listenMetrics(f.metrics); err != nil {
		return nil, nil, err
	}
	if s.metrics != nil {
		closers = append(closers, s.metrics)
	}
	return s, cleanup, nil
}

// lockStorage keeps a second run out of a storage; the lock ends with the process.
func lockStorage(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the storage: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "run.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the storage: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		who, _ := io.ReadAll(io.LimitReader(f, 20)) // it may not have written yet
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the storage: %w", err)
		}
		return nil, fmt.Errorf("another rlctl run (process %s) works in %s: stop it, or choose another storage with --set spec.storage=file://DIR", who, dir)
	}
	_ = f.Truncate(0) // who holds it is for people only
	_, _ = fmt.Fprintf(f, "%d", os.Getpid())
	return f, nil
}

func listenMetrics(address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	if err := roles.CheckLoopback(address); err != nil {
		return nil, usageError{fmt.Errorf("--metrics: %w", err)}
	}
	l, err := roles.ListenLoopback(address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	return l, nil
}

// choose finds the run that this experiment continues, or creates one.
func (s *session) choose(ctx context.Context, c *client.Client) (*raftlog.Run, error) {
	runs, err := roles.Runs(ctx, c)
	if err != nil {
		return nil, err
	}
	digest := string(s.plan.Experiment.Digest())
	var infos []roles.RunInfo
	for _, r := range runs {
		infos = append(infos, roles.RunInfo{ID: r.Id, Digest: r.SpecDigest, Ended: ended(r)})
		switch {
		case ended(r):
		case r.SpecDigest != digest:
			return nil, fmt.Errorf("run %s in %s is not finished and is of another experiment: continue it with its own file and --set, end it with rlctl runs cancel %s, or choose another storage", r.Id, s.storage, r.Id)
		case s.flags.fresh:
			return nil, fmt.Errorf("run %s in %s is not finished: continue it without --new, or end it with rlctl runs cancel %s", r.Id, s.storage, r.Id)
		}
	}
	records, err := filepath.Glob(filepath.Join(s.storage, "*", "manifest"))
	if err != nil {
		return nil, fmt.Errorf("look at the storage: %w", err)
	}
	for _, r := range records { // of runs that this coordinator may not know: of before a restore, or of another
		infos = append(infos, roles.RunInfo{ID: filepath.Base(filepath.Dir(r)), Ended: true})
	}
	name, existing := roles.RunName(s.plan.Experiment.Metadata.Name, digest, infos, s.flags.fresh)
	if existing != nil {
		for _, r := range runs {
			if r.Id == name {
				return r, nil
			}
		}
	}
	return s.create(ctx, c, name)
}

func (s *session) create(ctx context.Context, c *client.Client, name string) (*raftlog.Run, error) {
	x := s.plan.Experiment
	files, err := roles.OpenPolicy(x.Spec.Policy.Init, x.ResolvePath(x.Spec.Policy.Init), x.Spec.Seed, s.plan.Instructions())
	if err != nil {
		return nil, usageError{err}
	}
	manifest, err := roles.PutPolicy(ctx, s.store, name, files)
	if err != nil {
		return nil, err
	}
	if _, err := c.CreateRun(ctx, &raftlog.CreateRun{
		Id: name, SpecDigest: string(x.Digest()), Spec: x.Canonical(), Config: s.plan.RunConfig(), Manifest: string(manifest),
	}); err != nil {
		return nil, fmt.Errorf("create run %s: %w", name, err)
	}
	return roles.Run(ctx, c, name)
}

func ended(r *raftlog.Run) bool {
	switch r.State {
	case raftlog.RunState_RUN_STATE_SUCCEEDED, raftlog.RunState_RUN_STATE_FAILED, raftlog.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// together runs every role in this process.
func (s *session) together(ctx context.Context) error {
	node, err := roles.OpenCoordinator(ctx, roles.CoordinatorConfig{
		Storage: s.storage, Store: s.store, Build: version(), Log: s.log, Registerer: s.reg,
	})
	if err != nil {
		return err
	}
	alive, die := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-node.Done():
			die(givenUp{node.Err()})
		case <-alive.Done():
		}
	}()
	err = s.workers(alive)
	die(nil)
	<-watched
	return errors.Join(err, node.Close())
}

// workers runs every role but the coordinator's in this process.
func (s *session) workers(ctx context.Context) error {
	return s.withCoordinator(ctx, func(ctx context.Context, c *client.Client) (func() error, error) {
		p, err := roles.NewProcess(ctx, s.config(c))
		if err != nil {
			return nil, err
		}
		return func() error { return errors.Join(p.RunAll(ctx), p.Close()) }, nil
	})
}

// connect returns a client of the run's coordinator: the cluster's that was named, or this storage's.
func (s *session) connect(ctx context.Context) (*client.Client, func() error, error) {
	if !s.flags.to.named() {
		return roles.Connect(ctx, s.storage, "rlctl")
	}
	c, err := s.flags.to.client(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

// givenUp ends the work on a run of which a part cannot go on, such as a coordinator on a full disk.
type givenUp struct{ error }

func (s *session) config(c *client.Client) roles.Config {
	return roles.Config{
		Plan: s.plan, Run: s.run, Storage: s.storage, Store: s.store, Client: c, Name: "local",
		Guest: s.flags.guest, Build: version(), Log: s.log, Registerer: s.reg, Journal: s.journal,
	}
}

// withCoordinator chooses the run, starts its roles and shows them until the run ends or ctx does.
func (s *session) withCoordinator(ctx context.Context, start func(context.Context, *client.Client) (func() error, error)) error {
	c, disconnect, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	r, err := s.choose(ctx, c)
	if err != nil {
		return err
	}
	s.run = r.Id
	if ended(r) {
		fmt.Fprintf(s.out, "run %s has ended already; --new starts another\n", r.Id)
		return s.finish(ctx, c)
	}
	defer roles.ServeMetrics(s.metrics, s.reg, s.log)()
	metrics := ""
	if s.metrics != nil {
		metrics = fmt.Sprintf(" metrics on http://%s/metrics;", s.metrics.Addr())
	}
	fmt.Fprintf(s.out, "run %s in %s;%s logs in %s\n", s.run, s.storage, metrics, filepath.Join(s.storage, "rlfleet.log"))
	work, stop := context.WithCancel(ctx)
	defer stop()
	roles, err := start(work, c)
	if err != nil {
		return err
	}
	watch, unwatch := context.WithCancelCause(ctx)
	defer unwatch(nil)
	var roleErr error
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if roleErr = roles(); roleErr != nil {
			unwatch(roleErr)
		}
	}()
	err = s.watch(watch, c)
	stop()
	var died givenUp
	failed := errors.As(context.Cause(ctx), &died)
	if ctx.Err() != nil && !failed {
		fmt.Fprintln(s.out, "stopping: running episodes finish first; another Ctrl-C stops at once")
	}
	<-stopped
	switch {
	case failed: // whatever else failed did so because of it
		return died.error
	case roleErr != nil:
		return roleErr
	case ctx.Err() != nil:
		fmt.Fprintf(s.out, "stopped: the same command continues run %s\n", s.run)
		return nil
	case err != nil:
		return err
	}
	return s.finish(context.WithoutCancel(ctx), c)
}
