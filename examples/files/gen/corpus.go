package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

const (
	maxTurns = 4 // of an episode, as in experiment.yaml
	// lookFirst is the share of answers given before any digit was seen that become a cat instead.
	lookFirst = 0.85
)

// turn is one message of an episode.
type turn struct {
	Role    string `json:"role"` // user, assistant or tool
	Content string `json:"content"`
}

// episode plays a random policy that knows the syntax and nothing of the goal:
// which file it reads never depends on the instruction (it is any of them, or
// one of those that ls has shown), and an answer repeats a digit it has seen.
func (w world) episode(r *rand.Rand) []turn {
	turns := []turn{{"user", w.instruction()}}
	var seen []int
	looked := false
	for n := 1; n <= maxTurns; n++ {
		action := []string{"ls", "cat", "answer", "answer"}[r.IntN(4)]
		file := r.IntN(names)
		for looked && w.digit[file] < 0 {
			file = r.IntN(names)
		}
		if action == "answer" && len(seen) == 0 && r.Float64() < lookFirst {
			action = "cat"
		}
		var say, reply string
		switch action {
		case "ls":
			say, reply, looked = "ls", w.ls(), true
		case "cat":
			say, reply = "cat "+fileName(file), w.cat(file)
			if d := w.digit[file]; d >= 0 {
				seen = append(seen, d)
			}
		default:
			d := r.IntN(10)
			if len(seen) > 0 {
				d = seen[r.IntN(len(seen))]
			}
			return append(turns, turn{"assistant", fmt.Sprintf("answer %d", d)})
		}
		turns = append(turns, turn{"assistant", say})
		if n < maxTurns { // nothing is said after the last reply
			turns = append(turns, turn{"tool", reply})
		}
	}
	return turns
}

// right reports whether an episode ends with the digit that was asked for; never when there is no such file.
func (w world) right(turns []turn) bool {
	return turns[len(turns)-1].Content == fmt.Sprintf("answer %d", w.digit[w.target])
}

// writeCorpus writes the supervised episodes, each in a world of its own.
func writeCorpus(o options, stdout io.Writer) error {
	r := rand.New(rand.NewPCG(o.seed, streamCorpus))
	tmp := o.sft + ".part"
	if err := os.MkdirAll(filepath.Dir(o.sft), 0o755); err != nil {
		return err
	}
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	defer os.Remove(tmp) // gone already when all went well
	defer f.Close()
	b := bufio.NewWriter(f)
	enc := json.NewEncoder(b)
	right := 0
	for range o.episodes {
		w := drawWorld(r)
		// In a task the file asked for is always there, so that a policy that reads
		// only what is there would read it more often than others: a hint at the
		// goal. Here the instruction names any file, whether it is there or not.
		w.target = r.IntN(names)
		turns := w.episode(r)
		if w.right(turns) {
			right++
		}
		if err := enc.Encode(struct {
			Turns []turn `json:"turns"`
		}{turns}); err != nil {
			return err
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, o.sft); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d episodes of a random policy, %.0f %% of them right by chance\n", o.sft, o.episodes, 100*float64(right)/float64(o.episodes))
	return nil
}
