package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing wrong with a spec. Parse and Load return one Error, or
// several of them joined in the order of their positions (see Errors).
type Error struct {
	File   string // as given to Parse; "--set" when the value came from there
	Line   int    // from 1; 0 where a position has no meaning
	Column int    // from 1
	Path   string // of the field, such as spec.envs[0].groupSize
	Found  string // what the spec says
	Want   string // what would be accepted
	Msg    string // one sentence; may be empty where Found and Want say all

	stray bool // an unknown or repeated key: what it was meant for is in doubt, so all of its mapping is
	cause error
}

// Error returns "file:line:column: path: sentence (found X, want Y)" on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	b.WriteString(": ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Msg)
	var rest []string
	if e.Found != "" && !strings.Contains(e.Msg, e.Found) {
		rest = append(rest, "found "+e.Found)
	}
	if e.Want != "" && !strings.Contains(e.Msg, e.Want) {
		rest = append(rest, "want "+e.Want)
	}
	switch tail := strings.Join(rest, ", "); {
	case tail == "":
	case e.Msg == "":
		b.WriteString(tail)
	default:
		b.WriteString(" (" + tail + ")")
	}
	return b.String()
}

// Unwrap returns the error of the operating system behind a file that cannot be read, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Errors returns each Error in err, in order; none if err is nil or of another kind.
func Errors(err error) []*Error {
	switch e := err.(type) {
	case nil:
		return nil
	case *Error:
		return []*Error{e}
	case interface{ Unwrap() []error }:
		var all []*Error
		for _, one := range e.Unwrap() {
			all = append(all, Errors(one)...)
		}
		return all
	}
	return Errors(errors.Unwrap(err))
}

// join sorts errs by position, those of --set last, and joins them; nil if there are none.
func join(errs []*Error) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b *Error) int {
		aSet, bSet := a.File == fromSet, b.File == fromSet
		if aSet != bSet {
			if aSet {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(errs) == 1 {
		return errs[0]
	}
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// clip shortens a found value for a message.
func clip(s string) string {
	const most = 60
	s = strings.ReplaceAll(s, "\n", `\n`)
	r := []rune(s)
	if len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
