package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// A sandbox holds kept of the names F0 to F7, each with one digit.
const (
	names = 8
	kept  = 4
)

// distinctTasks is how many different tasks there are: which names, which digits, which target.
const distinctTasks = 70 * 10000 * kept

// Streams of random numbers; each draws from its own.
const (
	streamTrain uint64 = iota + 1
	streamEval
	streamCorpus
	streamTrainLatency
	streamEvalLatency
)

// world is the content of one sandbox and what is asked about it.
type world struct {
	digit  [names]int // −1: no such file
	target int        // one of the files that are there
}

func drawWorld(r *rand.Rand) world {
	var w world
	for i := range w.digit {
		w.digit[i] = -1
	}
	there := r.Perm(names)[:kept]
	for _, i := range there {
		w.digit[i] = r.IntN(10)
	}
	w.target = there[r.IntN(kept)]
	return w
}

// draw returns n worlds that are not in seen, and adds them.
func draw(seed, stream uint64, n int, seen map[world]bool) []world {
	r := rand.New(rand.NewPCG(seed, stream))
	out := make([]world, 0, n)
	for len(out) < n {
		if w := drawWorld(r); !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}

func fileName(i int) string { return fmt.Sprintf("F%d", i) }

// instruction is what the agent is told.
func (w world) instruction() string { return "read " + fileName(w.target) }

// ls is what ls prints in the sandbox, without the last newline.
func (w world) ls() string {
	var out []string
	for i, d := range w.digit {
		if d >= 0 {
			out = append(out, fileName(i))
		}
	}
	return strings.Join(out, "\n")
}

// cat is what cat prints for file i, without the last newline.
func (w world) cat(i int) string {
	if w.digit[i] < 0 {
		return "cat: " + fileName(i) + ": No such file or directory"
	}
	return fmt.Sprint(w.digit[i])
}
