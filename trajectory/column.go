package trajectory

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/rlfleet/rlfleet/policy"
)

// Column is one declared column, or a field within one.
type Column struct {
	Name   string
	Type   string   // Arrow type; list<…> and struct spell out what is below
	Null   bool     // for a list: null is "not captured", empty is "captured and empty"
	Enum   []string // complete and in its fixed order; nil unless the type is dictionary<int8,utf8>
	Doc    string
	Fields []Column // of a struct, or of the struct that a list holds
}

// Columns returns the declaration of a table, in its order.
func Columns(t Table) []Column {
	nodes := columnsOf(rowType(t))
	out := make([]Column, len(nodes))
	for i, n := range nodes {
		out[i] = n.describe()
	}
	return out
}

func rowType(t Table) reflect.Type {
	switch t {
	case Episodes:
		return reflect.TypeFor[Episode]()
	case Steps:
		return reflect.TypeFor[Step]()
	case Verdicts:
		return reflect.TypeFor[Verdict]()
	case Ledger:
		return reflect.TypeFor[LedgerRow]()
	default:
		return reflect.TypeFor[Annotation]()
	}
}

// kind is how a Go type is stored.
type kind int

const (
	kindString    kind = iota // utf8
	kindDigest                // utf8, sha256:<hex>; "" is null
	kindEnum                  // dictionary<int8,utf8>; "" is null
	kindBool                  //
	kindInt8                  //
	kindInt32                 //
	kindInt64                 // also durations, in nanoseconds, and versions
	kindFloat32               //
	kindFloat64               //
	kindTimestamp             // microseconds, UTC
	kindHash                  // fixed_size_binary[16]
	kindList                  //
	kindStruct                //
)

// node is a column with what is needed to move it between Go and Arrow.
type node struct {
	name, doc string
	null      bool
	pointer   bool // nil is null
	kind      kind
	field     int          // index in the Go struct
	typ       reflect.Type // without the pointer
	enum      []string
	fields    []*node // of a struct
	item      *node   // of a list

	logical  arrow.DataType // as stored
	physical arrow.DataType // as built: enumerations are still their indices
}

var columnCache sync.Map // reflect.Type → []*node

// columnsOf derives the columns of a row struct from its tags.
func columnsOf(t reflect.Type) []*node {
	if c, ok := columnCache.Load(t); ok {
		return c.([]*node)
	}
	out := make([]*node, t.NumField())
	for i := range out {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("col"), ",")
		n := &node{name: name, doc: f.Tag.Get("doc"), null: opts == "null", field: i}
		n.resolve(f.Type)
		out[i] = n
	}
	c, _ := columnCache.LoadOrStore(t, out)
	return c.([]*node)
}

func (n *node) resolve(t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		n.pointer = true
		t = t.Elem()
	}
	n.typ = t
	if e, ok := enums[t]; ok {
		n.kind, n.enum = kindEnum, e
		n.physical = arrow.PrimitiveTypes.Int8
		n.logical = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
		return
	}
	switch {
	case t == reflect.TypeFor[policy.Digest]():
		n.kind, n.physical = kindDigest, arrow.BinaryTypes.String
	case t == reflect.TypeFor[time.Time]():
		n.kind, n.physical = kindTimestamp, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
	case t.Kind() == reflect.Array:
		n.kind, n.physical = kindHash, &arrow.FixedSizeBinaryType{ByteWidth: t.Len()}
	case t.Kind() == reflect.Slice:
		n.kind = kindList
		n.item = &node{}
		n.item.resolve(t.Elem())
		n.physical = arrow.ListOfNonNullable(n.item.physical)
		n.logical = arrow.ListOfNonNullable(n.item.logical)
		return
	case t.Kind() == reflect.Struct:
		n.kind, n.fields = kindStruct, columnsOf(t)
		n.physical, n.logical = arrow.StructOf(fieldsOf(n.fields, false)...), arrow.StructOf(fieldsOf(n.fields, true)...)
		return
	default:
		n.kind, n.physical = scalar(t.Kind())
	}
	n.logical = n.physical
}

func scalar(k reflect.Kind) (kind, arrow.DataType) {
	switch k {
	case reflect.Bool:
		return kindBool, arrow.FixedWidthTypes.Boolean
	case reflect.Int8:
		return kindInt8, arrow.PrimitiveTypes.Int8
	case reflect.Int32:
		return kindInt32, arrow.PrimitiveTypes.Int32
	case reflect.Int64:
		return kindInt64, arrow.PrimitiveTypes.Int64
	case reflect.Float32:
		return kindFloat32, arrow.PrimitiveTypes.Float32
	case reflect.Float64:
		return kindFloat64, arrow.PrimitiveTypes.Float64
	default:
		return kindString, arrow.BinaryTypes.String
	}
}

func fieldsOf(nodes []*node, logical bool) []arrow.Field {
	out := make([]arrow.Field, len(nodes))
	for i, n := range nodes {
		out[i] = arrow.Field{Name: n.name, Type: n.physical, Nullable: n.null}
		if logical {
			out[i].Type = n.logical
		}
	}
	return out
}

func (n *node) describe() Column {
	c := Column{Name: n.name, Type: n.typeName(), Null: n.null, Enum: n.enum, Doc: n.doc}
	s := n
	if n.kind == kindList {
		s = n.item
		c.Enum = s.enum
	}
	for _, f := range s.fields {
		c.Fields = append(c.Fields, f.describe())
	}
	return c
}

func (n *node) typeName() string {
	switch n.kind {
	case kindEnum:
		return "dictionary<int8,utf8>"
	case kindTimestamp:
		return "timestamp[us,UTC]"
	case kindList:
		return "list<" + n.item.typeName() + ">"
	case kindStruct:
		return "struct"
	case kindHash:
		return fmt.Sprintf("fixed_size_binary[%d]", n.typ.Len())
	default:
		return n.physical.Name()
	}
}
