package coordinator

import (
	"sync"
	"time"
)

// blink is the shortest time that is taken for a leader's standing still.
const blink = time.Second

// reign is one stretch of leadership, from its barrier on. It is the only
// source of log time.
type reign struct {
	term  uint64
	base  int64         // log time when it began, nanoseconds
	at    time.Time     // the same moment by this node's monotonic clock
	blink time.Duration // the most that passes between two looks at the clock; 0 is no limit
	stuck func() bool   // whether the log takes nothing now; nil is never

	mu   sync.Mutex // guards seen, lost
	seen time.Time  // the last look
	lost time.Duration
}

// newReign begins a reign at the log time of the last entry.
func (n *Node) newReign(base int64) *reign {
	r := &reign{term: n.raft.CurrentTerm(), base: base, at: time.Now(), blink: max(blink, 4*n.cfg.Tick)} // the ticker looks in every Tick
	r.stuck = func() bool { return n.queue.oldest() > r.blink }
	if r.base == 0 {
		r.base = r.at.UnixNano() // a new cluster starts at a readable time; 0 means "never" in records
	}
	return r
}

// now is the log time: what the last entry before the reign was stamped with
// plus the leader's monotonic time since, less the time in which no renewal had
// a chance: while the process did not run, or the log took nothing. Wall clocks
// that jump, time spent down and disks that hang do not move it, so they expire
// nothing (etcd#15247). It never falls.
func (r *reign) now() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen.IsZero() {
		r.seen = r.at
	}
	now := time.Now()
	passed := now.Sub(r.seen)
	switch {
	case r.stuck != nil && r.stuck():
		r.lost += passed
	case r.blink > 0 && passed > r.blink:
		r.lost += passed - r.blink
	}
	r.seen = now
	return r.base + int64(now.Sub(r.at)-r.lost)
}
