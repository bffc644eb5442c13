package experiment

import (
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
)

// CheckOverlap returns an *Error at the eval suite with that index if one of
// its tasks is also trained on. The rule on sources and splits cannot see
// equal tasks in different places; whoever has read the tasks calls this with
// their digests.
func (e *Experiment) CheckOverlap(index int, train, eval []policy.Digest) error {
	trained := make(map[policy.Digest]bool, len(train))
	for _, d := range train {
		trained[d] = true
	}
	shared := 0
	var first policy.Digest
	for _, d := range eval {
		if trained[d] {
			if shared == 0 {
				first = d
			}
			shared++
		}
	}
	if shared == 0 {
		return nil
	}
	path := suite(index, "tasks")
	o := position(e.origins, path)
	return &Error{
		File: o.File, Line: o.Line, Column: o.Column, Path: path,
		Found: fmt.Sprintf("%d of %d, the first %s", shared, len(eval), first), Want: "no task in common",
		Msg: "train and eval tasks overlap",
	}
}
