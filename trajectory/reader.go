package trajectory

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// CorruptError is an ErrCorrupt that names what can't be read any more.
type CorruptError struct {
	Table    Table
	Object   policy.Digest
	Why      string
	Episodes []string // of the shard, as far as the damage left its index readable
}

// Error says what is damaged, how, and which episodes are lost.
func (e *CorruptError) Error() string {
	lost := "which episodes it held cannot be told from it"
	if n := len(e.Episodes); n > 0 {
		names := e.Episodes
		more := ""
		if n > 5 {
			names, more = names[:5], fmt.Sprintf(" and %d more", n-5)
		}
		lost = fmt.Sprintf("lost: the rows of %s%s", strings.Join(names, ", "), more)
	}
	return fmt.Sprintf("trajectory: %s shard %s is damaged (%s); %s", e.Table, e.Object, e.Why, lost)
}

// Is makes a CorruptError an ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Reader reads one shard. It is not safe for concurrent use.
type Reader[R Row] struct {
	table   Table
	object  policy.Digest
	head    header
	columns []*node
	file    *ipc.FileReader

	batch  int // the one decoded, −1 for none
	gets   []getter
	record arrow.RecordBatch
}

// Open checks a shard against the digest it was committed under and opens it.
// It returns a CorruptError for a shard that was cut or changed, ErrForeign for
// something else than a shard of the table, and ErrNewer for one that this build is too old for.
func Open[R Row](data []byte, object policy.Digest) (r *Reader[R], err error) {
	r = &Reader[R]{table: TableOf[R](), object: object, columns: columnsOf(reflect.TypeFor[R]()), batch: -1}
	if err := object.Validate(); err != nil {
		return nil, fmt.Errorf("trajectory: open %s: %w", r.table, err)
	}
	if got := policy.DigestOf(data); got != object {
		r.head = salvage(data)
		return nil, r.corrupt("its %d bytes are %s", len(data), got)
	}
	defer r.rescue(&err)
	r.file, err = ipc.NewFileReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("trajectory: open %s %s: %w (%w)", r.table, object, ErrForeign, err)
	}
	r.head, err = parseHeader(r.file.Schema().Metadata())
	switch {
	case err != nil:
		return nil, fmt.Errorf("trajectory: open %s %s: %w", r.table, object, err)
	case r.head.table != r.table:
		return nil, fmt.Errorf("trajectory: open %s %s: it holds %s: %w", r.table, object, r.head.table, ErrForeign)
	case r.head.version > schemaVersion:
		return nil, fmt.Errorf("trajectory: open %s %s: schema %s/%d, this program reads up to %s/%d: %w",
			r.table, object, r.table, r.head.version, r.table, schemaVersion, ErrNewer)
	}
	return r, nil
}

// Load fetches a shard from the store and opens it.
func Load[R Row](ctx context.Context, s store.ObjectStore, run string, object policy.Digest) (*Reader[R], error) {
	table := TableOf[R]()
	if err := object.Validate(); err != nil {
		return nil, fmt.Errorf("trajectory: load %s: %w", table, err)
	}
	data, err := s.Get(ctx, store.ObjectKey(run, object, table.Kind()))
	if err != nil {
		return nil, fmt.Errorf("trajectory: load %s %s: %w", table, object, err)
	}
	return Open[R](data, object)
}

// salvage reads the index of a damaged shard, which is at its front.
func salvage(data []byte) (h header) {
	defer func() {
		if recover() != nil { // decoding damaged bytes; nothing is known then
			h = header{}
		}
	}()
	const magic = 8 // ARROW1 and two bytes of padding before the schema message
	if len(data) < magic {
		return header{}
	}
	s, err := ipc.NewReader(bytes.NewReader(data[magic:]))
	if err != nil {
		return header{}
	}
	h, err = parseHeader(s.Schema().Metadata())
	if err != nil {
		return header{}
	}
	return h
}

func (r *Reader[R]) corrupt(format string, args ...any) error {
	return &CorruptError{Table: r.table, Object: r.object, Why: fmt.Sprintf(format, args...), Episodes: r.head.episodes}
}

// rescue turns a panic of the decoder on malformed bytes into an error: the
// digest was right, so that whoever wrote the shard wrote it damaged.
func (r *Reader[R]) rescue(err *error) {
	if p := recover(); p != nil {
		*err = r.corrupt("decoding failed: %v", p)
	}
}

// Meta returns the shard's metadata.
func (r *Reader[R]) Meta() Meta { return r.head.meta }

// Object returns the digest it was opened under.
func (r *Reader[R]) Object() policy.Digest { return r.object }

// EpisodeIDs returns the episodes of the shard's index, in order.
func (r *Reader[R]) EpisodeIDs() []string { return slices.Clone(r.head.episodes) }

// Rows yields all rows. An error ends the sequence; rows that are missing against the shard's index are an error too.
func (r *Reader[R]) Rows() iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		var zero R
		n := 0
		for b := range r.file.NumRecords() {
			rows, err := r.load(b)
			if err != nil {
				yield(zero, err)
				return
			}
			for i := range rows {
				row, err := r.row(i)
				if !yield(row, err) || err != nil {
					return
				}
			}
			n += rows
		}
		if n != r.head.rows {
			yield(zero, r.corrupt("it has %d of %d rows", n, r.head.rows))
		}
	}
}

// All returns all rows.
func (r *Reader[R]) All() ([]R, error) {
	out := make([]R, 0, r.head.rows)
	for row, err := range r.Rows() {
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, nil
}

// Read returns exactly the rows of a reference and decodes no other batches.
func (r *Reader[R]) Read(ref Ref) ([]R, error) {
	if ref.Object != r.object {
		return nil, fmt.Errorf("trajectory: read %s: reference to %s, this is %s: %w", r.table, ref.Object, r.object, ErrInvalid)
	}
	if ref.Batch < 0 || ref.Row < 0 || ref.Rows < 0 {
		return nil, fmt.Errorf("trajectory: read %s: reference %+v is negative: %w", r.table, ref, ErrInvalid)
	}
	out := make([]R, 0, ref.Rows)
	at := int(ref.Row)
	for b := int(ref.Batch); len(out) < int(ref.Rows); b, at = b+1, 0 {
		if b >= r.file.NumRecords() {
			return nil, r.corrupt("a reference names rows past its end: batch %d row %d, %d rows", ref.Batch, ref.Row, ref.Rows)
		}
		rows, err := r.load(b)
		if err != nil {
			return nil, err
		}
		for i := at; i < rows && len(out) < int(ref.Rows); i++ {
			row, err := r.row(i)
			if err != nil {
				return nil, err
			}
			out = append(out, row)
		}
	}
	return out, nil
}

// load decodes batch b, unless it is the one at hand, and returns its rows.
func (r *Reader[R]) load(b int) (rows int, err error) {
	if r.batch == b {
		return int(r.record.NumRows()), nil
	}
	defer r.rescue(&err)
	rec, err := r.file.RecordBatch(b)
	if err != nil {
		return 0, r.corrupt("batch %d: %v", b, err)
	}
	r.batch, r.record = -1, rec
	r.gets, err = openFields(r.columns, rec.Schema().Fields(), rec.Column)
	if err != nil {
		return 0, r.corrupt("batch %d: %v", b, err)
	}
	r.batch = b
	return int(rec.NumRows()), nil
}

func (r *Reader[R]) row(i int) (row R, err error) {
	defer r.rescue(&err)
	v := reflect.ValueOf(&row).Elem()
	for k, n := range r.columns {
		if r.gets[k] != nil {
			r.gets[k](i, v.Field(n.field))
		}
	}
	return row, nil
}

// ReadOne returns the single row of a reference.
func ReadOne[R Row](ctx context.Context, s store.ObjectStore, run string, ref Ref) (R, error) {
	r, err := Load[R](ctx, s, run, ref.Object)
	if err != nil {
		return *new(R), err
	}
	return one(r.Read(ref))
}
