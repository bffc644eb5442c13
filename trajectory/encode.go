package trajectory

import (
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// appender adds one Go value to a column; the value was checked before.
type appender func(v reflect.Value)

// bind returns the appender of a column onto its builder.
func (n *node) bind(b array.Builder) appender {
	put := n.bindValue(b)
	switch {
	case n.pointer:
		return func(v reflect.Value) {
			if v.IsNil() {
				appendNull(b)
				return
			}
			put(v.Elem())
		}
	case n.null && (n.kind == kindEnum || n.kind == kindDigest):
		return func(v reflect.Value) {
			if v.Len() == 0 {
				b.AppendNull()
				return
			}
			put(v)
		}
	case n.null && n.kind == kindList:
		return func(v reflect.Value) {
			if v.IsNil() {
				b.AppendNull()
				return
			}
			put(v)
		}
	}
	return put
}

// appendNull adds a null; below a null struct it leaves empty values and not
// nulls, because the fields there are declared non-nullable.
func appendNull(b array.Builder) {
	s, ok := b.(*array.StructBuilder)
	if !ok {
		b.AppendNull()
		return
	}
	s.AppendValues([]bool{false}) // Append(false) would add the nulls below
	for i := range s.NumField() {
		s.FieldBuilder(i).AppendEmptyValue()
	}
}

func (n *node) bindValue(b array.Builder) appender {
	switch n.kind {
	case kindEnum:
		index := make(map[string]int8, len(n.enum))
		for i, e := range n.enum {
			index[e] = int8(i)
		}
		eb := b.(*array.Int8Builder)
		return func(v reflect.Value) { eb.Append(index[v.String()]) }
	case kindList:
		return n.bindList(b.(*array.ListBuilder))
	case kindStruct:
		sb := b.(*array.StructBuilder)
		puts := make([]appender, len(n.fields))
		for i, f := range n.fields {
			puts[i] = f.bind(sb.FieldBuilder(i))
		}
		return func(v reflect.Value) {
			sb.Append(true)
			for i, f := range n.fields {
				puts[i](v.Field(f.field))
			}
		}
	default:
		return n.bindScalar(b)
	}
}

func (n *node) bindScalar(b array.Builder) appender {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		return func(v reflect.Value) { b.Append(v.Bool()) }
	case *array.Int8Builder:
		return func(v reflect.Value) { b.Append(int8(v.Int())) }
	case *array.Int32Builder:
		return func(v reflect.Value) { b.Append(int32(v.Int())) }
	case *array.Int64Builder:
		return func(v reflect.Value) { b.Append(v.Int()) }
	case *array.Float32Builder:
		return func(v reflect.Value) { b.Append(float32(v.Float())) }
	case *array.Float64Builder:
		return func(v reflect.Value) { b.Append(v.Float()) }
	case *array.TimestampBuilder:
		return func(v reflect.Value) {
			b.Append(arrow.Timestamp(v.Addr().Interface().(*time.Time).UnixMicro()))
		}
	case *array.FixedSizeBinaryBuilder:
		return func(v reflect.Value) { b.Append(v.Slice(0, v.Len()).Bytes()) }
	default:
		sb := b.(*array.StringBuilder)
		return func(v reflect.Value) { sb.Append(text(v.String())) }
	}
}

// bindList appends the numeric lists, which hold nearly all of the bytes, at once.
func (n *node) bindList(b *array.ListBuilder) appender {
	switch items := b.ValueBuilder().(type) {
	case *array.Int32Builder:
		return func(v reflect.Value) {
			b.Append(true)
			items.AppendValues(*v.Addr().Interface().(*[]int32), nil)
		}
	case *array.Float32Builder:
		return func(v reflect.Value) {
			b.Append(true)
			items.AppendValues(*v.Addr().Interface().(*[]float32), nil)
		}
	case *array.BooleanBuilder:
		return func(v reflect.Value) {
			b.Append(true)
			items.AppendValues(*v.Addr().Interface().(*[]bool), nil)
		}
	}
	put := n.item.bind(b.ValueBuilder())
	return func(v reflect.Value) {
		b.Append(true)
		for i := range v.Len() {
			put(v.Index(i))
		}
	}
}

// text is s as Arrow may hold it: bytes that are not UTF-8, such as a tool's
// binary output, become U+FFFD. Text is a view; token ids are what is exact.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// dictionaries holds one array for each enumeration, shared by all columns and
// batches, so that every batch has the same complete dictionary.
var dictionaries = func() map[reflect.Type]*array.Data {
	out := make(map[reflect.Type]*array.Data, len(enums))
	for t, values := range enums {
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.AppendValues(values, nil)
		out[t] = b.NewArray().Data().(*array.Data)
	}
	return out
}()

// relabel turns built data into stored data: indices get their dictionaries.
func (n *node) relabel(d arrow.ArrayData) arrow.ArrayData {
	switch n.kind {
	case kindEnum:
		return array.NewDataWithDictionary(n.logical, d.Len(), d.Buffers(), d.NullN(), d.Offset(), dictionaries[n.typ])
	case kindList:
		child := n.item.relabel(d.Children()[0])
		return array.NewData(n.logical, d.Len(), d.Buffers(), []arrow.ArrayData{child}, d.NullN(), d.Offset())
	case kindStruct:
		children := make([]arrow.ArrayData, len(n.fields))
		for i, f := range n.fields {
			children[i] = f.relabel(d.Children()[i])
		}
		return array.NewData(n.logical, d.Len(), d.Buffers(), children, d.NullN(), d.Offset())
	default:
		return d
	}
}
