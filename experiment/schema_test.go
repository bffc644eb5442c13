package experiment

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the reference page")

const page = "../docs/format-experiment.md"

func TestReference_PageIsCurrent(t *testing.T) {
	want := Reference()
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
	}
	got, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "the page is not current: go generate ./experiment")
}

func TestReference_HoldsEveryField(t *testing.T) {
	text := Reference()
	eachStruct(reflect.TypeFor[Experiment](), "", func(path string, typ reflect.Type) {
		for _, f := range fieldsOf(typ) {
			require.Contains(t, text, fmt.Sprintf("| `%s` | %s | ", f.name, cell(f.accepted())), path)
		}
	})
}

func TestTags(t *testing.T) {
	eachStruct(reflect.TypeFor[Experiment](), "", func(path string, typ reflect.Type) {
		for _, f := range fieldsOf(typ) {
			at := member(path, f.name)
			require.True(t, strings.HasSuffix(f.doc, ".") || strings.HasSuffix(f.doc, "…"), "%s: the doc is a sentence", at)
			nothing := f.typ.Kind() == reflect.Pointer || isMapping(f.typ)
			require.True(t, nothing || f.required != f.hasValue, "%s: either required or with a default", at)
			if f.match != "" {
				require.Contains(t, forms, f.match, at)
			}
		}
	})
	var d decoder
	d.defaults(reflect.ValueOf(&Experiment{}).Elem(), "")
	require.Empty(t, d.errs, "each default is accepted where it stands")
}

// TestSchema_AgreesWithParse validates specs by the schema alone, with a small
// validator of the keywords that it uses.
func TestSchema_AgreesWithParse(t *testing.T) {
	raw, err := Schema()
	require.NoError(t, err)
	var s object
	require.NoError(t, json.Unmarshal(raw, &s))
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", s["$schema"])
	v := validator{t: t, defs: s["$defs"].(object)}

	accept := []string{shortest, head + "  envs: [{name: a, shortGroup: drop, environment: {limits: {cpu: 2}}}]\n  stopWhen: null\n"}
	for _, file := range []string{"testdata/files.yaml"} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		e, err := Parse(data, file)
		require.NoError(t, err)
		accept = append(accept, string(data), string(e.Canonical()))
	}
	for _, yaml := range accept {
		_, err := Parse([]byte(yaml), "x.yaml")
		require.NoError(t, err)
		require.Empty(t, v.check(s, asJSON(t, yaml), ""))
	}
	for _, yaml := range []string{
		head + "  envs: [{nam: a}]\n",
		head + "  envs: []\n",
		head + "  envs: [{name: a}]\n  steps: 0\n",
		head + "  envs: [{name: a, weight: 0}]\n",
		head + "  envs: [{name: a}]\n  lag: {max: few}\n",
		head + "  envs: [{name: a}]\n  lag: null\n",
		head + "  envs: [{name: a, tasks: {order: random}}]\n",
		head + "  envs: [{name: a, environment: {limits: {disk: 3MB}}}]\n",
		head + "  envs: [{name: a, shortGroup: {kin: keep}}]\n",
		head + "  envs: [{name: a}]\n  trainer: {optimizer: {betas: [0.9]}}\n",
		head + "  steps: 3\n",
		"apiVersion: rlfleet/v1\nkind: Experiment\nspec: {envs: [{name: a}]}\n",
	} {
		_, err := Parse([]byte(yaml), "x.yaml")
		require.Error(t, err)
		require.NotEmpty(t, v.check(s, asJSON(t, yaml), ""), yaml)
	}
}

func TestSchema_DescribesEveryField(t *testing.T) {
	raw, err := Schema()
	require.NoError(t, err)
	var s object
	require.NoError(t, json.Unmarshal(raw, &s))
	defs := s["$defs"].(object)
	eachStruct(reflect.TypeFor[Experiment](), "", func(path string, typ reflect.Type) {
		o := s
		if path != "" {
			o = defs[typ.Name()].(object)
		}
		for _, f := range fieldsOf(typ) {
			p := o["properties"].(object)[f.name].(object)
			require.Equal(t, f.doc, p["description"], member(path, f.name))
			if f.hasValue {
				require.Contains(t, p, "default", member(path, f.name))
			}
		}
	})
	require.Equal(t, 0.003, defs["LR"].(object)["properties"].(object)["value"].(object)["default"])
}

// asJSON converts YAML to what encoding/json decodes to.
func asJSON(t *testing.T, yaml string) any {
	t.Helper()
	r := &reader{file: "x.yaml"}
	n := r.read([]byte(yaml))
	require.Empty(t, r.errs)
	b, err := json.Marshal(n.json())
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(b, &v))
	return v
}

type validator struct {
	t    *testing.T
	defs object
}

// check returns what is wrong with v under schema s.
func (c validator) check(s object, v any, path string) []string {
	var wrong []string
	for key, arg := range s {
		wrong = append(wrong, c.keyword(s, key, arg, v, path)...)
	}
	return wrong
}

func (c validator) keyword(s object, key string, arg, v any, path string) []string {
	fail := func(bad bool) []string {
		if bad {
			return []string{fmt.Sprintf("%s: %v breaks %s %v", path, v, key, arg)}
		}
		return nil
	}
	text, isText := v.(string)
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	_, isMap := v.(object)
	switch key {
	case "$schema", "$defs", "title", "description", "default":
		return nil
	case "$ref":
		return c.check(c.defs[strings.TrimPrefix(arg.(string), "#/$defs/")].(object), v, path)
	case "anyOf":
		var all []string
		for _, option := range arg.([]any) {
			wrong := c.check(option.(object), v, path)
			if len(wrong) == 0 {
				return nil
			}
			all = append(all, wrong...)
		}
		return all
	case "type":
		_, isBool := v.(bool)
		return fail(!map[string]bool{
			"string": isText, "number": isNumber, "integer": isNumber && number == float64(int64(number)), "boolean": isBool,
			"array": isList, "object": isMap, "null": v == nil,
		}[arg.(string)])
	case "enum":
		return fail(!slices.Contains(arg.([]any), v))
	case "pattern":
		return fail(isText && !regexp.MustCompile(arg.(string)).MatchString(text))
	case "minimum":
		return fail(isNumber && number < arg.(float64))
	case "exclusiveMinimum":
		return fail(isNumber && number <= arg.(float64))
	case "maximum":
		return fail(isNumber && number > arg.(float64))
	case "exclusiveMaximum":
		return fail(isNumber && number >= arg.(float64))
	case "minItems":
		return fail(isList && float64(len(list)) < arg.(float64))
	case "maxItems":
		return fail(isList && float64(len(list)) > arg.(float64))
	}
	return c.parts(s, key, arg, v, path)
}

// parts checks the keywords about the elements of lists and mappings.
func (c validator) parts(s object, key string, arg, v any, path string) []string {
	list, _ := v.([]any)
	mapping, isMap := v.(object)
	var wrong []string
	switch key {
	case "items":
		for i, item := range list {
			wrong = append(wrong, c.check(arg.(object), item, element(path, i))...)
		}
	case "required":
		for _, k := range arg.([]any) {
			if _, ok := mapping[k.(string)]; isMap && !ok {
				wrong = append(wrong, fmt.Sprintf("%s: no %v", path, k))
			}
		}
	case "properties":
		for k, item := range mapping {
			if p, ok := arg.(object)[k]; ok {
				wrong = append(wrong, c.check(p.(object), item, member(path, k))...)
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(object)
		for k, item := range mapping {
			if _, ok := known[k]; ok {
				continue
			}
			if p, ok := arg.(object); !ok || len(c.check(p, item, path)) > 0 {
				wrong = append(wrong, fmt.Sprintf("%s: a key %s", path, k))
			}
		}
	default:
		c.t.Fatalf("the schema uses %s, which this validator does not know", key)
	}
	return wrong
}
