// Package objective holds the formulas of training: rewards, advantages, losses, aggregation, and the measures taken along.
//
// It is a leaf: pure functions of numbers, with their sources and with golden
// values in the tests. In the formulas μ is the behaviour policy, whose
// log-probability was recorded with the token, π the policy being trained,
// ρ = π/μ.
package objective

import "errors"

// The kinds of failure.
var (
	ErrSingleton = errors.New("group has a single member in its statistics") // a group-relative advantage needs two
	ErrNotFinite = errors.New("value is not finite")
	ErrKind      = errors.New("formula is not known")
	ErrShape     = errors.New("shapes do not agree")
)
