package robustness

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// phase is where a member of a group is.
type phase int

const (
	queued phase = iota
	leased
	sealed
	settled
)

// member is the state of one key of the model: an episode of a group, whoever
// plays it. What nobody was told is not in it: a lease may end, and a group be
// dropped, at any moment.
type member struct {
	phase   phase
	attempt int32
	fence   uint64 // the highest that was granted
	holds   uint64 // fence of the lease that stands; 0 is none
}

// node is the state of a key of the other model, which reads look at.
type node struct {
	number uint64 // incarnation
	fence  uint64
}

// next returns the states in which an operation may leave a member; none means that it cannot have happened.
func (m member) next(o op) []member {
	if o.Answer == unknown {
		o.Answer = ok
		return append(m.next(o), m)
	}
	lost := member{phase: queued, attempt: m.attempt + 1, fence: m.fence}
	mine := m.attempt == o.Attempt && m.holds == o.Fence && m.holds != 0
	gone := func(after member) []member { // refused: it had been lost, or is lost to someone else
		if mine {
			return []member{after}
		}
		return []member{m}
	}
	switch o.Kind {
	case opGrant:
		if o.Fence <= m.fence || o.Attempt < m.attempt || m.phase == settled || o.Attempt == m.attempt && m.phase != queued {
			return nil
		}
		return []member{{phase: leased, attempt: o.Attempt, fence: o.Fence, holds: o.Fence}}
	case opJob:
		if o.Fence <= m.fence || o.Attempt != m.attempt || m.phase != sealed {
			return nil
		}
		return []member{{phase: sealed, attempt: m.attempt, fence: o.Fence, holds: o.Fence}}
	case opSeal, opFail:
		switch {
		case o.Answer == refused && m.phase == leased:
			return gone(lost)
		case o.Answer == refused:
			return []member{m}
		case m.phase != leased || !mine:
			return nil
		case o.Kind == opFail:
			return []member{lost}
		}
		return []member{{phase: sealed, attempt: m.attempt, fence: m.fence}}
	case opSettle, opFailJob:
		waits := member{phase: sealed, attempt: m.attempt, fence: m.fence}
		switch {
		case o.Answer == refused && m.phase == sealed:
			return gone(waits)
		case o.Answer == refused:
			return []member{m}
		case m.phase != sealed || !mine:
			return nil
		case o.Kind == opFailJob: // judged again, or played again when that was tried often enough
			return []member{waits, lost}
		}
		return []member{{phase: settled, attempt: m.attempt, fence: m.fence}}
	}
	return nil
}

// next is that of a node: a register that only rises.
func (n node) next(o op) []node {
	higher := node{number: o.Number, fence: o.Fence}
	switch {
	case o.Kind == opRead && o.Number == n.number && o.Fence == n.fence:
		return []node{n}
	case o.Kind == opRegister && o.Answer == ok && o.Number > n.number && o.Fence > n.fence:
		return []node{higher}
	case o.Kind == opRegister && o.Answer == refused && o.Number <= n.number:
		return []node{n}
	}
	return nil
}

// keyed splits a history by key.
func keyed(history []porcupine.Operation) [][]porcupine.Operation {
	var order []string
	by := map[string][]porcupine.Operation{}
	for _, o := range history {
		k := o.Input.(op).Key
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], o)
	}
	out := make([][]porcupine.Operation, len(order))
	for i, k := range order {
		out[i] = by[k]
	}
	return out
}

// episodes is the model of what is leased: granted to at most one holder at a
// time, accepted only with the newest fence, and only once.
func episodes() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: keyed,
		Init:      func() []any { return []any{member{attempt: 1}} },
		Step: func(state, input, _ any) []any {
			var out []any
			for _, s := range state.(member).next(input.(op)) {
				out = append(out, s)
			}
			return out
		},
		Equal:             func(a, b any) bool { return a.(member) == b.(member) },
		DescribeOperation: describe,
		DescribeState: func(s any) string {
			m := s.(member)
			return fmt.Sprintf("%s attempt %d, fence %d, held with %d", [...]string{"queued", "leased", "sealed", "settled"}[m.phase], m.attempt, m.fence, m.holds)
		},
	}
	return m.ToModel()
}

// nodes is the model of registrations and reads: linearizable, so that a read
// sees what was acknowledged before it began.
func nodes() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: keyed,
		Init:      func() []any { return []any{node{}} },
		Step: func(state, input, output any) []any {
			n, o := state.(node), input.(op)
			if o.Kind == opRegister && o.Answer == unknown {
				if o.Number > n.number { // its fence is not known: some read will tell
					return []any{n, node{number: o.Number, fence: output.(uint64)}}
				}
				return []any{n}
			}
			var out []any
			for _, s := range n.next(o) {
				out = append(out, s)
			}
			return out
		},
		Equal:             func(a, b any) bool { return a.(node) == b.(node) },
		DescribeOperation: describe,
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s.(node)) },
	}
	return m.ToModel()
}

func describe(input, _ any) string {
	o := input.(op)
	var b strings.Builder
	fmt.Fprintf(&b, "%s", o.Kind)
	if o.Attempt > 0 {
		fmt.Fprintf(&b, " attempt %d", o.Attempt)
	}
	if o.Number > 0 {
		fmt.Fprintf(&b, " %d", o.Number)
	}
	if o.Fence > 0 {
		fmt.Fprintf(&b, " fence %d", o.Fence)
	}
	return b.String() + ": " + string(o.Answer)
}

// split turns a history into the operations of the two models. What is unknown
// has an open end.
func split(ops []op) (eps, regs []porcupine.Operation) {
	var end time.Duration
	fences := map[string]uint64{} // of registrations, by key and number, as a read saw them
	for _, o := range ops {
		end = max(end, o.Call, o.Return)
		if o.Kind == opRead {
			fences[fmt.Sprint(o.Key, o.Number)] = o.Fence
		}
	}
	for _, o := range ops {
		p := porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Call), Return: int64(o.Return)}
		if o.Answer == unknown {
			p.Return = int64(end) + 1
		}
		if o.Kind == opRegister || o.Kind == opRead {
			p.Output = fences[fmt.Sprint(o.Key, o.Number)]
			regs = append(regs, p)
		} else {
			eps = append(eps, p)
		}
	}
	return eps, regs
}

// checkLimit bounds each of the two checks; not to be done by then is a failure.
const checkLimit = time.Minute

// linear checks both models and, when one fails, draws the history of it.
func linear(ops []op, picture string) error {
	eps, regs := split(ops)
	for _, c := range []struct {
		name    string
		model   porcupine.Model
		history []porcupine.Operation
	}{{"episodes", episodes(), eps}, {"registrations", nodes(), regs}} {
		result, info := porcupine.CheckOperationsVerbose(c.model, c.history, checkLimit)
		if result == porcupine.Ok {
			continue
		}
		where := picture + "-" + c.name + ".html"
		if err := porcupine.VisualizePath(c.model, info, where); err != nil {
			where = err.Error()
		}
		if result == porcupine.Unknown {
			return fmt.Errorf("the history of %s could not be checked within %s: %s", c.name, checkLimit, where)
		}
		return fmt.Errorf("the history of %s is not linearizable: %s", c.name, where)
	}
	return nil
}
