package experiment

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// segment is one step of an override's path: a key, or an index from 0.
var segment = regexp.MustCompile(`^(?:\.?([A-Za-z][A-Za-z0-9_-]*)|\[([0-9]{1,6})\])`)

// set applies one override "path=value". Lists and maps are replaced; keys of
// a mapping value override one by one. A value for a text is taken as it is.
func (d *decoder) set(root reflect.Value, override string) {
	path, value, ok := strings.Cut(override, "=")
	at := &node{}
	if !ok || path == "" {
		d.fail(at, "", clip(override), "path=value, such as spec.lag.max=0", "an override has a path and a value")
		return
	}
	d.descend(root, path, "", value, field{})
}

// descend follows rest, the remainder of the path, from v at done.
func (d *decoder) descend(v reflect.Value, rest, done, value string, f field) {
	at := &node{}
	if rest == "" {
		d.assign(v, done, value, f)
		return
	}
	m := segment.FindStringSubmatch(rest)
	if m == nil || (done == "" && rest[0] == '.') || (done != "" && rest[0] != '.' && rest[0] != '[') {
		d.fail(at, done, clip(rest), "keys joined by dots and indices in brackets, such as spec.envs[0].groupSize", "the path of an override is malformed")
		return
	}
	key, index, after := m[1], m[2], rest[len(m[0]):]
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			d.defaults(v.Elem(), done)
			d.mark(at, done)
		}
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Struct && !isQuantity(v.Type()) && key != "":
		sub, ok := fieldNamed(v.Type(), key)
		if !ok {
			d.unknown(entry{name: key}, done, v.Type())
			return
		}
		d.descend(v.Field(sub.index), after, member(done, key), value, sub)
	case v.Kind() == reflect.Map && key != "" && after == "":
		d.label(v, member(done, key), key, value)
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Array) && index != "":
		i, _ := strconv.Atoi(index)
		if i >= v.Len() {
			d.fail(at, element(done, i), "index "+index, fmt.Sprintf("an index below %d", v.Len()), fmt.Sprintf("%s has no such element", done))
			return
		}
		d.descend(v.Index(i), after, element(done, i), value, f)
	default:
		d.fail(at, done, clip(rest), f.want(v.Type()), "the path of an override does not lead to a field")
	}
}

func (d *decoder) label(v reflect.Value, path, key, value string) {
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	d.mark(&node{}, path)
	v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(value))
}

func (d *decoder) assign(v reflect.Value, path, value string, f field) {
	if v.Kind() == reflect.String {
		d.value(v, &node{kind: kindText, text: value}, path, f)
		return
	}
	r := &reader{file: fromSet}
	n := &node{kind: kindNull}
	if strings.TrimSpace(value) != "" {
		n = r.read([]byte(value))
	}
	for _, e := range r.errs {
		e.Line, e.Column, e.Path = 0, 0, path
		d.errs = append(d.errs, e)
	}
	if n == nil {
		return
	}
	n.unplace()
	d.value(v, n, path, f)
}

// unplace removes positions, which mean nothing in an override.
func (n *node) unplace() {
	n.line, n.col = 0, 0
	for _, item := range n.items {
		item.unplace()
	}
	for i := range n.entries {
		n.entries[i].line, n.entries[i].col = 0, 0
		n.entries[i].value.unplace()
	}
}
