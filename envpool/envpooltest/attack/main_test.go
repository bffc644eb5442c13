//go:build linux

package main

import "testing"

// Each line of the output must say which try it is about.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if a.name == "" || seen[a.name] || a.try == nil {
			t.Errorf("attack %q has no name, no try, or another's name", a.name)
		}
		seen[a.name] = true
	}
}
