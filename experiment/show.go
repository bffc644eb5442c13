package experiment

import (
	"fmt"
	"reflect"
	"strings"
)

// Value is one field with its value and where that came from.
type Value struct {
	Path  string `json:"path"`
	Value string `json:"value"` // as YAML on one line
	From  string `json:"from"`  // default, FILE:LINE, --set or preset NAME
}

// Values lists every field that is written as a scalar, a plain list or null,
// in the order of the document; without defaults, only those that something has set.
func (e *Experiment) Values(defaults bool) []Value {
	var all []Value
	walk(reflect.ValueOf(e).Elem(), "", func(path string, v reflect.Value, f field) bool {
		if below(v) {
			return true
		}
		if o := e.from(path); defaults || o.From != fromDefault {
			all = append(all, Value{Path: path, Value: flow(v), From: o.String()})
		}
		return false
	})
	return all
}

// from is Origin, where an element or key set on its own counts for its list or map.
func (e *Experiment) from(path string) Origin {
	o := e.Origin(path)
	for p, at := range e.origins {
		if parent(p) == path && at.From == fromSet {
			o = at
		}
	}
	return o
}

// below reports whether v is shown as a block of its own, with fields in it.
func below(v reflect.Value) bool {
	t := v.Type()
	switch t.Kind() {
	case reflect.Pointer:
		return !v.IsNil()
	case reflect.Slice:
		return isMapping(t.Elem()) && v.Len() > 0
	}
	return isMapping(t)
}

// Show prints the spec as YAML with the origin of each value beside it;
// without defaults, only what something has set. With defaults, the result
// reads back to an equal Experiment.
func (e *Experiment) Show(defaults bool) string {
	s := shower{e: e, defaults: defaults}
	s.mapping(reflect.ValueOf(e).Elem(), "", "")
	width := 0
	for _, l := range s.lines {
		if l.from != "" {
			width = max(width, len([]rune(l.text)))
		}
	}
	width = min(width, 60)
	var b strings.Builder
	for _, l := range s.lines {
		if l.from == "" {
			b.WriteString(l.text + "\n")
			continue
		}
		fmt.Fprintf(&b, "%-*s  # %s\n", width, l.text, l.from)
	}
	return b.String()
}

type line struct{ text, from string }

type shower struct {
	e        *Experiment
	defaults bool
	lines    []line
}

// mapping prints the fields of struct v.
func (s *shower) mapping(v reflect.Value, path, indent string) {
	for _, f := range fieldsOf(v.Type()) {
		fv, at := v.Field(f.index), member(path, f.name)
		if !below(fv) {
			if o := s.e.from(at); s.defaults || o.From != fromDefault {
				s.lines = append(s.lines, line{indent + f.name + ": " + flow(fv), o.String()})
			}
			continue
		}
		heading := len(s.lines)
		s.lines = append(s.lines, line{indent + f.name + ":", ""})
		s.block(fv, at, indent)
		if len(s.lines) == heading+1 {
			s.lines = s.lines[:heading] // nothing to show below
		}
	}
}

func (s *shower) block(v reflect.Value, path, indent string) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Slice {
		s.mapping(v, path, indent+"  ")
		return
	}
	for i := range v.Len() {
		first := len(s.lines)
		s.mapping(v.Index(i), element(path, i), indent+"  ")
		if len(s.lines) > first {
			s.lines[first].text = indent + "- " + strings.TrimLeft(s.lines[first].text, " ")
		}
	}
}
