package state

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// The roles that register.
const (
	RoleHost      = "host"
	RoleEngine    = "engine"
	RoleRollout   = "rollout"
	RoleVerifier  = "verifier"
	RoleTrainer   = "trainer"
	RolePublisher = "publisher"
)

func nodeKey(role, name string) string { return role + "/" + name }

// node returns the registered node of this incarnation, or nil when it is unknown, older or fenced.
func (s *State) node(role string, ref *raftlog.NodeRef) *raftlog.Node {
	n, found := s.nodes.Get(nodeKey(role, ref.GetName()))
	if !found || ref.GetRole() != role || n.Incarnation != ref.Incarnation || n.State == raftlog.NodeState_NODE_STATE_FENCED {
		return nil
	}
	return n
}

func (s *State) putNode(n *raftlog.Node) {
	k := nodeKey(n.Role, n.Name)
	old, found := s.nodes.Set(k, n)
	if s.noting && (!found || told(old, n)) {
		s.note(KindNode, k)
	}
}

// told reports whether a node changed in more than its expiry.
func told(a, b *raftlog.Node) bool {
	return a.Incarnation != b.Incarnation || a.State != b.State || a.Address != b.Address || a.Fence != b.Fence ||
		a.Agents != b.Agents || a.Verifiers != b.Verifiers || a.AgentsReserved != b.AgentsReserved ||
		a.VerifiersReserved != b.VerifiersReserved || a.Version != b.Version || a.Sandboxes != b.Sandboxes || !maps.Equal(a.Labels, b.Labels)
}

func fencedNode(ref *raftlog.NodeRef) *raftlog.Result {
	return refuse(raftlog.Code_CODE_FENCED, fmt.Sprintf("%s %s incarnation %d is not registered; register again with a higher one", ref.GetRole(), ref.GetName(), ref.GetIncarnation()))
}

// register lets a node in; a higher incarnation of a name ends the older one's leases at once.
func (s *State) register(r *raftlog.Register) *raftlog.Result {
	ref := r.GetNode()
	switch ref.GetRole() {
	case RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher:
	default:
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("role %q is not known", ref.GetRole()))
	}
	if ref.Name == "" || ref.Incarnation == 0 {
		return refuse(raftlog.Code_CODE_INVALID, "a node needs a name and an incarnation above 0")
	}
	if r.Agents < 0 || r.Verifiers < 0 {
		return refuse(raftlog.Code_CODE_INVALID, fmt.Sprintf("a host cannot take %d agents and %d verifiers", r.Agents, r.Verifiers))
	}
	old, found := s.nodes.Get(nodeKey(ref.Role, ref.Name))
	if found && (ref.Incarnation < old.Incarnation || (ref.Incarnation == old.Incarnation && old.State == raftlog.NodeState_NODE_STATE_FENCED)) {
		return fencedNode(ref)
	}
	if found && ref.Incarnation == old.Incarnation {
		return &raftlog.Result{Result: &raftlog.Result_Register{Register: &raftlog.RegisterResult{Fence: old.Fence, TtlNs: LeaseTTL}}}
	}
	n := &raftlog.Node{
		Role: ref.Role, Name: ref.Name, Incarnation: ref.Incarnation, State: raftlog.NodeState_NODE_STATE_READY,
		Address: r.Address, Fence: s.mint(), ExpiryNs: s.clock.NowNs + LeaseTTL,
		Agents: r.Agents, Verifiers: r.Verifiers, Version: -1, Labels: r.Labels,
	}
	if found {
		s.endNodeLeases(old, lostReason(old.Role))
		if cur, still := s.nodes.Get(nodeKey(ref.Role, ref.Name)); still { // reservations survive: their holders give them back
			n.AgentsReserved, n.VerifiersReserved = cur.AgentsReserved, cur.VerifiersReserved
		}
	}
	s.putNode(n)
	return &raftlog.Result{Result: &raftlog.Result_Register{Register: &raftlog.RegisterResult{Fence: n.Fence, TtlNs: LeaseTTL}}}
}

// deregister ends a node that leaves in order.
func (s *State) deregister(d *raftlog.Deregister) *raftlog.Result {
	n, found := s.nodes.Get(nodeKey(d.GetNode().GetRole(), d.GetNode().GetName()))
	if !found || n.Incarnation != d.Node.Incarnation {
		return ok()
	}
	s.endNodeLeases(n, outcome.Drained)
	s.fence(n)
	return ok()
}

func lostReason(role string) outcome.EndReason {
	if role == RoleVerifier {
		return outcome.VerifierLost
	}
	return outcome.WorkerLost
}

func (s *State) fence(n *raftlog.Node) {
	cur, found := s.nodes.Get(nodeKey(n.Role, n.Name))
	if !found {
		return
	}
	f := cloneNode(cur)
	f.State, f.Version = raftlog.NodeState_NODE_STATE_FENCED, -1
	s.putNode(f)
}

// endNodeLeases takes everything from a node's incarnation.
func (s *State) endNodeLeases(n *raftlog.Node, why outcome.EndReason) {
	mine := func(l *raftlog.Lease) bool {
		return l != nil && l.Holder == n.Name && l.Incarnation == n.Incarnation
	}
	switch n.Role {
	case RoleRollout:
		for _, k := range keys(&s.leased) {
			if ep, found := s.episodes.Get(k); found && mine(ep.Lease) {
				s.loseAttempt(ep, why, "rollout worker "+n.Name+" went away")
			}
		}
	case RoleVerifier:
		for _, k := range keys(&s.judged) {
			if j, found := s.jobs.Get(k); found && mine(j.Lease) {
				s.requeueJob(j, "verifier "+n.Name+" went away", false)
			}
		}
	case RoleTrainer:
		for _, g := range s.gangs.Values() {
			if mine(g.Lease) {
				g = proto.CloneOf(g)
				g.Lease = nil
				s.gangs.Set(g.Run, g)
			}
		}
	case RolePublisher:
		for _, p := range s.publish.Values() {
			if mine(p.Lease) {
				p = proto.CloneOf(p)
				p.Lease = nil
				s.publish.Set(p.Run, p)
			}
		}
	}
}

func keys(t *set) []string { return t.Keys() }

// heartbeat renews a node and what it says it still holds; it answers with what it has lost.
func (s *State) heartbeat(h *raftlog.Heartbeat) *raftlog.Result {
	n := s.node(h.GetNode().GetRole(), h.GetNode())
	res := &raftlog.HeartbeatResult{}
	result := &raftlog.Result{Result: &raftlog.Result_Heartbeat{Heartbeat: res}}
	if n == nil {
		res.Fenced, res.Lost = true, h.Held
		return result
	}
	n = cloneNode(n)
	n.ExpiryNs = s.clock.NowNs + LeaseTTL
	n.State = raftlog.NodeState_NODE_STATE_READY
	if h.Draining {
		n.State = raftlog.NodeState_NODE_STATE_DRAINING
	}
	switch n.Role {
	case RoleEngine:
		n.Version = h.EngineVersion
	case RoleHost:
		n.Sandboxes = int32(len(h.Held))
	}
	s.putNode(n)
	for _, held := range h.Held {
		if n.Role == RoleHost && s.current(held) || n.Role != RoleHost && s.renew(h.Node, held) {
			continue
		}
		res.Lost = append(res.Lost, held)
	}
	return result
}

// current reports whether a sandbox's lease stands: a host lists the leases it
// serves, which their holders renew, and ends the sandboxes of those it is told are lost.
func (s *State) current(h *raftlog.Held) bool {
	switch kind, key := lease.Split(h.Resource); kind {
	case lease.KindEpisode:
		ep, found := s.episodes.Get(key)
		return found && ep.State == raftlog.EpisodeState_EPISODE_STATE_LEASED && ep.Lease.GetFence() == h.Fence
	case lease.KindVerify:
		j, found := s.jobs.Get(key)
		return found && j.Lease != nil && j.Lease.Fence == h.Fence
	}
	return false
}

// renew extends one lease; false means that it is lost.
func (s *State) renew(ref *raftlog.NodeRef, h *raftlog.Held) bool {
	until := s.clock.NowNs + LeaseTTL
	extend := func(l *raftlog.Lease) *raftlog.Lease {
		e := cloneLease(l)
		e.ExpiryNs = until
		return e
	}
	kind, key := lease.Split(h.Resource)
	switch kind {
	case lease.KindEpisode:
		ep, found := s.episodes.Get(key)
		if !found || ep.State != raftlog.EpisodeState_EPISODE_STATE_LEASED || !holds(ep.Lease, ref, h.Fence) {
			return false
		}
		s.ends.Delete(s.endKey(ep.Run, ep.Lease, endOfEpisode, key))
		ep = cloneEpisode(ep)
		ep.Lease = extend(ep.Lease)
		s.ends.Set(s.endKey(ep.Run, ep.Lease, endOfEpisode, key), struct{}{})
		ep.WaitsFor, ep.WaitsSinceNs = h.WaitsFor, s.clock.NowNs-h.WaitsNs
		s.episodes.Set(key, ep)
	case lease.KindVerify:
		j, found := s.jobs.Get(key)
		if !found || !holds(j.Lease, ref, h.Fence) {
			return false
		}
		s.ends.Delete(s.endKey(j.Run, j.Lease, endOfJob, key))
		j = cloneJob(j)
		j.Lease = extend(j.Lease)
		s.ends.Set(s.endKey(j.Run, j.Lease, endOfJob, key), struct{}{})
		s.jobs.Set(key, j)
	case lease.KindGang:
		g, found := s.gangs.Get(key)
		if !found || !holds(g.Lease, ref, h.Fence) {
			return false
		}
		g = proto.CloneOf(g)
		g.Lease, g.WaitsFor = extend(g.Lease), h.WaitsFor
		s.gangs.Set(key, g)
	case lease.KindPublish:
		p, found := s.publish.Get(key)
		if !found || !holds(p.Lease, ref, h.Fence) {
			return false
		}
		p = proto.CloneOf(p)
		p.Lease, p.WaitsFor = extend(p.Lease), h.WaitsFor
		s.publish.Set(key, p)
	default:
		return false
	}
	return true
}

// freeHost picks the ready host with the most free sandboxes of a quota; nil when none is free.
func (s *State) freeHost(verifier bool) *raftlog.Node {
	var best *raftlog.Node
	var bestFree int32
	s.nodes.Ascend(RoleHost+"/", func(_ string, n *raftlog.Node) bool {
		if n.Role != RoleHost {
			return false
		}
		if f := free(n, verifier); f > bestFree {
			best, bestFree = n, f
		}
		return true
	})
	return best
}

// free counts the sandboxes of a quota that a host can still take.
func free(n *raftlog.Node, verifier bool) int32 {
	switch {
	case n.State != raftlog.NodeState_NODE_STATE_READY:
		return 0
	case verifier:
		return max(0, n.Verifiers-n.VerifiersReserved)
	}
	return max(0, n.Agents-n.AgentsReserved)
}

// sandboxes counts the free sandboxes of a quota on all hosts.
func (s *State) sandboxes(verifier bool) int {
	total := 0
	s.nodes.Ascend(RoleHost+"/", func(_ string, n *raftlog.Node) bool {
		if n.Role == RoleHost {
			total += int(free(n, verifier))
		}
		return n.Role == RoleHost
	})
	return total
}

// adjust changes a host's reservations; giving back to a host that is gone is no error.
func (s *State) adjust(host string, verifier bool, by int32) {
	n, found := s.nodes.Get(nodeKey(RoleHost, host))
	if !found {
		return
	}
	n = cloneNode(n)
	if verifier {
		n.VerifiersReserved = max(0, n.VerifiersReserved+by)
	} else {
		n.AgentsReserved = max(0, n.AgentsReserved+by)
	}
	s.putNode(n)
}

// served reports whether a ready engine serves at least version v.
func (s *State) served(v int64) bool {
	found := false
	s.nodes.Ascend(RoleEngine+"/", func(_ string, n *raftlog.Node) bool {
		found = found || n.Role == RoleEngine && n.State == raftlog.NodeState_NODE_STATE_READY && n.Version >= v
		return n.Role == RoleEngine && !found
	})
	return found
}

// engines returns the ready engines that serve at least version v, by name.
func (s *State) engines(v int64) []*raftlog.Node {
	var out []*raftlog.Node
	s.nodes.Ascend(RoleEngine+"/", func(_ string, n *raftlog.Node) bool {
		if n.Role != RoleEngine {
			return false
		}
		if n.State == raftlog.NodeState_NODE_STATE_READY && n.Version >= v {
			out = append(out, n)
		}
		return true
	})
	return out
}
