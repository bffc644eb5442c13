package policy

import (
	"errors"
	"fmt"
)

// Span says that Length sampled tokens from offset Start were made by Version.
// Offsets count sampled tokens only, not prompt or observation tokens.
type Span struct {
	Start, Length int32
	Version       Version
}

// ErrSpans reports spans that have a gap, an overlap or the wrong total.
var ErrSpans = errors.New("spans do not cover the sampled tokens exactly once")

// Extend appends n tokens of version v, merging with the last span where the version is the same.
func Extend(spans []Span, v Version, n int32) []Span {
	if n <= 0 {
		return spans
	}
	if k := len(spans); k > 0 {
		last := &spans[k-1]
		if last.Version == v {
			last.Length += n
			return spans
		}
		return append(spans, Span{Start: last.Start + last.Length, Length: n, Version: v})
	}
	return append(spans, Span{Length: n, Version: v})
}

// CheckSpans returns ErrSpans unless spans cover [0, total) in order without gaps.
func CheckSpans(spans []Span, total int32) error {
	var at int32
	for i, s := range spans {
		if s.Start != at || s.Length <= 0 || s.Version < 0 {
			return fmt.Errorf("policy: span %d (%d,%d,v%d) at offset %d: %w", i, s.Start, s.Length, s.Version, at, ErrSpans)
		}
		at += s.Length
	}
	if at != total {
		return fmt.Errorf("policy: spans cover %d of %d tokens: %w", at, total, ErrSpans)
	}
	return nil
}

// Range returns the lowest and highest version in spans; ok is false when there are none.
func Range(spans []Span) (lowest, highest Version, ok bool) {
	for i, s := range spans {
		if i == 0 || s.Version < lowest {
			lowest = s.Version
		}
		if i == 0 || s.Version > highest {
			highest = s.Version
		}
	}
	return lowest, highest, len(spans) > 0
}
