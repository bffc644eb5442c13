// Package figure defines what benchmarks print: one figure a line, with the
// floor that it must keep to.
package figure

import (
	"fmt"
	"math"
	"strconv"
)

// Line is one figure with its floor.
type Line struct {
	name  string
	value float64
	unit  string
	floor Bound
	noisy bool
}

// New returns a line.
func New(name string, value float64, unit string, floor Bound) Line {
	return Line{name: name, value: value, unit: unit, floor: floor}
}

// Noisy is the line for a machine that was too noisy to measure: a figure that
// is short then says so, and does not count as short.
func (l Line) Noisy() Line {
	l.noisy = true
	return l
}

// Bound is what a figure must keep to.
type Bound struct {
	limit float64
	most  bool // the figure must not be above the limit; else not below
}

// AtMost bounds a figure from above.
func AtMost(x float64) Bound { return Bound{x, true} }

// AtLeast bounds a figure from below.
func AtLeast(x float64) Bound { return Bound{x, false} }

// OK reports whether the figure is a number and keeps to its floor.
func (l Line) OK() bool {
	if math.IsNaN(l.value) || math.IsInf(l.value, 0) {
		return false
	}
	if l.floor.most {
		return l.value <= l.floor.limit
	}
	return l.value >= l.floor.limit
}

// Fails reports whether the figure is short and the machine is not to blame.
func (l Line) Fails() bool { return !l.OK() && !l.noisy }

// String is the line as it is printed, in columns.
func (l Line) String() string {
	sign, word := ">=", "short"
	if l.floor.most {
		sign = "<="
	}
	switch {
	case l.OK():
		word = "ok"
	case l.noisy:
		word = "noisy"
	}
	return fmt.Sprintf("%-30s %10s %-12s %9s  %s", l.name, number(l.value), l.unit, sign+number(l.floor.limit), word)
}

// number has three digits that count, and never an exponent.
func number(x float64) string {
	a := math.Abs(x)
	switch {
	case a >= 100 || x == 0:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 10:
		return trim(strconv.FormatFloat(x, 'f', 1, 64))
	case a >= 1:
		return trim(strconv.FormatFloat(x, 'f', 2, 64))
	}
	return trim(strconv.FormatFloat(x, 'f', 4, 64))
}

// trim drops zeros behind the point.
func trim(s string) string {
	end := len(s)
	for s[end-1] == '0' {
		end--
	}
	if s[end-1] == '.' {
		end--
	}
	return s[:end]
}
