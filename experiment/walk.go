package experiment

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var anyIndex = regexp.MustCompile(`\[[0-9]+\]`)

// walk calls visit for every field below the struct v in the order of the
// document, with its path; where visit returns false, it does not go below.
func walk(v reflect.Value, path string, visit func(path string, v reflect.Value, f field) bool) {
	for _, f := range fieldsOf(v.Type()) {
		fv, at := v.Field(f.index), member(path, f.name)
		if !visit(at, fv, f) {
			continue
		}
		if fv.Kind() == reflect.Pointer && !fv.IsNil() {
			fv = fv.Elem()
		}
		switch {
		case isMapping(fv.Type()):
			walk(fv, at, visit)
		case fv.Kind() == reflect.Slice && isMapping(fv.Type().Elem()):
			for i := range fv.Len() {
				walk(fv.Index(i), element(at, i), visit)
			}
		}
	}
}

// isMapping reports whether t is written as a mapping with fixed keys.
func isMapping(t reflect.Type) bool { return t.Kind() == reflect.Struct && !isQuantity(t) }

// plain matches text that YAML reads as the same text without quotes.
var plain = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./:@+-]*$`)

var reserved = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n|\.inf|\.nan|[.0-9+-]+(e[0-9+-]*)?)$`)

// flow writes v as one line of YAML.
func flow(v reflect.Value) string {
	if isQuantity(v.Type()) {
		return quantityText(v) // never like a number where a number will not do
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return "null"
		}
		return flow(v.Elem())
	case reflect.String:
		return scalar(v.String())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Float64:
		return number(v.Float())
	case reflect.Slice, reflect.Array:
		var items []string
		for i := range v.Len() {
			items = append(items, flow(v.Index(i)))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		var items []string
		for _, k := range v.MapKeys() {
			items = append(items, quoted(k.String())+": "+quoted(v.MapIndex(k).String()))
		}
		slices.Sort(items)
		return "{" + strings.Join(items, ", ") + "}"
	}
	return ""
}

// quantityText returns the text form of a quantity.
func quantityText(v reflect.Value) string {
	s, ok := v.Interface().(fmt.Stringer)
	if !ok {
		return ""
	}
	return s.String()
}

// scalar quotes text where YAML would read it as something else.
func scalar(text string) string {
	if plain.MatchString(text) && !reserved.MatchString(text) && !strings.HasSuffix(text, ":") {
		return text
	}
	return quoted(text)
}

// quoted writes text as a JSON string, which YAML reads as well.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		return strconv.Quote(text)
	}
	return string(b)
}

// number writes x in the fewest digits that read back as x.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
