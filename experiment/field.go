package experiment

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
)

// field is one key of a struct of the spec, as its tags describe it.
type field struct {
	index    int
	name     string // the key
	doc      string
	preset   string // default's YAML text
	hasValue bool   // preset is there
	required bool
	enum     []string
	bounds   []bound
	items    int    // least number of list elements
	match    string // a key of forms
	typ      reflect.Type
}

// bound is one limit of a number.
type bound struct {
	tag, text, words, keyword string
	limit                     float64
	holds                     func(v, limit float64) bool
}

// boundTags relates the tag of a bound to its words and its JSON Schema keyword.
var boundTags = []bound{
	{tag: "min", words: "of at least ", keyword: "minimum", holds: func(v, l float64) bool { return v >= l }},
	{tag: "above", words: "above ", keyword: "exclusiveMinimum", holds: func(v, l float64) bool { return v > l }},
	{tag: "max", words: "of at most ", keyword: "maximum", holds: func(v, l float64) bool { return v <= l }},
	{tag: "below", words: "below ", keyword: "exclusiveMaximum", holds: func(v, l float64) bool { return v < l }},
}

// form is a named form of a text.
type form struct {
	want    string
	pattern *regexp.Regexp
	also    func(string) bool // what a pattern cannot say; nil for nothing
}

var forms = map[string]form{
	"name":     {"lower-case letters, digits and inner hyphens, 63 at most", regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`), nil},
	"secret":   {"the name of a secret in capitals, digits and underscores", regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`), nil},
	"nonempty": {"a text that is not empty", regexp.MustCompile(`.`), nil},
	"image": {"host, oci://NAME@sha256:<64 hexadecimal digits> or a directory", regexp.MustCompile(`.`), func(s string) bool {
		name, oci := strings.CutPrefix(s, "oci://")
		if !oci {
			return !strings.Contains(s, "://")
		}
		at := strings.LastIndex(name, "@")
		return at > 0 && policy.Digest(name[at+1:]).Validate() == nil
	}},
}

// fieldsOf returns the keys of struct type t in the order of the document.
func fieldsOf(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		sf := t.Field(i)
		name, ok := sf.Tag.Lookup("yaml")
		if !ok {
			continue
		}
		f := field{index: i, name: name, doc: sf.Tag.Get("doc"), match: sf.Tag.Get("match"), typ: sf.Type}
		f.preset, f.hasValue = sf.Tag.Lookup("default")
		f.required = sf.Tag.Get("required") == "true"
		if e := sf.Tag.Get("enum"); e != "" {
			f.enum = strings.Split(e, "|")
		}
		f.items, _ = strconv.Atoi(sf.Tag.Get("items"))
		for _, b := range boundTags {
			if text, ok := sf.Tag.Lookup(b.tag); ok {
				b.text = text
				b.limit, _ = strconv.ParseFloat(text, 64)
				f.bounds = append(f.bounds, b)
			}
		}
		all = append(all, f)
	}
	return all
}

// fieldNamed returns the field of t with that key.
func fieldNamed(t reflect.Type, name string) (field, bool) {
	for _, f := range fieldsOf(t) {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

// isLeaf reports whether t is written as one scalar.
func isLeaf(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		return isQuantity(t)
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Pointer:
		return false
	}
	return true
}

func isQuantity(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[quantity]())
}

// shorthandOf returns the key that a scalar in place of struct t sets, if t has such a form.
func shorthandOf(t reflect.Type) (field, bool) {
	s, ok := reflect.Zero(t).Interface().(interface{ shorthand() string })
	if !ok {
		return field{}, false
	}
	return fieldNamed(t, s.shorthand())
}

// want says what values of type t are accepted for f.
func (f field) want(t reflect.Type) string {
	if isQuantity(t) {
		w, _, _ := reflect.New(t).Interface().(quantity).shape()
		return w
	}
	switch t.Kind() {
	case reflect.Pointer:
		return f.want(t.Elem()) + ", or null"
	case reflect.Struct:
		if s, ok := shorthandOf(t); ok {
			return s.want(s.typ) + ", or a mapping with the keys " + listed(keysOf(t), "and")
		}
		return "a mapping with the keys " + listed(keysOf(t), "and")
	case reflect.Map:
		return "a mapping of text to text"
	case reflect.Slice:
		return "a list, each element " + f.want(t.Elem())
	case reflect.Array:
		return fmt.Sprintf("a list of %d, each %s", t.Len(), f.want(t.Elem()))
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "an integer" + f.extent()
	case reflect.Float64:
		return "a number" + f.extent()
	}
	switch {
	case f.enum != nil:
		return listed(f.enum, "or")
	case f.match != "":
		return forms[f.match].want
	}
	return "text"
}

// extent returns the bounds in words, with a leading space.
func (f field) extent() string {
	var parts []string
	for _, b := range f.bounds {
		parts = append(parts, b.words+b.text)
	}
	if parts == nil {
		return ""
	}
	return " " + strings.Join(parts, " and ")
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for _, f := range fieldsOf(t) {
		keys = append(keys, f.name)
	}
	return keys
}

// listed joins words with commas and a last conjunction.
func listed(words []string, conjunction string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + conjunction + " " + words[n]
}

// member and element extend a path by a key and by an index.
func member(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// parent returns the path one level up.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}
