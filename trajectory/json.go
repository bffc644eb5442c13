package trajectory

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
)

// RowJSON returns a row as a JSON object with the declared column names, in
// their order. Nulls are null, durations are nanoseconds, hashes are hexadecimal.
func RowJSON[R Row](row R) (json.RawMessage, error) {
	v := reflect.New(reflect.TypeFor[R]()).Elem()
	v.Set(reflect.ValueOf(row))
	b, err := appendFields(nil, columnsOf(v.Type()), v)
	if err != nil {
		return nil, fmt.Errorf("trajectory: %s as JSON: %w", TableOf[R](), err)
	}
	return b, nil
}

func appendFields(b []byte, nodes []*node, v reflect.Value) ([]byte, error) {
	b = append(b, '{')
	for i, n := range nodes {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), n.name...), '"', ':')
		var err error
		if b, err = n.appendJSON(b, v.Field(n.field)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func (n *node) appendJSON(b []byte, v reflect.Value) ([]byte, error) {
	if n.isNull(v) {
		return append(b, "null"...), nil
	}
	if n.pointer {
		v = v.Elem()
	}
	switch n.kind {
	case kindStruct:
		return appendFields(b, n.fields, v)
	case kindList:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = n.item.appendJSON(b, v.Index(i)); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case kindHash:
		return append(append(append(b, '"'), hex.EncodeToString(v.Slice(0, v.Len()).Bytes())...), '"'), nil
	case kindInt64:
		return fmt.Appendf(b, "%d", v.Int()), nil // also what has a String method
	default:
		x, err := json.Marshal(v.Interface())
		return append(b, x...), err
	}
}

func (n *node) isNull(v reflect.Value) bool {
	switch {
	case n.pointer:
		return v.IsNil()
	case !n.null:
		return false
	case n.kind == kindList:
		return v.IsNil()
	default:
		return v.Len() == 0 // enumerations and digests
	}
}
