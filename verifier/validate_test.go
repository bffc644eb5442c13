package verifier

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/envpool"
)

func runValidateCases(t *testing.T, host envpool.Host) {
	for _, c := range []struct {
		name, test, solve string
		says              string // empty: the task is good
	}{
		{"good", compare, "read -r d < question; echo $d > answer.txt\n", ""},
		{"no solution", compare, "", "there is no solution/solve.sh"},
		{"wrong solution", compare, "echo 3 > answer.txt\n", "solution fails (reward 0)"},
		{"work outside the artifacts", compare, "echo 7 > elsewhere.txt\n", "it left none of the artifacts"},
		{"solution breaks", compare, "echo oh no >&2; exit 5\n", "solution ended with code 5: oh no"},
		{"tests accept nothing", "echo 1 > /logs/verifier/reward.txt\n", "echo 7 > answer.txt\n", "doing nothing passes (reward 1)"},
		{"tests write nothing", "exit 0\n", "echo 7 > answer.txt\n", "solution is indeterminate (malformed_output)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tk := makeTask(t, c.test, c.solve)
			tk.ID = c.name // a name of its own on a host that is shared
			r, err := Validate(context.Background(), host, tk)
			require.NoError(t, err)
			require.Equal(t, c.name, r.Task)
			if c.says == "" {
				require.Empty(t, r.Problems)
				require.True(t, r.OK())
				return
			}
			require.False(t, r.OK())
			require.Contains(t, r.Problems[0], c.says)
		})
	}
}

func TestValidate(t *testing.T) { runValidateCases(t, newDirHost(t)) }

func TestValidateInfrastructure(t *testing.T) {
	host := newDirHost(t)
	host.onClaim = func(int) error { return envpool.ErrNoSlot }
	_, err := Validate(context.Background(), host, makeTask(t, compare, "echo 7 > answer.txt\n"))
	require.ErrorIs(t, err, ErrInfrastructure)
	require.ErrorIs(t, err, envpool.ErrNoSlot)
}
