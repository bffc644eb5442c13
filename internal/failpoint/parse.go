package failpoint

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// kinds of what a term does.
const (
	off   = iota // nothing: it lets hits pass
	kill         // SIGKILL to this process
	exit         // os.Exit
	sleep        // delay
	fail         // return an error
)

// term is what happens at a number of hits.
type term struct {
	count int // 0: at every one that is left
	kind  int
	code  int
	delay time.Duration
	err   error
}

// parse reads a plan: points separated by ";", each "POINT=TERM->TERM…", a term
// being "[COUNT*]ACTION" for so many hits (without a count for all that are
// left), an action off, kill, exit(CODE), sleep(DURATION), error(TEXT) or
// error(ENOSPC). For example
//
//	log.append.after=20*off->kill; mirror.put.before=3*error(the store is away)
//
// kills the process after its 21st append, and lets three rounds of the mirror fail.
func parse(plan string) (map[Point][]term, error) {
	out := map[Point][]term{}
	for _, part := range strings.Split(plan, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, terms, found := strings.Cut(part, "=")
		p := Point(strings.TrimSpace(name))
		if !found || !slices.Contains(All(), p) {
			return nil, fmt.Errorf("failpoint: %q names no point: see internal/failpoint/points.go", part)
		}
		for _, s := range strings.Split(terms, "->") {
			t, err := parseTerm(strings.TrimSpace(s))
			if err == nil && t.kind == fail && !slices.Contains(fallible, p) {
				err = errors.New("this point returns no error")
			}
			if err != nil {
				return nil, fmt.Errorf("failpoint: %s: %q: %w", p, s, err)
			}
			out[p] = append(out[p], t)
		}
	}
	return out, nil
}

func parseTerm(s string) (term, error) {
	var t term
	if n, rest, found := strings.Cut(s, "*"); found {
		var err error
		if t.count, err = strconv.Atoi(n); err != nil || t.count < 1 {
			return t, errors.New("a count is a number above 0")
		}
		s = rest
	}
	action, arg, has := strings.Cut(s, "(")
	if has && !strings.HasSuffix(arg, ")") {
		return t, errors.New("a bracket is open")
	}
	arg = strings.TrimSuffix(arg, ")")
	var err error
	switch action {
	case "off":
	case "kill":
		t.kind = kill
	case "exit":
		t.kind = exit
		t.code, err = strconv.Atoi(arg)
	case "sleep":
		t.kind = sleep
		t.delay, err = time.ParseDuration(arg)
	case "error":
		t.kind, t.err = fail, errors.New(arg)
		if arg == "ENOSPC" {
			t.err = syscall.ENOSPC
		}
	default:
		err = errors.New("an action is off, kill, exit(CODE), sleep(DURATION) or error(TEXT)")
	}
	return t, err
}
