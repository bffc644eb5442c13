package robustness

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lines makes a history in which each operation ends before the next begins.
func lines(ops ...op) []op {
	for i := range ops {
		if ops[i].Key == "" {
			ops[i].Key = "r/1/0"
		}
		if ops[i].Answer == "" {
			ops[i].Answer = ok
		}
		ops[i].Call = time.Duration(10 * i)
		ops[i].Return = ops[i].Call + 5
	}
	return ops
}

// A model that accepts everything proves nothing: these are histories that must not pass, and their neighbours that must.
func TestModels(t *testing.T) {
	grant := func(attempt int32, fence uint64) op { return op{Kind: opGrant, Attempt: attempt, Fence: fence} }
	seal := func(attempt int32, fence uint64, a answer) op {
		return op{Kind: opSeal, Attempt: attempt, Fence: fence, Answer: a}
	}
	job := func(attempt int32, fence uint64) op { return op{Kind: opJob, Attempt: attempt, Fence: fence} }
	settle := func(attempt int32, fence uint64, a answer) op {
		return op{Kind: opSettle, Attempt: attempt, Fence: fence, Answer: a}
	}
	failJob := func(attempt int32, fence uint64) op { return op{Kind: opFailJob, Attempt: attempt, Fence: fence} }
	reg := func(n, fence uint64, a answer) op {
		return op{Key: "n", Kind: opRegister, Number: n, Fence: fence, Answer: a}
	}
	read := func(n, fence uint64) op { return op{Key: "n", Kind: opRead, Number: n, Fence: fence} }
	for name, c := range map[string]struct {
		good bool
		ops  []op
	}{
		"a whole life":                         {true, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), settle(1, 9, ok))},
		"a lost lease":                         {true, lines(grant(1, 5), grant(2, 7), seal(1, 5, refused), seal(2, 7, ok))},
		"two holders of one attempt":           {false, lines(grant(1, 5), grant(1, 7))},
		"a fence that falls":                   {false, lines(grant(1, 5), grant(2, 4))},
		"sealed with an old fence":             {false, lines(grant(1, 5), grant(2, 7), seal(1, 5, ok))},
		"sealed twice":                         {false, lines(grant(1, 5), seal(1, 5, ok), seal(1, 5, ok))},
		"accepted after a refusal":             {false, lines(grant(1, 5), seal(1, 5, refused), seal(1, 5, ok))},
		"a seal that was lost":                 {false, lines(grant(1, 5), seal(1, 5, ok), grant(1, 8))},
		"a seal that nobody heard of":          {true, lines(grant(1, 5), seal(1, 5, unknown), job(1, 8))},
		"a seal that never came":               {true, lines(grant(1, 5), seal(1, 5, unknown), grant(2, 8), seal(2, 8, ok))},
		"a seal that came late":                {false, lines(grant(1, 5), seal(1, 5, unknown), grant(2, 8), seal(2, 8, ok), job(2, 9), job(1, 10))},
		"judged before it is sealed":           {false, lines(grant(1, 5), job(1, 8))},
		"judged twice":                         {false, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), job(1, 10), settle(1, 9, ok))},
		"settled twice":                        {false, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), settle(1, 9, ok), settle(1, 9, ok))},
		"played again after it settled":        {false, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), settle(1, 9, ok), grant(2, 12))},
		"judged again":                         {true, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), failJob(1, 9), job(1, 10), settle(1, 10, ok))},
		"played again after it was not judged": {true, lines(grant(1, 5), seal(1, 5, ok), job(1, 9), failJob(1, 9), grant(2, 10))},
		"reads what was written":               {true, lines(reg(3, 1, ok), read(3, 1), reg(2, 0, refused), reg(5, 4, ok), read(5, 4))},
		"a stale read":                         {false, lines(reg(3, 1, ok), reg(5, 4, ok), read(3, 1))},
		"a lower incarnation is let in":        {false, lines(reg(3, 1, ok), reg(2, 4, ok))},
		"a higher incarnation is refused":      {false, lines(reg(3, 1, ok), reg(4, 0, refused))},
		"a registration that nobody heard of":  {true, lines(reg(3, 1, ok), reg(5, 0, unknown), read(5, 4), reg(4, 0, refused))},
		"a registration that came late":        {true, lines(reg(3, 1, ok), reg(5, 0, unknown), read(3, 1), read(5, 4))},
		"a registration that is forgotten":     {false, lines(reg(3, 1, ok), reg(5, 0, unknown), read(5, 4), read(3, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			err := linear(c.ops, filepath.Join(t.TempDir(), "history"))
			if c.good {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "not linearizable")
			}
		})
	}
}
