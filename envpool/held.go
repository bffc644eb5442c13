package envpool

import "github.com/rlfleet/rlfleet/coordinator/lease"

// Held returns the resource and fence of every sandbox that has a slot, so that
// the host can ask which of them still have their lease. A claim that stands in
// line ends with its caller.
func (p *Pool) Held() []lease.Token {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]lease.Token, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		if s.slot == nil {
			continue
		}
		out = append(out, lease.Token{Resource: s.name, Fence: s.fence})
	}
	return out
}
