package main

import (
	"math"
	"slices"
)

// distance is the two-sample Kolmogorov–Smirnov statistic: the greatest
// difference between the two empirical distribution functions. It is NaN when a sample is empty.
func distance(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return math.NaN()
	}
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	most := 0.0
	for i, j := 0, 0; i < len(a) && j < len(b); {
		x := min(a[i], b[j])
		for i < len(a) && a[i] == x { // ties of both samples are passed together
			i++
		}
		for j < len(b) && b[j] == x {
			j++
		}
		most = max(most, math.Abs(float64(i)/float64(len(a))-float64(j)/float64(len(b))))
	}
	return most
}

// quantile returns the value that a share q of the sample does not exceed.
func quantile(s []float64, q float64) float64 {
	s = slices.Clone(s)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
