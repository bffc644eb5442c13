package experiment

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Where a value can come from, besides a preset.
const (
	fromDefault = "default"
	fromFile    = "file"
	fromSet     = "--set"
	fromPreset  = "preset " // and its name
)

// Origin is where a value came from.
type Origin struct {
	From         string // "default", "file", "--set" or "preset NAME"
	File         string // of a value from a file
	Line, Column int
}

// String returns "default", "FILE:LINE", "--set" or "preset NAME".
func (o Origin) String() string {
	if o.From == fromFile {
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return o.From
}

// decoder fills structs from nodes and collects what is wrong.
type decoder struct {
	file    string // label of positions
	from    string
	origins map[string]Origin
	errs    []*Error
}

// fail reports what is wrong with the value at path, which n wrote.
func (d *decoder) fail(n *node, path, found, want, msg string) {
	d.errs = append(d.errs, &Error{File: d.file, Line: n.line, Column: n.col, Path: path, Found: found, Want: want, Msg: msg})
}

func (d *decoder) mark(n *node, path string) {
	if d.from != fromDefault {
		d.origins[path] = Origin{From: d.from, File: d.file, Line: n.line, Column: n.col}
	}
}

// forget drops the origins of everything below path, whose value is replaced.
func (d *decoder) forget(path string) {
	for p := range d.origins {
		if len(p) > len(path) && strings.HasPrefix(p, path) && (p[len(path)] == '.' || p[len(path)] == '[') {
			delete(d.origins, p)
		}
	}
}

// value decodes n into v, which f describes.
func (d *decoder) value(v reflect.Value, n *node, path string, f field) {
	d.mark(n, path)
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		d.nullable(v, n, path, f)
	case isLeaf(t):
		d.leaf(v, n, path, f)
	case t.Kind() == reflect.Struct:
		d.mapping(v, n, path, f)
	case t.Kind() == reflect.Map:
		d.texts(v, n, path, f)
	default:
		d.list(v, n, path, f)
	}
}

func (d *decoder) nullable(v reflect.Value, n *node, path string, f field) {
	if n.kind == kindNull {
		d.forget(path)
		v.SetZero()
		return
	}
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem()))
		d.defaults(v.Elem(), path)
	}
	d.value(v.Elem(), n, path, f)
}

// defaults sets v, a struct, to the values of its default tags.
func (d *decoder) defaults(v reflect.Value, path string) {
	sub := &decoder{file: fromDefault, from: fromDefault}
	for _, f := range fieldsOf(v.Type()) {
		fv, at := v.Field(f.index), member(path, f.name)
		if fv.Kind() == reflect.Struct && !isQuantity(f.typ) {
			d.defaults(fv, at)
		}
		if f.hasValue {
			sub.value(fv, literal(f), at, f)
		}
	}
	d.errs = append(d.errs, sub.errs...)
}

// literal returns the node of a default tag.
func literal(f field) *node {
	if f.typ.Kind() == reflect.String {
		return &node{kind: kindText, text: f.preset}
	}
	r := &reader{file: fromDefault}
	n := r.read([]byte(f.preset))
	if n == nil {
		return &node{kind: kindNull}
	}
	if isQuantity(f.typ) {
		n.kind = kindText
	}
	return n
}

func (d *decoder) mapping(v reflect.Value, n *node, path string, f field) {
	t := v.Type()
	if s, ok := shorthandOf(t); ok && n.kind == kindText {
		d.value(v.Field(s.index), n, member(path, s.name), s)
		return
	}
	if n.kind != kindMap {
		d.fail(n, path, n.describe(), f.want(t), "")
		return
	}
	for _, e := range n.entries {
		sub, ok := fieldNamed(t, e.name)
		if !ok {
			d.unknown(e, path, t)
			continue
		}
		d.value(v.Field(sub.index), e.value, member(path, e.name), sub)
	}
}

func (d *decoder) unknown(e entry, path string, t reflect.Type) {
	msg := fmt.Sprintf("unknown key %q", clip(e.name))
	keys := keysOf(t)
	if near := nearest(e.name, keys); near != "" {
		msg += fmt.Sprintf("; did you mean %q?", near)
	} else if home := homeOf(e.name); home != "" {
		msg += fmt.Sprintf("; %s is a key of %s", e.name, home)
	}
	d.fail(&node{line: e.line, col: e.col}, member(path, clip(e.name)), clip(e.name), "one of "+listed(keys, "and"), msg)
	d.errs[len(d.errs)-1].stray = true
}

func (d *decoder) texts(v reflect.Value, n *node, path string, f field) {
	if n.kind != kindMap {
		d.fail(n, path, n.describe(), f.want(v.Type()), "")
		return
	}
	d.forget(path)
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range n.entries {
		at := member(path, e.name)
		text := reflect.New(v.Type().Elem()).Elem()
		d.value(text, e.value, at, field{typ: text.Type()})
		v.SetMapIndex(reflect.ValueOf(e.name), text)
	}
}

func (d *decoder) list(v reflect.Value, n *node, path string, f field) {
	t := v.Type()
	if n.kind != kindList {
		d.fail(n, path, n.describe(), f.want(t), "")
		return
	}
	d.forget(path)
	if t.Kind() == reflect.Array {
		if len(n.items) != t.Len() {
			d.fail(n, path, fmt.Sprintf("a list of %d", len(n.items)), f.want(t), "")
			return
		}
	} else {
		v.Set(reflect.MakeSlice(t, len(n.items), len(n.items)))
	}
	if len(n.items) < f.items {
		d.fail(n, path, fmt.Sprintf("a list of %d", len(n.items)), fmt.Sprintf("a list of at least %d", f.items), "")
	}
	for i, item := range n.items {
		at := element(path, i)
		if t.Elem().Kind() == reflect.Struct && !isQuantity(t.Elem()) {
			d.defaults(v.Index(i), at)
		}
		d.value(v.Index(i), item, at, f)
	}
}

func (d *decoder) leaf(v reflect.Value, n *node, path string, f field) {
	refuse := func() { d.fail(n, path, n.describe(), f.want(v.Type()), "") }
	if q, ok := v.Addr().Interface().(quantity); ok {
		_, _, number := q.shape()
		numeric := number && (n.kind == kindInt || n.kind == kindFloat)
		if (n.kind != kindText && !numeric) || q.UnmarshalText([]byte(n.text)) != nil {
			refuse()
		}
		return
	}
	var ok bool
	switch v.Kind() {
	case reflect.Bool:
		if ok = n.kind == kindBool; ok {
			v.SetBool(n.text == "true")
		}
	case reflect.Int, reflect.Int64:
		var i int64
		if i, ok = decimal(n); ok && f.inBounds(float64(i)) {
			v.SetInt(i)
		} else {
			ok = false
		}
	case reflect.Float64:
		x, err := strconv.ParseFloat(n.text, 64)
		if ok = (n.kind == kindInt || n.kind == kindFloat) && err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) && f.inBounds(x); ok {
			v.SetFloat(x)
		}
	case reflect.String:
		if ok = n.kind == kindText && f.accepts(n.text); ok {
			v.SetString(n.text)
		}
	}
	if !ok {
		refuse()
	}
}

var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// decimal returns the integer that n writes in plain decimal digits.
func decimal(n *node) (int64, bool) {
	if n.kind != kindInt || !integer.MatchString(n.text) {
		return 0, false
	}
	i, err := strconv.ParseInt(n.text, 10, 64)
	return i, err == nil
}

func (f field) inBounds(x float64) bool {
	for _, b := range f.bounds {
		if !b.holds(x, b.limit) {
			return false
		}
	}
	return true
}

func (f field) accepts(text string) bool {
	if f.enum != nil {
		for _, e := range f.enum {
			if e == text {
				return true
			}
		}
		return false
	}
	form, ok := forms[f.match]
	return !ok || form.pattern.MatchString(text) && (form.also == nil || form.also(text))
}
