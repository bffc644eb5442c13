package robustness

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// kind is what an operation of a history did.
type kind string

const (
	opGrant    kind = "grant"    // an episode was leased
	opSeal     kind = "seal"     // its result was handed over
	opFail     kind = "fail"     // the attempt was given back
	opJob      kind = "job"      // its verify job was leased
	opSettle   kind = "settle"   // the verdict was handed over
	opFailJob  kind = "fail job" // the job was given back
	opRegister kind = "register" // a node registered under a higher incarnation
	opRead     kind = "read"     // a linearizable read of a node's record
)

// answer is how an operation ended.
type answer string

const (
	ok      answer = "ok"
	refused answer = "refused" // fenced
	unknown answer = "unknown" // it may have happened, or may yet happen
)

// op is one operation on one key, by the clock of this process.
type op struct {
	Client  int           `json:"client"`
	Key     string        `json:"key"`
	Kind    kind          `json:"kind"`
	Attempt int32         `json:"attempt,omitempty"`
	Fence   uint64        `json:"fence,omitempty"`
	Number  uint64        `json:"number,omitempty"` // register and read: the incarnation
	Answer  answer        `json:"answer"`
	Call    time.Duration `json:"call"`   // since the history began
	Return  time.Duration `json:"return"` // the same; of an unknown one it means nothing
	Object  string        `json:"object,omitempty"`
}

// history is what the clients did and were told. It is the journal of
// acknowledgements, too: nothing of it is kept by the cluster.
type history struct {
	began time.Time

	mu    sync.Mutex // guards everything below
	ops   []op
	holds []held
	steps []commit
}

// held is a time in which a worker took itself for the holder of a lease.
type held struct {
	Key   string        `json:"key"`
	Fence uint64        `json:"fence"`
	From  time.Duration `json:"from"`
	To    time.Duration `json:"to"`
	End   string        `json:"end"`
}

// commit is a step that a trainer was told is committed.
type commit struct {
	Step     int64  `json:"step"`
	Manifest string `json:"manifest"`
	Epoch    uint64 `json:"epoch"`
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() time.Duration { return time.Since(h.began) }

func (h *history) add(o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

func (h *history) hold(x held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, x)
}

func (h *history) step(c commit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, c)
}

// save writes everything, one JSON value a line.
func (h *history) save(path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	defer f.Close()
	e := json.NewEncoder(f)
	for _, o := range h.ops {
		if err := e.Encode(o); err != nil {
			return fmt.Errorf("history: %w", err)
		}
	}
	for _, x := range h.holds {
		if err := e.Encode(map[string]held{"held": x}); err != nil {
			return fmt.Errorf("history: %w", err)
		}
	}
	for _, c := range h.steps {
		if err := e.Encode(map[string]commit{"commit": c}); err != nil {
			return fmt.Errorf("history: %w", err)
		}
	}
	return f.Close()
}
