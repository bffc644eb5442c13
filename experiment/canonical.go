package experiment

import (
	"reflect"
	"slices"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
)

// Canonical returns the resolved spec as JSON on one line with sorted keys and
// every field present. It is the same for any formatting of the file and for
// any place of it, and Parse reads it back to an equal Experiment.
func (e *Experiment) Canonical() []byte {
	var b strings.Builder
	canonical(&b, reflect.ValueOf(e).Elem())
	return []byte(b.String())
}

// Digest returns the content address of Canonical.
func (e *Experiment) Digest() policy.Digest { return policy.DigestOf(e.Canonical()) }

func canonical(b *strings.Builder, v reflect.Value) {
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer && v.IsNil():
		b.WriteString("null")
	case t.Kind() == reflect.Pointer:
		canonical(b, v.Elem())
	case isMapping(t):
		fields := fieldsOf(t)
		slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
		for i, f := range fields {
			b.WriteString([]string{"{", ","}[min(i, 1)] + quoted(f.name) + ":")
			canonical(b, v.Field(f.index))
		}
		b.WriteString("}")
	case t.Kind() == reflect.Map:
		var items []string
		for _, k := range v.MapKeys() {
			items = append(items, quoted(k.String())+":"+quoted(v.MapIndex(k).String()))
		}
		slices.Sort(items)
		b.WriteString("{" + strings.Join(items, ",") + "}")
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		b.WriteString("[")
		for i := range v.Len() {
			if i > 0 {
				b.WriteString(",")
			}
			canonical(b, v.Index(i))
		}
		b.WriteString("]")
	case t.Kind() == reflect.String:
		b.WriteString(quoted(v.String()))
	case isQuantity(t):
		b.WriteString(quoted(quantityText(v)))
	default:
		b.WriteString(flow(v))
	}
}
