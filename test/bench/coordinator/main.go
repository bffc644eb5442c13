// Command coordinator measures the coordinator on this machine, beside etcd,
// and holds the figures against their floors.
//
// Every line is `name value unit floor ok|short|noisy`. What is compared with
// etcd is a ratio within one run: both clusters are three real processes on the
// same disk, with the same TLS, driven by the same loop, in turns.
// docs/benchmarks.md says what each line measures. Remarks go to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// bench is one call of the command.
type bench struct {
	rlfleetd string // binaries
	etcd     string
	work     string // scratch directory, on a real disk
	quick    bool
	keep     bool
	notes    io.Writer
	spread   func() float64 // of the spin loop, now

	until   time.Time // nothing is measured again after this
	million *machine  // with a million records; only while the stall is measured
	ours    *cluster  // started by the first group that needs it
	peak    float64   // grants a second of 64 clients, when it has been measured
}

// group is a measurement that gives one or more lines.
type group struct {
	name string
	run  func(*bench, context.Context) ([]figure.Line, error)
}

// groups in the order that they are measured in: what runs inside this process first, while nothing else does.
var groups = []group{
	{"stall", (*bench).stall},
	{"queue", (*bench).queue},
	{"failover", (*bench).failover}, // while the log is short: a node that comes back reads all of it
	{"renewals", (*bench).renewals},
	{"grants", (*bench).grants},
	{"latency", (*bench).latency},
}

// budget is how long measurements may begin anew because the machine was noisy.
const budget = 3*time.Minute + 30*time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run measures what the arguments ask for; 1 is a short or failed figure, 2 a wrong argument.
func run(ctx context.Context, args []string, out, notes io.Writer) (code int) {
	b := &bench{notes: notes, spread: spread, until: time.Now().Add(budget)}
	fs := flag.NewFlagSet("bench-coordinator", flag.ContinueOnError)
	fs.SetOutput(notes)
	fs.StringVar(&b.rlfleetd, "rlfleetd", "bin/rlfleetd", "the coordinator's binary")
	fs.StringVar(&b.etcd, "etcd", ".cache/bench-coordinator/etcd", "the binary of test/bench/etcd")
	fs.StringVar(&b.work, "work", ".cache/bench-coordinator/data", "scratch directory; emptied before and after")
	fs.BoolVar(&b.quick, "quick", false, "small counts, for work on the benchmarks: figures are rough")
	fs.BoolVar(&b.keep, "keep", false, "leave the scratch directory, with the nodes' logs")
	only := fs.String("only", ".", "measure the groups whose name matches this regular expression")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(notes, "bench-coordinator:", err)
		return 2
	}
	failed := func(name string, err error) {
		fmt.Fprintf(notes, "bench-coordinator: %s: %v\n", name, err)
		code = 1
	}
	if err := b.prepare(); err != nil {
		failed("prepare", err)
		return code
	}
	defer func() {
		if err := b.clean(); err != nil {
			failed("clean up", err)
		}
	}()
	b.note("%d cores, spin-loop spread %.0f %%", runtime.NumCPU(), 100*b.spread())
	for _, g := range groups {
		if !match.MatchString(g.name) || ctx.Err() != nil {
			continue
		}
		lines, err := b.measure(ctx, g)
		for _, l := range lines {
			fmt.Fprintln(out, l)
			if l.Fails() {
				code = 1
			}
		}
		if err != nil {
			failed(g.name, err)
		}
		b.million = nil
		debug.FreeOSMemory()
	}
	if ctx.Err() != nil {
		return 1
	}
	return code
}

// prepare makes paths absolute, which the processes need, and the scratch directory empty.
func (b *bench) prepare() (err error) {
	for _, p := range []*string{&b.rlfleetd, &b.etcd, &b.work} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.work); err != nil {
		return err
	}
	if err := os.MkdirAll(b.work, 0o755); err != nil {
		return err
	}
	if inMemory(b.work) {
		return fmt.Errorf("%s is in memory: give -work a directory on a disk", b.work)
	}
	return b.certificates()
}

// clean ends what still runs and removes what was written.
func (b *bench) clean() error {
	if b.ours != nil {
		b.ours.stop()
		b.ours = nil
	}
	if b.keep {
		return nil
	}
	return os.RemoveAll(b.work)
}

// note says something about the machine or a figure.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.notes, "note: "+format+"\n", args...)
}

// count is a full run's count, or a small one.
func (b *bench) count(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}
