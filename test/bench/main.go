// Command bench measures rlfleet on this machine and holds the figures against their floors.
//
// Every line is `name value unit floor ok|short`. What is compared is a ratio
// within one run or processor time; where a figure is wall time its floor is
// wide. docs/benchmarks.md says what each line measures. Remarks about the
// machine go to standard error.
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
	"syscall"

	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// bench is one call of the command.
type bench struct {
	bin   string // directory of rlctl and rlguest
	work  string // scratch directory with the example's tasks and policy
	quick bool   // small counts: for work on the benchmarks themselves
	notes io.Writer
}

// group is a measurement that gives one or more lines.
type group struct {
	name string
	run  func(*bench, context.Context) ([]figure.Line, error)
}

var groups = []group{
	{"sandbox_use", (*bench).sandboxUse},
	{"sandbox_exec", (*bench).sandboxExec},
	{"sandbox_cold", (*bench).sandboxCold},
	{"train", (*bench).train},
	{"decode", (*bench).decode},
	{"demo", (*bench).demo},
	{"lag", (*bench).lag},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run measures what the arguments ask for; 1 is a short or failed figure, 2 a wrong argument.
func run(ctx context.Context, args []string, out, notes io.Writer) int {
	b := &bench{notes: notes}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(notes)
	fs.StringVar(&b.bin, "bin", "bin", "directory of rlctl and rlguest")
	fs.StringVar(&b.work, "work", ".cache/bench", "scratch directory; tools/bench puts the example there")
	fs.BoolVar(&b.quick, "quick", false, "small counts, for work on the benchmarks: figures are rough")
	only := fs.String("only", ".", "measure the groups whose name matches this regular expression")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(notes, "bench:", err)
		return 2
	}
	for _, p := range []*string{&b.bin, &b.work} {
		if *p, err = filepath.Abs(*p); err != nil {
			fmt.Fprintln(notes, "bench:", err)
			return 2
		}
	}
	b.note("%d cores, load %s", runtime.NumCPU(), load())
	code := 0
	for _, g := range groups {
		if !match.MatchString(g.name) {
			continue
		}
		lines, err := g.run(b, ctx)
		for _, l := range lines {
			fmt.Fprintln(out, l)
			if l.Fails() {
				code = 1
			}
		}
		if err != nil {
			fmt.Fprintf(notes, "bench: %s: %v\n", g.name, err)
			code = 1
		}
		if ctx.Err() != nil {
			return 1
		}
	}
	return code
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
