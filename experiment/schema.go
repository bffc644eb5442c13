package experiment

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// object is one JSON object.
type object = map[string]any

// Schema returns the format as a JSON Schema, draft 2020-12, for editors. It
// cannot say the rules of combination; Parse checks those as well.
func Schema() ([]byte, error) {
	defs := object{}
	root := schemaOf(reflect.TypeFor[Experiment](), field{}, defs)
	top := object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "rlfleet experiment",
		"description": "An experiment of rlfleet, format " + APIVersion + ".",
		"$defs":       defs,
	}
	for k, v := range root {
		top[k] = v
	}
	b, err := json.MarshalIndent(top, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("experiment: encode schema: %w", err)
	}
	return append(b, '\n'), nil
}

// schemaOf returns the schema of values of type t under f; structs go to defs.
func schemaOf(t reflect.Type, f field, defs object) object {
	if isQuantity(t) {
		_, pattern, number := reflect.New(t).Interface().(quantity).shape()
		text := object{"type": "string", "pattern": pattern}
		if number {
			return object{"anyOf": []any{text, object{"type": "number", "exclusiveMinimum": 0}}}
		}
		return text
	}
	switch t.Kind() {
	case reflect.Pointer:
		return object{"anyOf": []any{schemaOf(t.Elem(), f, defs), object{"type": "null"}}}
	case reflect.Struct:
		return structSchema(t, defs)
	case reflect.Map:
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	case reflect.Slice:
		o := object{"type": "array", "items": schemaOf(t.Elem(), f, defs)}
		if f.items > 0 {
			o["minItems"] = f.items
		}
		return o
	case reflect.Array:
		return object{"type": "array", "items": schemaOf(t.Elem(), f, defs), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return f.bounded(object{"type": "integer"})
	case reflect.Float64:
		return f.bounded(object{"type": "number"})
	}
	o := object{"type": "string"}
	if f.enum != nil {
		o["enum"] = f.enum
	}
	if f.match != "" {
		o["pattern"] = forms[f.match].pattern.String()
	}
	return o
}

func (f field) bounded(o object) object {
	for _, b := range f.bounds {
		o[b.keyword] = b.limit
	}
	return o
}

func structSchema(t reflect.Type, defs object) object {
	ref := object{"$ref": "#/$defs/" + t.Name()}
	if t == reflect.TypeFor[Experiment]() {
		return properties(t, defs)
	}
	if _, done := defs[t.Name()]; !done {
		defs[t.Name()] = object{} // stops a type that holds itself
		defs[t.Name()] = properties(t, defs)
	}
	if s, ok := shorthandOf(t); ok {
		return object{"anyOf": []any{schemaOf(s.typ, s, defs), ref}}
	}
	return ref
}

func properties(t reflect.Type, defs object) object {
	props, required := object{}, []string{}
	for _, f := range fieldsOf(t) {
		p := schemaOf(f.typ, f, defs)
		p["description"] = f.doc
		if d, ok := f.defaultJSON(); ok {
			p["default"] = d
		}
		props[f.name] = p
		if mustWrite(f) {
			required = append(required, f.name)
		}
	}
	o := object{"type": "object", "properties": props, "additionalProperties": false}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// mustWrite reports whether the key of f has to be in the file: it is required, or something in it is.
func mustWrite(f field) bool {
	if f.required {
		return true
	}
	if isMapping(f.typ) {
		for _, sub := range fieldsOf(f.typ) {
			if mustWrite(sub) {
				return true
			}
		}
	}
	return false
}

// defaultJSON returns the default of f as JSON, if it has one.
func (f field) defaultJSON() (any, bool) {
	if f.typ.Kind() == reflect.Pointer {
		return nil, true
	}
	if !f.hasValue {
		return nil, false
	}
	return literal(f).json(), true
}

// json returns n as encoding/json takes it.
func (n *node) json() any {
	switch n.kind {
	case kindNull:
		return nil
	case kindText:
		return n.text
	case kindList:
		list := []any{}
		for _, item := range n.items {
			list = append(list, item.json())
		}
		return list
	case kindMap:
		m := object{}
		for _, e := range n.entries {
			m[e.name] = e.value.json()
		}
		return m
	}
	var v any
	if json.Unmarshal([]byte(n.text), &v) != nil {
		return n.text
	}
	return v
}
