// Package lease defines fenced, expiring claims on a resource.
//
// A lease never makes two holders impossible; only its fence, checked where
// the write lands, does. It is a leaf, imported by everyone who holds a lease.
package lease

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Fence is raised in the replicated state at every grant; a write with a lower fence is refused where it lands.
type Fence uint64

// ErrFenced reports that a newer holder exists: stop at once and drop the work.
var ErrFenced = errors.New("lease is fenced: a newer holder exists")

// Token is a granted claim.
type Token struct {
	Resource    string // for example "episode/files-1/12/3"
	Holder      string // node name
	Incarnation uint64 // of the holder; a higher one ends all older leases of that name
	Fence       Fence
	TTL         time.Duration
}

// Guard remembers the highest fence seen for each resource and refuses lower
// ones. The zero value is ready; it is safe for concurrent use.
type Guard struct {
	mu   sync.Mutex // guards high
	high map[string]Fence
}

// Check returns ErrFenced when f is lower than a fence seen before for the resource; otherwise it remembers f.
func (g *Guard) Check(resource string, f Fence) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f < g.high[resource] {
		return fmt.Errorf("lease: %s: fence %d below %d: %w", resource, f, g.high[resource], ErrFenced)
	}
	if g.high == nil {
		g.high = map[string]Fence{}
	}
	g.high[resource] = f
	return nil
}

// Forget drops a resource that can never be claimed again.
func (g *Guard) Forget(resource string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.high, resource)
}

// StopAt returns when a holder must stop acting: TTL minus margin after it
// SENT the last acknowledged renewal, by its own monotonic clock.
func (t Token) StopAt(sent time.Time, margin time.Duration) time.Time {
	return sent.Add(t.TTL - margin)
}
