// Package robustness breaks a cluster of real processes and checks what it promised.
package robustness

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
