package trajectory

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/rlfleet/rlfleet/policy"
)

// Bounds of a record batch, in uncompressed bytes. Batches end between episodes
// once they are batchBytes long; a single episode is cut at batchLimit, well
// below what Arrow readers accept by default (256 MiB).
const (
	batchBytes = 8 << 20
	batchLimit = 64 << 20
)

// smallShard is below how many uncompressed bytes a shard is not compressed: a
// compressor costs milliseconds to set up and saves nothing on buffers of a few bytes.
const smallShard = 32 << 10

// Writer collects rows of one table and closes into a shard. It is not safe for concurrent use.
type Writer[R Row] struct {
	meta     Meta
	table    Table
	columns  []*node
	builders []array.Builder
	puts     []appender
	soft     int // batchBytes
	hard     int // batchLimit

	batches [][]arrow.Array
	pending int // rows in the builders
	bytes   int // of them, about
	rows    int
	refs    []ShardRef

	tree tree // of the episode being written; steps only
	seen map[string]struct{}
	done bool
}

// ShardRef says where an episode's rows are; its Object is filled in.
type ShardRef struct {
	Episode string
	Ref     Ref
}

// Shard is a closed, immutable object, to be stored under its digest with Table.Kind.
type Shard struct {
	Table  Table
	Digest policy.Digest
	Data   []byte
	Rows   int
	Refs   []ShardRef // in the order written; for Steps one for each episode, else one for each row
}

// NewWriter returns a writer of an empty shard.
func NewWriter[R Row](meta Meta) *Writer[R] {
	if meta.LogprobsMode == "" {
		meta.LogprobsMode = ProcessedLogprobs
	}
	w := &Writer[R]{meta: meta, table: TableOf[R](), columns: columnsOf(reflect.TypeFor[R]()), seen: map[string]struct{}{}, soft: batchBytes, hard: batchLimit}
	for _, n := range w.columns {
		b := array.NewBuilder(memory.DefaultAllocator, n.physical)
		w.builders = append(w.builders, b)
		w.puts = append(w.puts, n.bind(b))
	}
	return w
}

// Rows returns how many rows were appended.
func (w *Writer[R]) Rows() int { return w.rows }

// Bytes returns about how many uncompressed bytes were appended.
func (w *Writer[R]) Bytes() int {
	n := w.bytes
	for _, b := range w.batches {
		for _, a := range b {
			n += int(a.Data().SizeInBytes())
		}
	}
	return n
}

// Append adds a row, or changes nothing and returns ErrInvalid with table,
// episode, step and column when the row breaks a rule. Rows of an episode's
// steps come one after the other, in order. What is behind the row's pointers
// and slices may be changed afterwards.
func (w *Writer[R]) Append(row R) error {
	if w.done {
		return errors.New("trajectory: append: the writer is closed")
	}
	f := fault{table: w.table, step: -1}
	check(&row, &f)
	step, isStep := any(&row).(*Step)
	t := &w.tree
	if isStep && step.EpisodeID != t.episode {
		_, back := w.seen[step.EpisodeID]
		f.require(!back, "episode_id", "its rows are not contiguous")
		t = &tree{episode: step.EpisodeID}
	}
	if isStep {
		t.look(step, &f)
	}
	checkColumns(&row, &f)
	if f.err != nil {
		return f.err
	}
	if isStep {
		t.add(step, &f)
		w.tree = *t
	}
	w.put(&row, f.episode)
	return nil
}

// appendEpisode appends all messages of a new episode, or none.
func appendEpisode(w *Writer[Step], steps []Step) error {
	if w.done {
		return errors.New("trajectory: append: the writer is closed")
	}
	if err := CheckSteps(steps); err != nil {
		return err
	}
	id := steps[0].EpisodeID
	f := fault{table: Steps, episode: id, step: -1}
	_, again := w.seen[id]
	f.require(!again, "episode_id", "it was recorded before")
	for i := range steps {
		f.step = int32(i)
		checkColumns(&steps[i], &f)
	}
	if f.err != nil {
		return f.err
	}
	w.tree = tree{} // a Step appended later can't go on with this episode
	for i := range steps {
		w.put(&steps[i], id)
	}
	return nil
}

func (w *Writer[R]) put(row *R, episode string) {
	_, again := w.seen[episode]
	same := again && w.table == Steps // further rows of an episode
	if w.bytes >= w.hard || (w.bytes >= w.soft && !same) {
		w.flush()
	}
	if same {
		w.refs[len(w.refs)-1].Ref.Rows++
	} else {
		w.refs = append(w.refs, ShardRef{Episode: episode, Ref: Ref{Batch: int32(len(w.batches)), Row: int32(w.pending), Rows: 1}})
		w.seen[episode] = struct{}{}
	}
	v := reflect.ValueOf(row).Elem()
	for i, n := range w.columns {
		w.puts[i](v.Field(n.field))
	}
	w.pending++
	w.rows++
	w.bytes += size(row)
}

func (w *Writer[R]) flush() {
	if w.pending == 0 {
		return
	}
	batch := make([]arrow.Array, len(w.columns))
	for i, n := range w.columns {
		batch[i] = array.MakeFromData(n.relabel(w.builders[i].NewArray().Data()))
	}
	w.batches = append(w.batches, batch)
	w.pending, w.bytes = 0, 0
}

// Close encodes the shard. Equal rows and metadata give equal bytes.
func (w *Writer[R]) Close() (Shard, error) {
	if w.done {
		return Shard{}, errors.New("trajectory: close: the writer is closed")
	}
	w.done = true
	w.flush()
	schema := arrow.NewSchema(fieldsOf(w.columns, true), w.metadata())
	var buf bytes.Buffer
	opts := []ipc.Option{ipc.WithSchema(schema)}
	if w.Bytes() >= smallShard {
		opts = append(opts, ipc.WithZstd(), ipc.WithCompressConcurrency(1))
	}
	fw, err := ipc.NewFileWriter(&buf, opts...)
	if err != nil {
		return Shard{}, fmt.Errorf("trajectory: close %s: %w", w.table, err)
	}
	for _, b := range w.batches {
		rec := array.NewRecordBatch(schema, b, int64(b[0].Len()))
		if err := fw.Write(rec); err != nil {
			return Shard{}, errors.Join(fmt.Errorf("trajectory: close %s: %w", w.table, err), fw.Close())
		}
	}
	if err := fw.Close(); err != nil {
		return Shard{}, fmt.Errorf("trajectory: close %s: %w", w.table, err)
	}
	s := Shard{Table: w.table, Digest: policy.DigestOf(buf.Bytes()), Data: buf.Bytes(), Rows: w.rows, Refs: w.refs}
	for i := range s.Refs {
		s.Refs[i].Ref.Object = s.Digest
	}
	w.batches = nil
	return s, nil
}

// check calls the rules of the row's own type.
func check[R Row](row *R, f *fault) {
	any(row).(interface{ check(*fault) }).check(f)
}

// checkColumns applies the rules of all columns' types.
func checkColumns[R Row](row *R, f *fault) {
	v := reflect.ValueOf(row).Elem()
	for _, n := range columnsOf(v.Type()) {
		n.checkValue(v.Field(n.field), n.name, f)
	}
}

// checkRow applies all rules of a single row.
func checkRow[R Row](row *R) error {
	f := fault{table: TableOf[R](), step: -1}
	check(row, &f)
	checkColumns(row, &f)
	return f.err
}

// size is about how many bytes a row takes uncompressed.
func size[R Row](row *R) int {
	const fixed = 1 << 10 // all scalar columns, ids and digests
	switch r := any(row).(type) {
	case *Step:
		n := fixed + len(r.MessageJSON) + 8*len(r.TokenIDs) + 4*len(r.Logprobs) + 64*len(r.PolicySpans)
		for _, s := range []*string{r.Content, r.Reasoning, r.ExtraJSON} {
			if s != nil {
				n += len(*s)
			}
		}
		for _, c := range r.ToolCalls {
			n += len(c.Arguments)
		}
		return n
	case *Verdict:
		n := fixed + 128*(len(r.Checks)+len(r.RewardComponents))
		for _, e := range r.Evidence {
			n += 256
			if e.Excerpt != nil {
				n += len(*e.Excerpt)
			}
		}
		return n
	case *Annotation:
		return fixed + 4*(len(r.TrainerLogprobs)+len(r.Entropy)+len(r.Advantages)+len(r.Values)+len(r.Returns)+len(r.ISWeight)+len(r.RefLogprobs)) + len(r.MaskCode)
	default:
		return fixed
	}
}
