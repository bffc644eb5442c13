package objective

import (
	"fmt"
	"math"
)

// Component is one part of a member's reward; a nil Value is a missing one, which is not 0.
type Component struct {
	Weight   float64
	Value    *float64
	Required bool
}

// Rewards returns Σ weight·value for each member of a group, nil where a required
// component is missing. An optional component that is missing in any member with a
// reward is left out for the whole group, so that members stay comparable. All
// members list the same components in the same order, else ErrShape.
func Rewards(group [][]Component) ([]*float64, error) {
	var left []bool
	for i, member := range group {
		if i == 0 {
			left = make([]bool, len(member))
		}
		if len(member) != len(left) {
			return nil, fmt.Errorf("objective: rewards: member %d has %d components, others %d: %w", i, len(member), len(left), ErrShape)
		}
		if !complete(member) {
			continue // out of the group, it must not change the others
		}
		for j, c := range member {
			left[j] = left[j] || c.Value == nil
		}
	}
	out := make([]*float64, len(group))
	for i, member := range group {
		if !complete(member) {
			continue
		}
		var sum float64
		for j, c := range member {
			if !left[j] {
				sum += c.Weight * *c.Value
			}
		}
		if math.IsNaN(sum) || math.IsInf(sum, 0) {
			return nil, fmt.Errorf("objective: rewards: member %d: %w", i, ErrNotFinite)
		}
		out[i] = &sum
	}
	return out, nil
}

func complete(member []Component) bool {
	for _, c := range member {
		if c.Required && c.Value == nil {
			return false
		}
	}
	return true
}
