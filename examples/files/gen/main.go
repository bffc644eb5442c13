// Command gen makes the tasks and the supervised corpus of the files example.
//
//	go run ./examples/files/gen -out examples/files/tasks -seed 7 -sft examples/files/sft.jsonl
//
// The same flags always make the same bytes. Training tasks, evaluation tasks,
// latencies and the corpus are drawn from streams of their own, so that none
// depends on the size of another.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

// options are the flags.
type options struct {
	out         string
	seed        uint64
	train, eval int
	latency     bool
	sft         string
	episodes    int
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	var o options
	fs := flag.NewFlagSet("gen", flag.ContinueOnError)
	fs.StringVar(&o.out, "out", "", "directory for the tasks; made whole or not at all")
	fs.Uint64Var(&o.seed, "seed", 7, "seed of everything")
	fs.IntVar(&o.train, "train", 512, "training tasks")
	fs.IntVar(&o.eval, "eval", 128, "evaluation tasks, never seen in training")
	fs.BoolVar(&o.latency, "latency", false, "give the tasks a cat whose latency has a long tail")
	fs.StringVar(&o.sft, "sft", "", "file for the supervised corpus, one JSON episode a line")
	fs.IntVar(&o.episodes, "episodes", 16000, "episodes of the corpus")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.out == "" && o.sft == "":
		return fmt.Errorf("nothing to make: name a directory with -out, a file with -sft, or both")
	case o.train < 1 || o.eval < 1 || o.episodes < 1:
		return fmt.Errorf("-train, -eval and -episodes want at least 1")
	case o.train+o.eval > distinctTasks/10:
		return fmt.Errorf("-train and -eval want at most %d tasks together: more would repeat each other", distinctTasks/10)
	}
	if o.out != "" {
		if err := writeTasks(o, stdout); err != nil {
			return err
		}
	}
	if o.sft != "" {
		if err := writeCorpus(o, stdout); err != nil {
			return err
		}
	}
	return nil
}
