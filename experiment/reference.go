package experiment

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference returns the reference page of the format in Markdown. The page in
// docs is this text; a test keeps them equal.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# The experiment spec

An experiment is one YAML file. This page is generated from the structs of package experiment; every key is here.

- Nothing is ignored: an unknown key, a repeated key, a wrong type, a combination without meaning and a value that this
  build does not have are refused with file, line, column, what was found and what would be accepted.
- Durations are Go durations (` + "`90s`, `1h30m`" + `); sizes are whole numbers of ` + "`Ki`, `Mi` or `Gi`" + `; digests are ` + "`sha256:<hex>`" + `.
- Paths are relative to the spec's file, storage to the working directory. Secrets are named, never written.
- Anchors, aliases and tags of YAML are not accepted.
- ` + "`--set path=value`" + ` overrides one field, such as ` + "`--set 'spec.envs[0].groupSize=8'`" + `. A list is replaced as a whole; in a
  mapping only the keys that are given change.
- ` + "`rlctl experiment validate FILE`" + ` checks a file, ` + "`rlctl experiment show --defaults FILE`" + ` prints every field with its value
  and where it came from, ` + "`rlctl experiment schema`" + ` prints the JSON Schema that editors use.

The shortest spec:

` + "```yaml\n" + shortest + "```\n")

	eachStruct(reflect.TypeFor[Experiment](), "", func(path string, t reflect.Type) {
		title := "The document"
		if path != "" {
			title = "`" + path + "`"
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		if s, ok := shorthandOf(t); ok {
			fmt.Fprintf(&b, "May be written as the value of `%s` alone.\n\n", s.name)
		}
		b.WriteString("| key | accepted | default | meaning |\n|---|---|---|---|\n")
		for _, f := range fieldsOf(t) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, cell(f.accepted()), f.defaultCell(), cell(f.doc))
		}
	})

	b.WriteString("\n## Presets\n\n`spec.trainer.algorithm.preset` sets these fields of the algorithm; a field that is written overrides it.\n\n")
	writePresets(&b)

	b.WriteString("\n## Rules of combination\n\nEach is refused with its sentence.\n\n")
	for _, r := range rules {
		b.WriteString("- " + r.says + "\n")
	}

	b.WriteString("\n## What this build has\n\nOther values of these fields are refused by name. Of all other fields it has every value.\n\n| field | values |\n|---|---|\n")
	for _, l := range lacks {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.path, cell(strings.Join(l.has, ", ")))
	}
	return b.String()
}

// shortest is the shortest spec that Parse accepts.
const shortest = `apiVersion: rlfleet/v1
kind: Experiment
metadata: {name: files}
spec:
  envs:
  - name: files
`

func writePresets(b *strings.Builder) {
	var names []string
	if f, ok := fieldNamed(reflect.TypeFor[Algorithm](), "preset"); ok {
		names = f.enum
	}
	b.WriteString("| field | " + strings.Join(names, " | ") + " |\n|---" + strings.Repeat("|---", len(names)) + "|\n")
	for _, p := range presetFields {
		b.WriteString("| `" + p + "`")
		for _, n := range names {
			b.WriteString(" | " + presets[n][p])
		}
		b.WriteString(" |\n")
	}
}

// accepted is want, without the keys of a mapping that has a section of its own.
func (f field) accepted() string {
	t := f.typ
	switch {
	case t.Kind() == reflect.Pointer:
		return "a mapping, or null"
	case t.Kind() == reflect.Slice && isMapping(t.Elem()):
		return "a list of mappings"
	case isMapping(t):
		if s, ok := shorthandOf(t); ok {
			return s.want(s.typ) + ", or a mapping"
		}
		return "a mapping"
	}
	return f.want(t)
}

func (f field) defaultCell() string {
	switch {
	case f.required:
		return "required"
	case f.typ.Kind() == reflect.Pointer:
		return "`null`"
	case f.hasValue && f.preset == "":
		return "empty"
	case f.hasValue:
		return "`" + f.preset + "`"
	case isMapping(f.typ):
		if s, ok := shorthandOf(f.typ); ok {
			return "`" + s.preset + "`"
		}
		return "see below"
	}
	return ""
}

// cell escapes text for a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
