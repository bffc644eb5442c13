package main

import (
	"fmt"
	"math"
	"strconv"
)

// line is one figure with its floor.
type line struct {
	name  string
	value float64
	unit  string
	floor bound
}

// bound is what a figure must keep to.
type bound struct {
	limit float64
	most  bool // the figure must not be above the limit; else not below
}

func atMost(x float64) bound  { return bound{x, true} }
func atLeast(x float64) bound { return bound{x, false} }

// ok reports whether the figure is a number and keeps to its floor.
func (l line) ok() bool {
	if math.IsNaN(l.value) || math.IsInf(l.value, 0) {
		return false
	}
	if l.floor.most {
		return l.value <= l.floor.limit
	}
	return l.value >= l.floor.limit
}

// String is the line as it is printed, in columns.
func (l line) String() string {
	sign, word := ">=", "short"
	if l.floor.most {
		sign = "<="
	}
	if l.ok() {
		word = "ok"
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
