package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/tbevents"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trainer"
)

// Where a StepLog keeps its files, within its directory.
const (
	StepsFile      = "steps.jsonl"
	TensorBoardDir = "tb"
)

// Names of what the caller of Append measures; other names are allowed and come after these.
const (
	Live              = "live"                // version that the engines serve
	EpisodesPerSecond = "episodes_per_second" // settled
	TokensPerSecond   = "tokens_per_second"   // sampled
	Sandboxes         = "sandboxes"           // leased
	Episodes          = "episodes"            // settled since the start of the run
	Passed            = "passed"              // of them
	Failed            = "failed"              // of them
	Indeterminate     = "indeterminate"       // of them
)

var extraNames = []string{Live, EpisodesPerSecond, TokensPerSecond, Sandboxes, Episodes, Passed, Failed, Indeterminate}

// headNames open a step's line; nobody's own name replaces them.
var headNames = []string{"kind", "time", "lineage", "step", "version", "groups"}

// StepLog writes one line of JSON for each committed step and each evaluation
// to steps.jsonl, and the same values as TensorBoard events to tb/.
//
// A step's line has the keys kind ("step"), time, lineage, step, version (that
// it made), groups, then all of trainer.MetricNames, then Live and the other
// names above, then names of the caller's own in alphabetical order. An
// evaluation's line has kind ("eval"), time, suite, version, episodes, scored,
// passed, reward_mean. A value that was not measured is null, never 0.
// Step n of TensorBoard is version n: what step n trained from, and what an
// evaluation measured.
//
// It may be opened again at any time, and everything appended again: what is in
// the file is not written twice. After a rollback a step is committed again
// under a higher lineage and has a second line; the last one counts. A kill
// between the two files leaves a point twice in TensorBoard, with one value.
// It is not safe for concurrent use.
type StepLog struct {
	dir   string
	f     *os.File
	tb    *tbevents.Writer // made by the first event
	steps map[int64]int64  // highest lineage written, by step
	evals map[evalKey]bool
}

type evalKey struct {
	Suite   string `json:"suite"`
	Version int64  `json:"version"`
}

// OpenStepLog opens or makes the log in dir, and cuts off a last line that a kill left half-written.
func OpenStepLog(dir string) (*StepLog, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("progress: open step log: %w", err)
	}
	l := &StepLog{dir: dir, steps: map[int64]int64{}, evals: map[evalKey]bool{}}
	path := filepath.Join(dir, StepsFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("progress: open step log: %w", err)
	}
	good, err := l.read(data)
	if err != nil {
		return nil, fmt.Errorf("progress: open step log: %s: %w", path, err)
	}
	if l.f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
		return nil, fmt.Errorf("progress: open step log: %w", err)
	}
	if err = l.f.Truncate(int64(good)); err == nil {
		_, err = l.f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("progress: open step log: %w", err), l.f.Close())
	}
	return l, nil
}

// read remembers what is in the file, and returns the length of its whole lines.
func (l *StepLog) read(data []byte) (good int, err error) {
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if line[len(line)-1] != '\n' {
			break
		}
		var x struct {
			Kind    string `json:"kind"`
			Step    int64  `json:"step"`
			Lineage int64  `json:"lineage"`
			evalKey
		}
		if err := json.Unmarshal(line, &x); err != nil {
			return 0, fmt.Errorf("line %d cannot be read: %w; move the file away to have it written anew", n, err)
		}
		switch x.Kind {
		case "step":
			l.steps[x.Step] = max(l.steps[x.Step], x.Lineage)
		case "eval":
			l.evals[x.evalKey] = true
		}
		good += len(line)
	}
	return good, nil
}

// Append writes a committed step; others, and those that are in the log, are
// left out. extras are what the caller measured over the step.
func (l *StepLog) Append(s *raftlog.Step, extras map[string]float64) error {
	if s.State != raftlog.StepState_STEP_STATE_COMMITTED {
		return nil
	}
	if lineage, written := l.steps[s.Step]; written && lineage >= s.Lineage {
		return nil
	}
	at := time.Unix(0, s.CommittedNs).UTC()
	o := newObject("step", at)
	o.integer("lineage", s.Lineage)
	o.integer("step", s.Step)
	o.integer("version", s.Step+1)
	o.integer("groups", int64(len(s.Groups)))
	var events []tbevents.Scalar
	put := func(values map[string]float64, name, group string) {
		v, ok := values[name]
		if !ok {
			v = math.NaN()
		}
		o.number(name, v)
		events = append(events, tbevents.Scalar{Tag: group + name, Value: v})
	}
	for _, name := range trainer.MetricNames {
		put(s.Metrics, name, "train/")
	}
	for _, name := range extraNames {
		put(extras, name, "run/")
	}
	for _, name := range others(s.Metrics, slices.Concat(headNames, trainer.MetricNames, extraNames)) {
		put(s.Metrics, name, "train/")
	}
	for _, name := range others(extras, slices.Concat(headNames, trainer.MetricNames, extraNames, others(s.Metrics, nil))) {
		put(extras, name, "run/")
	}
	if err := l.write(at, s.Step, events, o); err != nil {
		return err
	}
	l.steps[s.Step] = s.Lineage
	return nil
}

// others returns the names that are not among the known ones, sorted.
func others(values map[string]float64, known []string) []string {
	var out []string
	for name := range values {
		if !slices.Contains(known, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// AppendEval writes a finished evaluation; others, and those that are in the log, are left out.
func (l *StepLog) AppendEval(e *raftlog.EvalResult, at time.Time) error {
	key := evalKey{e.Suite, e.Version}
	if !e.Done || l.evals[key] {
		return nil
	}
	reward := math.NaN()
	if e.Scored > 0 {
		reward = state.Reward(e)
	}
	o := newObject("eval", at.UTC())
	o.text("suite", e.Suite)
	o.integer("version", e.Version)
	o.integer("episodes", int64(e.Episodes))
	o.integer("scored", int64(e.Scored))
	o.integer("passed", int64(e.Passed))
	o.number(trainer.RewardMean, reward)
	events := []tbevents.Scalar{{Tag: "eval/" + e.Suite + "/" + trainer.RewardMean, Value: reward}}
	if e.Scored > 0 {
		events = append(events, tbevents.Scalar{Tag: "eval/" + e.Suite + "/pass_rate", Value: float64(e.Passed) / float64(e.Scored)})
	}
	if err := l.write(at, e.Version, events, o); err != nil {
		return err
	}
	l.evals[key] = true
	return nil
}

// write appends to both files. The line comes last: it says that all is written.
func (l *StepLog) write(at time.Time, step int64, events []tbevents.Scalar, o *object) error {
	if l.tb == nil {
		w, err := tbevents.Create(filepath.Join(l.dir, TensorBoardDir), at)
		if err != nil {
			return fmt.Errorf("progress: step log: %w", err)
		}
		l.tb = w
	}
	if err := l.tb.Write(at, step, events...); err != nil {
		return fmt.Errorf("progress: step log: %w", err)
	}
	if _, err := l.f.Write(o.line()); err != nil {
		return fmt.Errorf("progress: step log: %w", err)
	}
	return nil
}

// Close closes the files.
func (l *StepLog) Close() error {
	err := l.f.Close()
	if l.tb != nil {
		err = errors.Join(err, l.tb.Close())
	}
	if err != nil {
		return fmt.Errorf("progress: close step log: %w", err)
	}
	return nil
}

// object builds a JSON object whose keys keep their order.
type object struct{ b []byte }

func newObject(kind string, at time.Time) *object {
	o := &object{b: []byte{'{'}}
	o.text("kind", kind)
	o.text("time", at.Format(time.RFC3339Nano))
	return o
}

func (o *object) key(name string) {
	if len(o.b) > 1 {
		o.b = append(o.b, ',')
	}
	o.b = appendText(o.b, name)
	o.b = append(o.b, ':')
}

func (o *object) text(name, value string) {
	o.key(name)
	o.b = appendText(o.b, value)
}

func (o *object) integer(name string, v int64) {
	o.key(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

// number writes null for a value that is not finite.
func (o *object) number(name string, v float64) {
	o.key(name)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		o.b = append(o.b, "null"...)
		return
	}
	o.b = strconv.AppendFloat(o.b, v, 'g', -1, 64)
}

func (o *object) line() []byte { return append(o.b, '}', '\n') }

// appendText appends a JSON string; marshalling a string cannot fail.
func appendText(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...)
	}
	return append(b, q...)
}
