package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/cmd/internal/progress"
	"github.com/rlfleet/rlfleet/cmd/internal/report"
	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
	"github.com/rlfleet/rlfleet/trajectory"
)

// How often the view looks at a run, and at one that has made no progress for a while.
const (
	lookEvery = 500 * time.Millisecond
	lookIdle  = 2 * time.Second
	idleAfter = 5 * time.Second
)

// watcher follows a run for the terminal and for its step log.
type watcher struct {
	s       *session
	c       *client.Client
	tracker progress.Tracker
	steps   []*raftlog.Step
	evals   []*raftlog.EvalResult
	logged  int64 // steps in the step log
	seen    map[string]bool
	log     *progress.StepLog

	progress int64     // the run's, at the last look
	moved    time.Time // when it was last seen to change
}

// watch shows the run until it has ended, or ctx has.
func (s *session) watch(ctx context.Context, c *client.Client) error {
	log, err := progress.OpenStepLog(filepath.Join(s.storage, s.run))
	if err != nil {
		return err
	}
	w := &watcher{s: s, c: c, log: log, seen: map[string]bool{}}
	view := progress.New(s.out, isTerminal(s.out))
	misses := 0
	for {
		run, err := w.look(ctx, view)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if misses++; misses == 20 { // a coordinator that restarts is back by then
				view.Note("the coordinator does not answer: " + err.Error())
			}
		default:
			misses = 0
		}
		if ctx.Err() != nil || (run != nil && ended(run)) {
			view.Close()
			if run == nil || !ended(run) {
				return errors.Join(context.Cause(ctx), log.Close())
			}
			return log.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(w.pause(run, time.Now())):
		}
	}
}

// pause is the time until the next look. A run that waits costs next to nothing.
func (w *watcher) pause(run *raftlog.Run, now time.Time) time.Duration {
	if run == nil || run.ProgressNs != w.progress || w.moved.IsZero() {
		w.progress, w.moved = run.GetProgressNs(), now
	}
	if now.Sub(w.moved) < idleAfter {
		return lookEvery
	}
	return lookIdle
}

// look reads the coordinator once and shows what it says.
func (w *watcher) look(ctx context.Context, view *progress.View) (*raftlog.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	kinds := []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_EVAL}
	v, err := w.c.StaleView(ctx, w.s.run, kinds...)
	if err != nil {
		return nil, err
	}
	var run *raftlog.Run
	w.evals = nil
	for _, r := range v.Records {
		switch {
		case r.GetRun() != nil:
			run = r.GetRun()
		case r.GetEval() != nil:
			w.evals = append(w.evals, r.GetEval())
		}
	}
	if run == nil {
		return nil, fmt.Errorf("run %s is gone", w.s.run)
	}
	if run.Head != int64(len(w.steps)) {
		if err := w.readSteps(ctx); err != nil {
			return run, err
		}
	}
	st := w.tracker.Status(time.Now(), run, w.steps, w.evals)
	if err := w.fill(ctx, run, &st); err != nil {
		return run, err
	}
	view.Update(st)
	return run, w.record(run, st)
}

func (w *watcher) readSteps(ctx context.Context) error {
	v, err := w.c.StaleView(ctx, w.s.run, pb.Kind_KIND_STEP)
	if err != nil {
		return err
	}
	w.steps = nil
	for _, r := range v.Records {
		if s := r.GetStep(); s != nil && s.State == raftlog.StepState_STEP_STATE_COMMITTED {
			w.steps = append(w.steps, s)
		}
	}
	return nil
}

// fill adds what the run's own record does not say: sandboxes and what it waits for.
func (w *watcher) fill(ctx context.Context, run *raftlog.Run, st *progress.Status) error {
	st.Elapsed = elapsed(run, time.Now())
	v, err := w.c.StaleView(ctx, "", pb.Kind_KIND_NODE, pb.Kind_KIND_CLOCK)
	if err != nil {
		return err
	}
	for _, r := range v.Records {
		if n := r.GetNode(); n != nil && n.Role == "host" {
			st.Sandboxes += int(n.Sandboxes)
		}
		if c := r.GetClock(); c != nil {
			st.Since = time.Duration(c.NowNs - run.ProgressNs)
			st.Elapsed = time.Duration(c.NowNs - run.CreatedNs)
		}
	}
	if ended(run) {
		return nil
	}
	if why, err := w.c.Why(ctx, w.s.run); err == nil {
		st.WaitsFor = waitsFor(why)
	}
	return nil
}

func elapsed(run *raftlog.Run, _ time.Time) time.Duration {
	return time.Duration(run.ProgressNs - run.CreatedNs)
}

// waitsFor takes what is waited for out of the paragraph.
func waitsFor(text string) string {
	_, rest, found := strings.Cut(text, "It waits for ")
	if !found {
		return text
	}
	what, after, _ := strings.Cut(rest, ". Last progress")
	if i := strings.Index(after, "events wait for the store"); i >= 0 { // a store that fails comes first
		return strings.TrimSpace(after[strings.LastIndex(after[:i], ". ")+1:])
	}
	return what
}

// record appends new steps and evaluations to steps.jsonl and the event file.
func (w *watcher) record(run *raftlog.Run, st progress.Status) error {
	for _, s := range w.steps {
		if s.Step < w.logged {
			continue
		}
		extras := map[string]float64{
			progress.Live: float64(run.Live), progress.EpisodesPerSecond: st.EpisodesPerSecond, progress.TokensPerSecond: st.TokensPerSecond,
			progress.Sandboxes: float64(st.Sandboxes), progress.Episodes: float64(run.Counters.EpisodesSettled),
			progress.Passed: float64(st.Pass), progress.Failed: float64(st.Fail), progress.Indeterminate: float64(st.Indeterminate),
		}
		if err := w.log.Append(s, extras); err != nil {
			return err
		}
		w.logged = s.Step + 1
	}
	for _, e := range w.evals {
		k := fmt.Sprintf("%s@%d", e.Suite, e.Version)
		if !e.Done || w.seen[k] {
			continue
		}
		if err := w.log.AppendEval(e, time.Now()); err != nil {
			return err
		}
		w.seen[k] = true
	}
	return nil
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// finish writes the report and says how the run ended.
func (s *session) finish(ctx context.Context, c *client.Client) error {
	v, err := c.View(ctx, s.run, pb.Kind_KIND_RUN, pb.Kind_KIND_EVAL)
	if err != nil {
		return err
	}
	var run *raftlog.Run
	var evals []*raftlog.EvalResult
	for _, r := range v.Records {
		if r.GetRun() != nil {
			run = r.GetRun()
		}
		if e := r.GetEval(); e != nil && e.Done {
			evals = append(evals, e)
		}
	}
	if run == nil {
		return fmt.Errorf("run %s is gone", s.run)
	}
	rec, err := s.mirrored(ctx)
	if err != nil {
		return err
	}
	res := result(run, evals)
	res.Lost, res.Twice = progress.Audit(rec)
	if best, err := s.exportBest(ctx, c, run); err != nil {
		return err
	} else if best != "" {
		res.Best = best
	}
	path := filepath.Join(s.storage, s.run, "report.html")
	if err := s.writeReport(ctx, path); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "report: %s\n", path)
	fmt.Fprintln(s.out, progress.Done(res))
	if run.State != raftlog.RunState_RUN_STATE_SUCCEEDED {
		return errSilent
	}
	return nil
}

// mirrored waits until the end of the run is in its record, which the report and the audit read.
func (s *session) mirrored(ctx context.Context) (*trajectory.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		rec, err := trajectory.OpenRun(ctx, s.store, s.run)
		if err == nil && rec.Ended() {
			return rec, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the end of run %s did not reach its record in %s: see rlfleet.log", s.run, s.storage), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func result(run *raftlog.Run, evals []*raftlog.EvalResult) progress.Result {
	c := run.Counters
	res := progress.Result{
		State: state.StateName(run.State), Reason: run.Reason, Before: math.NaN(), After: math.NaN(), Steps: run.Head,
		Took: time.Duration(run.EndedNs - run.CreatedNs), Episodes: c.EpisodesSettled, Stale: c.Stale, MaxLag: c.MaxLag,
	}
	slices.SortStableFunc(evals, func(a, b *raftlog.EvalResult) int { return cmp.Compare(a.Version, b.Version) })
	for _, e := range evals {
		if res.Suite == "" {
			res.Suite = e.Suite
		}
		if e.Suite != res.Suite || e.Scored == 0 {
			continue
		}
		if e.Version == 0 {
			res.Before = state.Reward(e)
		}
		res.After = state.Reward(e)
	}
	return res
}

// exportBest writes the best evaluated version as a directory and returns its path.
func (s *session) exportBest(ctx context.Context, c *client.Client, run *raftlog.Run) (string, error) {
	var best int64
	var reward float64
	if n, _ := fmt.Sscanf(run.Best, "%d %g", &best, &reward); n < 2 {
		return "", nil
	}
	v, err := c.View(ctx, s.run, pb.Kind_KIND_VERSION)
	if err != nil {
		return "", err
	}
	for _, r := range v.Records {
		if x := r.GetVersion(); x != nil && x.Version == best {
			dir := filepath.Join(s.storage, s.run, "policies", fmt.Sprint(best))
			return dir, roles.ExportPolicy(ctx, s.store, s.run, x.Manifest, dir)
		}
	}
	return "", nil
}

// writeReport makes report.html beside the run's step log.
func (s *session) writeReport(ctx context.Context, path string) error {
	f, err := os.Create(path + ".partial")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	err = report.Write(ctx, s.store, s.run, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return os.Rename(path+".partial", path)
}
