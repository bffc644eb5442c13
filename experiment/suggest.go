package experiment

import (
	"reflect"
	"strings"
)

// nearest returns the candidate that name is most likely a misspelling of, or "".
func nearest(name string, candidates []string) string {
	best, limit := "", max(2, len(name)/3)+1
	if len(name) > 64 {
		return ""
	}
	for _, c := range candidates {
		if strings.EqualFold(c, name) {
			return c
		}
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < limit && d < len(c) {
			best, limit = c, d
		}
	}
	return best
}

// distance is the least number of insertions, deletions, substitutions and
// swaps of neighbours between a and b (optimal string alignment).
func distance(a, b string) int {
	prev, cur := make([]int, len(b)+1), make([]int, len(b)+1)
	before := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}

// homeOf returns the first path of the document that has a key called name, or "".
func homeOf(name string) string {
	var home string
	eachStruct(reflect.TypeFor[Experiment](), "", func(path string, t reflect.Type) {
		if _, ok := fieldNamed(t, name); ok && home == "" && path != "" {
			home = path
		}
	})
	return home
}

// eachStruct calls visit for every mapping of the document, in order, with its
// path; elements of lists are written [].
func eachStruct(t reflect.Type, path string, visit func(path string, t reflect.Type)) {
	switch t.Kind() {
	case reflect.Pointer:
		eachStruct(t.Elem(), path, visit)
	case reflect.Slice:
		eachStruct(t.Elem(), path+"[]", visit)
	case reflect.Struct:
		if isQuantity(t) {
			return
		}
		visit(path, t)
		for _, f := range fieldsOf(t) {
			eachStruct(f.typ, member(path, f.name), visit)
		}
	}
}
