package trajectory

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/rlfleet/rlfleet/policy"
)

// fault keeps the first broken rule of a row.
type fault struct {
	table   Table
	episode string
	step    int32 // −1 where rows are not steps
	err     error
}

// require remembers the first rule that does not hold, with the column that breaks it.
func (f *fault) require(ok bool, column, format string, args ...any) {
	if ok || f.err != nil {
		return
	}
	where := fmt.Sprintf("%s: episode %q", f.table, f.episode)
	if f.step >= 0 {
		where += fmt.Sprintf(" step %d", f.step)
	}
	f.err = fmt.Errorf("trajectory: %s column %s: %s: %w", where, column, fmt.Sprintf(format, args...), ErrInvalid)
}

// checkValue applies the rules of a column's type: a value of an enumeration, a
// digest where one is declared, a time that is set, a finite number. path is the column's full name.
func (n *node) checkValue(v reflect.Value, path string, f *fault) {
	if n.pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch n.kind {
	case kindEnum:
		s := v.String()
		if s == "" && n.null {
			return
		}
		for _, e := range n.enum {
			if e == s {
				return
			}
		}
		f.require(false, path, "%q is not one of %v", s, n.enum)
	case kindDigest:
		d := policy.Digest(v.String())
		if d == "" && n.null {
			return
		}
		f.require(d.Validate() == nil, path, "%q is not a digest", string(d))
	case kindTimestamp:
		t := v.Addr().Interface().(*time.Time)
		f.require(!t.IsZero(), path, "is not set")
	case kindFloat32, kindFloat64:
		x := v.Float()
		f.require(!math.IsNaN(x) && !math.IsInf(x, 0), path, "%g is not finite: null stands for missing", x)
	case kindStruct:
		for _, c := range n.fields {
			c.checkValue(v.Field(c.field), path+"."+c.name, f)
		}
	case kindList:
		n.checkList(v, path, f)
	}
}

func (n *node) checkList(v reflect.Value, path string, f *fault) {
	switch n.item.kind {
	case kindFloat32:
		for i, x := range *v.Addr().Interface().(*[]float32) {
			if x-x != 0 { // NaN or infinite
				f.require(false, path, "value %d is %g, not finite", i, x)
			}
		}
	case kindStruct, kindFloat64, kindEnum:
		for i := range v.Len() {
			n.item.checkValue(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
	}
}
