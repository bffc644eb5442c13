package tiny_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// task is a small environment in memory: no sandbox, the same tokens.
type task interface {
	prompt() string
	// reply answers an action; done ends the episode, reward is then 0 or 1.
	reply(action string) (observation string, done bool, reward float64)
	turns() int
}

// words is the vocabulary of both tasks.
const words = "read ls cat answer err find F0 F1 F2 F3 F4 F5 F6 F7 D0 D1 D2 D3 D4 D5 D6 D7 D8 D9"

// bandit shows a digit and wants it back: one turn.
type bandit struct{ digit int }

func (b bandit) prompt() string { return fmt.Sprint("read D", b.digit) }
func (bandit) turns() int       { return 1 }

func (b bandit) reply(action string) (string, bool, float64) {
	if action == fmt.Sprint("answer D", b.digit) {
		return "", true, 1
	}
	return "", true, 0
}

// read has four files of one digit each and asks for one of them.
type read struct {
	digits [4]int
	target int
}

func (r read) prompt() string { return fmt.Sprint("read F", r.target) }
func (read) turns() int       { return 4 }

func (r read) reply(action string) (string, bool, float64) {
	f := strings.Fields(action)
	switch {
	case len(f) == 1 && f[0] == "ls":
		return "F0 F1 F2 F3", false, 0
	case len(f) == 2 && f[0] == "cat":
		for i, d := range r.digits {
			if f[1] == fmt.Sprint("F", i) {
				return fmt.Sprint("D", d), false, 0
			}
		}
	case len(f) == 2 && f[0] == "answer":
		if f[1] == fmt.Sprint("D", r.digits[r.target]) {
			return "", true, 1
		}
		return "", true, 0
	}
	return "err", false, 0
}

func newBandit(rng *rand.Rand) task { return bandit{rng.IntN(4)} }

func newRead(rng *rand.Rand) task {
	r := read{target: rng.IntN(4)}
	for i := range r.digits {
		r.digits[i] = rng.IntN(10)
	}
	return r
}

// banditCorpus holds the syntax with random answers.
func banditCorpus(rng *rand.Rand, n int) []model.Episode {
	out := make([]model.Episode, n)
	for i := range out {
		out[i].Turns = []model.Turn{
			{Role: "user", Content: newBandit(rng).prompt()},
			{Role: "assistant", Content: fmt.Sprint("answer D", rng.IntN(4))},
		}
	}
	return out
}

// readCorpus is a scripted policy that never looks at the target: valid syntax,
// any file, and answers that repeat some digit it has seen. It never answers before
// it has seen one: with a few blind answers among the demonstrations, one seed in
// eight settled on guessing for one of the files and stayed at 0.75.
func readCorpus(rng *rand.Rand, n int) []model.Episode {
	out := make([]model.Episode, n)
	for i := range out {
		t := newRead(rng)
		turns := []model.Turn{{Role: "user", Content: t.prompt()}}
		var seen []string
		for range t.turns() {
			var action string
			switch p := rng.Float64(); {
			case p < 0.2:
				action = "ls"
			case p < 0.6 || len(seen) == 0:
				action = fmt.Sprint("cat F", rng.IntN(4))
			default:
				action = "answer " + seen[rng.IntN(len(seen))]
			}
			turns = append(turns, model.Turn{Role: "assistant", Content: action})
			obs, done, _ := t.reply(action)
			if done {
				break
			}
			if strings.HasPrefix(action, "cat") {
				seen = append(seen, obs)
			}
			turns = append(turns, model.Turn{Role: "tool", Content: obs})
		}
		out[i].Turns = turns
	}
	return out
}
