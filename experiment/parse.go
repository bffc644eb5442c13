package experiment

import (
	"fmt"
	"os"
	"reflect"
	"strings"
)

// Parse reads a spec, fills in defaults and presets, and checks it. file
// labels positions and is what relative paths are resolved against. The error
// is an *Error, or several joined (see Errors).
func Parse(data []byte, file string) (*Experiment, error) { return resolve(data, file, nil) }

// Load is Parse of the file at path with overrides, each "path=value" such as
// spec.envs[0].environment.runtime=gvisor, applied in order.
func Load(path string, sets []string) (*Experiment, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{File: path, Msg: "the spec cannot be read: " + reason(err), Want: "a readable YAML file", cause: err}
	}
	return resolve(data, path, sets)
}

// reason strips the operation and the path, which the Error names already.
func reason(err error) string {
	s := err.Error()
	return strings.TrimPrefix(s[strings.LastIndex(s, ": ")+1:], " ")
}

func resolve(data []byte, file string, sets []string) (*Experiment, error) {
	r := &reader{file: file}
	root := r.read(data)
	if root == nil {
		return nil, join(r.errs)
	}
	e := &Experiment{file: file, origins: map[string]Origin{}}
	d := &decoder{file: file, from: fromFile, origins: e.origins, errs: r.errs}
	v := reflect.ValueOf(e).Elem()
	d.defaults(v, "")
	d.value(v, root, "", field{})
	d.file, d.from = fromSet, fromSet
	for _, s := range sets {
		d.set(v, s)
	}
	d.required(v, "")
	d.errs = append(d.errs, expand(e)...)

	c := &checker{e: e, errs: d.errs, tainted: taints(d.errs)}
	c.build()
	for _, rule := range rules {
		c.sentence = rule.says
		rule.check(c, &e.Spec)
	}
	if err := join(c.errs); err != nil {
		return nil, err
	}
	return e, nil
}

// required reports each required key that nothing has set. It says nothing
// about a value that was no mapping at all.
func (d *decoder) required(v reflect.Value, path string) {
	for _, e := range d.errs {
		if e.Path == path {
			return
		}
	}
	for _, f := range fieldsOf(v.Type()) {
		at, fv := member(path, f.name), v.Field(f.index)
		if _, set := d.origins[at]; f.required && !set && fv.IsZero() {
			o := position(d.origins, at)
			d.errs = append(d.errs, &Error{
				File: o.File, Line: o.Line, Column: o.Column, Path: at,
				Found: "nothing", Want: f.want(f.typ), Msg: fmt.Sprintf("the key %q is required", f.name),
			})
		}
		d.requiredIn(fv, at)
	}
}

func (d *decoder) requiredIn(v reflect.Value, path string) {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		d.requiredIn(v.Elem(), path)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			d.requiredIn(v.Index(i), element(path, i))
		}
	case v.Kind() == reflect.Struct && !isQuantity(v.Type()):
		d.required(v, path)
	}
}

// position returns the origin of path, or of the nearest value around it that
// was written. The document itself, "", always was.
func position(origins map[string]Origin, path string) Origin {
	for path != "" && origins[path].File == "" {
		path = parent(path)
	}
	return origins[path]
}

// checker collects what the rules and this build refuse.
type checker struct {
	e        *Experiment
	sentence string // of the rule at hand
	errs     []*Error
	tainted  []string
}

// refuse reports the rule at hand at the first path. It says nothing if one
// of the paths was wrong already: its value is then not what the user meant.
func (c *checker) refuse(found, want string, paths ...string) {
	for _, p := range paths {
		for _, t := range c.tainted {
			if under(p, t) || under(t, p) {
				return
			}
		}
	}
	c.report(c.sentence, found, want, paths...)
}

func (c *checker) report(msg, found, want string, paths ...string) {
	// The position is that of the first path that was written at all.
	var o Origin
	for _, p := range paths {
		if at, ok := c.e.origins[p]; ok && at.File != "" {
			o = at
			break
		}
	}
	if o.File == "" {
		o = position(c.e.origins, paths[0])
	}
	c.errs = append(c.errs, &Error{File: o.File, Line: o.Line, Column: o.Column, Path: paths[0], Found: found, Want: want, Msg: msg})
}

// taints returns the paths whose values are not what the user wrote.
func taints(errs []*Error) []string {
	var paths []string
	for _, e := range errs {
		if e.stray {
			paths = append(paths, parent(e.Path))
		} else {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// under reports whether path is at or below top.
func under(path, top string) bool {
	return strings.HasPrefix(path, top) && (len(path) == len(top) || top == "" || path[len(top)] == '.' || path[len(top)] == '[')
}
