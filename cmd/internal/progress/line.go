package progress

import (
	"fmt"
	"strings"
	"time"
)

// Line renders a status on one line, for output that is not a terminal. The
// order and the words are stable; what is not known is left out:
//
//	step 40/150 version 40 live 40 reward 0.34 eval 0.41@40 pass 112 fail 398 indet 0 lag 1 212 ep/s 3.1k tok/s sandboxes 24 waits for groups: 12 of 16 complete (4s) eta 1m10s
//
// A state other than running comes first. With several suites their names are
// given: eval held-out 0.41@40 eval other 0.2@40.
func Line(s Status) string {
	var b strings.Builder
	add := func(format string, args ...any) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, format, args...)
	}
	if s.State != "" && s.State != "running" {
		add("%s", s.State)
	}
	add("step %d/%d version %d", s.Step, s.Steps, s.Head)
	if s.Live >= 0 {
		add("live %d", s.Live)
	}
	if len(s.Rewards) > 0 {
		add("reward %s", reward2(s.reward()))
	}
	names, done := s.suites()
	for _, name := range names {
		last := done[name][len(done[name])-1]
		if len(names) > 1 {
			add("eval %s %s@%d", name, reward2(last.Reward), last.Version)
		} else {
			add("eval %s@%d", reward2(last.Reward), last.Version)
		}
	}
	add("pass %d fail %d indet %d lag %d", s.Pass, s.Fail, s.Indeterminate, s.LagMax)
	add("%s ep/s %s tok/s sandboxes %d", short(s.EpisodesPerSecond), short(s.TokensPerSecond), s.Sandboxes)
	if s.WaitsFor != "" {
		what, _, _ := strings.Cut(oneLine(s.WaitsFor), ";") // what follows is detail, and changes from line to line
		add("waits for %s", what)
		if s.Since >= time.Second {
			add("(%s)", took(s.Since))
		}
	}
	if s.ETA > 0 {
		add("eta %s", took(s.ETA))
	}
	return b.String()
}
