package robustness

import (
	"math/rand/v2"
	"sync"
	"time"
)

// flow is what bytes sent by one party to another meet.
type flow struct {
	cut   bool          // they do not arrive, and nobody is told
	delay time.Duration // on the way
	reset float64       // chance that a piece breaks its connection instead
}

// network holds what is wrong between the parties: nodes by name, and "client"
// for everybody else. Each direction is a flow of its own.
type network struct {
	mu      sync.Mutex // guards everything below
	rng     *rand.Rand
	flows   map[[2]string]flow
	changed chan struct{} // closed at the next change
}

func newNetwork(seed uint64) *network {
	return &network{rng: rand.New(rand.NewPCG(seed, 7)), flows: map[[2]string]flow{}, changed: make(chan struct{})}
}

// set changes what goes from one party to another; "*" is every party.
func (n *network) set(from, to string, f flow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flows[[2]string{from, to}] = f
	n.wakeLocked()
}

// heal makes everything well.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.flows)
	n.wakeLocked()
}

func (n *network) wakeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// at returns the flow from one party to another and a channel that closes when it may have changed.
func (n *network) at(from, to string) (flow, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out flow
	for _, k := range [][2]string{{from, to}, {"*", to}, {from, "*"}, {"*", "*"}} {
		f := n.flows[k]
		out.cut = out.cut || f.cut
		out.delay = max(out.delay, f.delay)
		out.reset = max(out.reset, f.reset)
	}
	return out, n.changed
}

// broken draws whether a piece breaks its connection.
func (n *network) broken(f flow) bool {
	if f.reset == 0 {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Float64() < f.reset
}
