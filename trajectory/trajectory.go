// Package trajectory is the record of what every policy sampled, how it was judged and what was trained on.
//
// Rows go into five tables (Episode, Step, Verdict, LedgerRow, Annotation).
// The row structs are the one declaration of all columns: their tags give
// name, nullability and meaning, and the Arrow schema, the validator and
// docs/format-trajectory.md follow from them. A Writer refuses rows that break
// an invariant and closes into a content-addressed Arrow IPC file (a shard); a
// Reader returns all rows asked for or an error that names what is lost.
package trajectory

import (
	"errors"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/policy"
)

// The kinds of failure, wrapped with table, episode, step and column.
var (
	ErrInvalid = errors.New("row breaks an invariant of the record")
	ErrCorrupt = errors.New("shard is damaged")
	ErrForeign = errors.New("not a shard of this project")
	ErrNewer   = errors.New("shard was written by a newer version of this program: use that version to read it")
)

// Table names one of the tables; it is also the suffix of the shard's key (see Kind).
type Table string

// The tables.
const (
	Episodes    Table = "episodes"
	Steps       Table = "steps"
	Verdicts    Table = "verdicts"
	Ledger      Table = "train_ledger"
	Annotations Table = "annotations"
)

// schemaVersion is the number in the metadata key rl.schema. It rises only when
// a reader of the older number would misread; a new nullable column keeps it.
const schemaVersion = 1

// Kind is what store.ObjectKey calls a shard of the table, for example "steps.arrow".
func (t Table) Kind() string { return string(t) + ".arrow" }

// Row is a row of one of the tables.
type Row interface {
	Episode | Step | Verdict | LedgerRow | Annotation
}

// TableOf returns the table that R is a row of.
func TableOf[R Row]() Table {
	switch any(*new(R)).(type) {
	case Episode:
		return Episodes
	case Step:
		return Steps
	case Verdict:
		return Verdicts
	case LedgerRow:
		return Ledger
	default:
		return Annotations
	}
}

// Meta is the schema metadata of a shard.
type Meta struct {
	Run          string       // rl.run_id
	Writer       string       // rl.writer: name and build of the program
	Created      time.Time    // rl.created, RFC 3339
	LogprobsMode LogprobsMode // rl.logprobs_mode; empty means processed
}

// Ref points at rows of a shard: Rows of them from row Row of batch Batch on,
// going on in the following batches where one ends.
type Ref struct {
	Object policy.Digest `col:"object" doc:"digest of the shard"`
	Batch  int32         `col:"batch" doc:"record batch within the shard, from 0"`
	Row    int32         `col:"row" doc:"first row within that batch, from 0"`
	Rows   int32         `col:"rows" doc:"number of rows"`
}

// EpisodeID names one attempt of one member of a group; it sorts by group, index and, up to nine, attempt.
func EpisodeID(run string, group uint64, index, attempt int32) string {
	return fmt.Sprintf("%s/%d", lease.Member(run, group, index), attempt)
}

// GroupID names a group in the tables.
func GroupID(run string, group uint64) string { return fmt.Sprintf("%s/%012d", run, group) }
