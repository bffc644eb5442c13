package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// storageFlag says where the runs are and how to print them.
type storageFlag struct {
	storage string
	output  string
	to      reachFlags // a cluster; else the coordinator of the storage
}

func (f *storageFlag) add(c *cobra.Command) {
	f.to.add(c)
	c.Flags().StringVar(&f.storage, "storage", "file://.rlfleet", "where the runs are kept")
	c.Flags().StringVarP(&f.output, "output", "o", "table", "table or json")
}

func (f *storageFlag) check() error {
	if !strings.HasPrefix(f.storage, "file://") {
		return usagef("--storage %s is not in this build; it has: file://DIR", f.storage)
	}
	if f.output != "table" && f.output != "json" {
		return usagef("-o %s is not known: use table or json", f.output)
	}
	return nil
}

func (f *storageFlag) dir() string { return strings.TrimPrefix(f.storage, "file://") }

// where names what is read, for messages.
func (f *storageFlag) where() string {
	if f.to.named() {
		return "the cluster"
	}
	return f.storage
}

// records are what the coordinator knows, whether it runs or not.
type records struct {
	runs     []*raftlog.Run
	versions []*raftlog.PolicyVersion
	groups   []*raftlog.Group
	episodes []*raftlog.Episode
	jobs     []*raftlog.VerifyJob
	steps    []*raftlog.Step
	evals    []*raftlog.EvalResult
	nodes    []*raftlog.Node
	clock    *raftlog.Clock
	live     bool // a coordinator answered; else read from its data directory
	why      func(run string) (string, error)
}

func (r *records) load(x *raftlog.Record) {
	switch v := x.Record.(type) {
	case *raftlog.Record_Run:
		r.runs = append(r.runs, v.Run)
	case *raftlog.Record_Version:
		r.versions = append(r.versions, v.Version)
	case *raftlog.Record_Group:
		r.groups = append(r.groups, v.Group)
	case *raftlog.Record_Episode:
		r.episodes = append(r.episodes, v.Episode)
	case *raftlog.Record_Job:
		r.jobs = append(r.jobs, v.Job)
	case *raftlog.Record_Step:
		r.steps = append(r.steps, v.Step)
	case *raftlog.Record_Eval:
		r.evals = append(r.evals, v.Eval)
	case *raftlog.Record_Node:
		r.nodes = append(r.nodes, v.Node)
	case *raftlog.Record_Clock:
		r.clock = v.Clock
	}
}

// dial reaches the cluster that was named, else the coordinator that runs on this storage; nil when none does.
func (f *storageFlag) dial(ctx context.Context) (*client.Client, func() error, error) {
	if f.to.named() {
		c, err := f.to.client(ctx)
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
	if !roles.Listens(ctx, f.dir()) {
		return nil, nil, nil
	}
	c, disconnect, err := roles.Connect(ctx, f.dir(), "rlctl")
	if err != nil {
		return nil, nil, err
	}
	sctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := c.Status(sctx); err != nil {
		return nil, nil, disconnect()
	}
	return c, disconnect, nil
}

// state reads the records of a run, or of all runs for "".
func (f *storageFlag) state(ctx context.Context, run string) (*records, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(f.dir()); err != nil && !f.to.named() {
		return nil, fmt.Errorf("%s: there is no storage here: start a run, or name another with --storage", f.storage)
	}
	c, disconnect, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	r := &records{}
	if c != nil {
		defer disconnect()
		if err := r.ask(ctx, c, run); err != nil {
			return nil, err
		}
	} else {
		st, err := fsm.Open(filepath.Join(f.dir(), roles.CoordinatorDir))
		if err != nil {
			return nil, err
		}
		st.Records(func(x *raftlog.Record) bool { r.load(x); return true })
		r.why = func(run string) (string, error) {
			if x := st.Run(run); x != nil && !ended(x) {
				return "No process works on it now; rlctl run with its experiment goes on. " + st.Why(run), nil
			}
			return st.Why(run), nil
		}
	}
	if run != "" && r.run(run) == nil {
		return nil, fmt.Errorf("no run %q in %s; there are: %s", run, f.where(), strings.Join(r.names(), ", "))
	}
	return r, nil
}

func (r *records) ask(ctx context.Context, c *client.Client, run string) error {
	r.live = true
	v, err := c.View(ctx, "")
	if err != nil {
		return err
	}
	for _, x := range v.Records {
		r.load(x)
	}
	why := ""
	if run != "" {
		if why, err = c.Why(ctx, run); err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	r.why = func(string) (string, error) { return why, nil }
	return nil
}

func (r *records) run(id string) *raftlog.Run {
	for _, x := range r.runs {
		if x.Id == id {
			return x
		}
	}
	return nil
}

func (r *records) names() []string {
	out := []string{}
	for _, x := range r.runs {
		out = append(out, x.Id)
	}
	if len(out) == 0 {
		return []string{"none"}
	}
	return out
}

// runArg returns the run that a command names, or the newest one.
func (f *storageFlag) runArg(ctx context.Context, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	r, err := f.state(ctx, "")
	if err != nil {
		return "", err
	}
	var newest *raftlog.Run
	for _, x := range r.runs {
		if newest == nil || x.CreatedNs > newest.CreatedNs {
			newest = x
		}
	}
	if newest == nil {
		return "", fmt.Errorf("there is no run in %s", f.where())
	}
	return newest.Id, nil
}

// manifest returns the checkpoint of a version; −1 is the newest.
func (r *records) manifest(run string, version int64) (policy.Digest, int64, error) {
	var newest *raftlog.PolicyVersion
	for _, v := range r.versions {
		if v.Run != run {
			continue
		}
		if v.Version == version {
			return policy.Digest(v.Manifest), v.Version, nil
		}
		newest = v
	}
	if version < 0 && newest != nil {
		return policy.Digest(newest.Manifest), newest.Version, nil
	}
	return "", 0, fmt.Errorf("run %s has no version %d", run, version)
}

// splitVersion reads RUN or RUN@VERSION.
func splitVersion(name string) (run string, version int64, err error) {
	run, v, has := strings.Cut(name, "@")
	if !has {
		return run, -1, nil
	}
	version, err = strconv.ParseInt(v, 10, 64)
	if err != nil || version < 0 {
		return "", 0, usagef("%s: a version is a number from 0", name)
	}
	return run, version, nil
}
