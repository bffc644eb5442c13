package trajectory

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// getter sets dst to row i of a column.
type getter func(i int, dst reflect.Value)

// open returns the getter of a stored column, or an error when its type is not the declared one.
func (n *node) open(a arrow.Array) (getter, error) {
	get, err := n.openValue(a)
	if err != nil {
		return nil, err
	}
	if n.pointer {
		value := get
		get = func(i int, dst reflect.Value) {
			p := reflect.New(n.typ)
			value(i, p.Elem())
			dst.Set(p)
		}
	}
	if a.NullN() == 0 {
		return get, nil
	}
	if !n.null {
		return nil, fmt.Errorf("has %d nulls and must have none: %w", a.NullN(), ErrCorrupt)
	}
	return func(i int, dst reflect.Value) {
		if a.IsValid(i) {
			get(i, dst)
		}
	}, nil
}

func (n *node) openValue(a arrow.Array) (getter, error) {
	mismatch := fmt.Errorf("is %s, want %s: %w", a.DataType(), n.logical, ErrCorrupt)
	switch a := a.(type) {
	case *array.Dictionary:
		values, ok := a.Dictionary().(*array.String)
		if n.kind != kindEnum || !ok {
			return nil, mismatch
		}
		// The file's own dictionary counts: a later build may know more values.
		return func(i int, dst reflect.Value) { dst.SetString(values.Value(a.GetValueIndex(i))) }, nil
	case *array.List:
		if n.kind != kindList {
			return nil, mismatch
		}
		return n.openList(a)
	case *array.Struct:
		if n.kind != kindStruct {
			return nil, mismatch
		}
		return n.openStruct(a)
	}
	if !arrow.TypeEqual(a.DataType(), n.logical) {
		return nil, mismatch
	}
	return scalarGetter(a), nil
}

func scalarGetter(a arrow.Array) getter {
	switch a := a.(type) {
	case *array.Boolean:
		return func(i int, dst reflect.Value) { dst.SetBool(a.Value(i)) }
	case *array.Int8:
		return func(i int, dst reflect.Value) { dst.SetInt(int64(a.Value(i))) }
	case *array.Int32:
		return func(i int, dst reflect.Value) { dst.SetInt(int64(a.Value(i))) }
	case *array.Int64:
		return func(i int, dst reflect.Value) { dst.SetInt(a.Value(i)) }
	case *array.Float32:
		return func(i int, dst reflect.Value) { dst.SetFloat(float64(a.Value(i))) }
	case *array.Float64:
		return func(i int, dst reflect.Value) { dst.SetFloat(a.Value(i)) }
	case *array.Timestamp:
		return func(i int, dst reflect.Value) {
			*dst.Addr().Interface().(*time.Time) = time.UnixMicro(int64(a.Value(i))).UTC()
		}
	case *array.FixedSizeBinary:
		return func(i int, dst reflect.Value) { reflect.Copy(dst, reflect.ValueOf(a.Value(i))) }
	default:
		s := a.(*array.String)
		return func(i int, dst reflect.Value) { dst.SetString(s.Value(i)) }
	}
}

func (n *node) openList(a *array.List) (getter, error) {
	switch items := a.ListValues().(type) {
	case *array.Int32:
		return func(i int, dst reflect.Value) {
			from, to := a.ValueOffsets(i)
			dst.Set(reflect.ValueOf(clone(items.Values(), from, to)))
		}, nil
	case *array.Float32:
		return func(i int, dst reflect.Value) {
			from, to := a.ValueOffsets(i)
			dst.Set(reflect.ValueOf(clone(items.Values(), from, to)))
		}, nil
	}
	get, err := n.item.open(a.ListValues())
	if err != nil {
		return nil, err
	}
	slice := reflect.SliceOf(n.item.typ)
	return func(i int, dst reflect.Value) {
		from, to := a.ValueOffsets(i)
		if from == to && !n.null {
			return // nil is the empty list where null is not allowed
		}
		s := reflect.MakeSlice(slice, int(to-from), int(to-from))
		for k := range s.Len() {
			get(int(from)+k, s.Index(k))
		}
		dst.Set(s)
	}, nil
}

// clone copies values[from:to]; the result is never nil, which would be null.
func clone[E any](values []E, from, to int64) []E {
	out := make([]E, to-from)
	copy(out, values[from:to])
	return out
}

func (n *node) openStruct(a *array.Struct) (getter, error) {
	gets, err := openFields(n.fields, a.DataType().(*arrow.StructType).Fields(), func(i int) arrow.Array { return a.Field(i) })
	if err != nil {
		return nil, err
	}
	return func(i int, dst reflect.Value) {
		for k, f := range n.fields {
			if gets[k] != nil {
				gets[k](i, dst.Field(f.field))
			}
		}
	}, nil
}

// openFields finds the declared columns by name. One that the file lacks reads
// as null; one that may not be null must be there. Others are left alone.
func openFields(nodes []*node, fields []arrow.Field, column func(i int) arrow.Array) ([]getter, error) {
	out := make([]getter, len(nodes))
	for k, n := range nodes {
		i := slices.IndexFunc(fields, func(f arrow.Field) bool { return f.Name == n.name })
		if i < 0 {
			if !n.null {
				return nil, fmt.Errorf("column %s is not there: %w", n.name, ErrCorrupt)
			}
			continue
		}
		get, err := n.open(column(i))
		if err != nil {
			return nil, fmt.Errorf("column %s %w", n.name, err)
		}
		out[k] = get
	}
	return out, nil
}
