package trajectory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
)

// Kinds of acknowledgement.
const (
	ackSealed    = "sealed"
	ackSettled   = "settled"
	ackCommitted = "committed"
)

// ack is one line of the journal: something a worker was told is safe.
type ack struct {
	Kind     string          `json:"kind"`
	Run      string          `json:"run"`
	Group    uint64          `json:"group,omitempty"`
	Index    int32           `json:"index,omitempty"`
	Attempt  int32           `json:"attempt,omitempty"`
	Steps    policy.Digest   `json:"steps,omitempty"`   // sealed: shard of the messages
	Verdict  outcome.Verdict `json:"verdict,omitempty"` // settled
	Row      policy.Digest   `json:"row,omitempty"`     // settled: shard of the verdict row
	Step     int64           `json:"step,omitempty"`
	Manifest policy.Digest   `json:"manifest,omitempty"`
	Ledger   policy.Digest   `json:"ledger,omitempty"`
	At       time.Time       `json:"at"`
}

func (a ack) where() string {
	if a.Kind == ackCommitted {
		return fmt.Sprintf("step %d", a.Step)
	}
	return EpisodeID(a.Run, a.Group, a.Index, a.Attempt)
}

// AckJournal writes down what workers were told is safe, outside the data
// directory, so that Verify can hold the record against it. Several processes
// may append to one file. A nil journal writes nothing.
type AckJournal struct{ f *os.File }

// NewAckJournal opens the journal at path for appending; an empty path gives a nil journal.
func NewAckJournal(path string) (*AckJournal, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("trajectory: open acknowledgement journal: %w", err)
	}
	return &AckJournal{f: f}, nil
}

// Sealed notes that the seal of an episode was acknowledged.
func (j *AckJournal) Sealed(run string, group uint64, index, attempt int32, steps policy.Digest) error {
	return j.append(ack{Kind: ackSealed, Run: run, Group: group, Index: index, Attempt: attempt, Steps: steps})
}

// Settled notes that a verdict was acknowledged; row is the shard of its row.
func (j *AckJournal) Settled(run string, group uint64, index, attempt int32, verdict outcome.Verdict, row policy.Digest) error {
	return j.append(ack{Kind: ackSettled, Run: run, Group: group, Index: index, Attempt: attempt, Verdict: verdict, Row: row})
}

// Committed notes that the commit of a step was acknowledged.
func (j *AckJournal) Committed(run string, step int64, manifest, ledger policy.Digest) error {
	return j.append(ack{Kind: ackCommitted, Run: run, Step: step, Manifest: manifest, Ledger: ledger})
}

// append writes one line with one write, so that lines of several processes never mix and a kill cuts none.
func (j *AckJournal) append(a ack) error {
	if j == nil {
		return nil
	}
	a.At = time.Now().UTC()
	line, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("trajectory: acknowledgement: %w", err)
	}
	if _, err := j.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("trajectory: acknowledgement: %w", err)
	}
	return nil
}

// Close closes the file.
func (j *AckJournal) Close() error {
	if j == nil {
		return nil
	}
	if err := j.f.Close(); err != nil {
		return fmt.Errorf("trajectory: close acknowledgement journal: %w", err)
	}
	return nil
}

// readAcks returns the lines of a journal and what it could not read of it.
func readAcks(path string) (acks []ack, bad []string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("trajectory: read acknowledgement journal: %w", err)
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		var a ack
		if err := json.Unmarshal(line, &a); err != nil {
			bad = append(bad, fmt.Sprintf("line %d: %v", n, err))
			continue
		}
		acks = append(acks, a)
	}
	return acks, bad, nil
}
