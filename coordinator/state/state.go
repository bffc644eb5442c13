// Package state is the coordinator's deterministic state machine.
//
// Apply is its only way in: no clock, no randomness, no I/O. Time is a field
// of the entry that the leader stamps; ids and seeds are derived from the run's
// seed. Records are never changed in place: a record read from the state is
// cloned, changed and put back, so that Fork is O(1).
package state

import (
	"fmt"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Periods of leases and of bookkeeping, in nanoseconds of log time.
const (
	second         = int64(1e9)
	LeaseTTL       = 10 * second        // of nodes and of everything they hold
	clientSession  = 24 * 3600 * second // a client not seen for so long may be forgotten
	snapshotFormat = 2                  // of the newest records; a state of an older level is written in its own
)

type (
	set          = btree.Map[string, struct{}]
	table[R any] = btree.Map[string, R]
)

// State is the whole replicated state. It is not safe for concurrent use;
// readers work on a Fork.
type State struct {
	clock    *raftlog.Clock
	runs     table[*raftlog.Run]
	versions table[*raftlog.PolicyVersion]
	groups   table[*raftlog.Group]
	episodes table[*raftlog.Episode]
	jobs     table[*raftlog.VerifyJob]
	steps    table[*raftlog.Step]
	gangs    table[*raftlog.Gang]
	publish  table[*raftlog.Publish]
	nodes    table[*raftlog.Node]
	evals    table[*raftlog.EvalResult]
	clients  table[*raftlog.Client]
	outbox   table[*raftlog.Event]
	peers    table[*raftlog.Member]
	tokens   table[*raftlog.Token]
	projects table[*raftlog.Project] // of removed runs
	drops    table[*raftlog.TaskDrops]

	// Derived from the tables, kept by their put functions.
	queue      set                   // episodes to lease, in the order they are leased
	leased     set                   // episodes under lease
	ready      set                   // verify jobs to lease
	judged     set                   // verify jobs under lease
	ends       set                   // when these leases end, see endKey
	active     table[*raftlog.Group] // training groups open, complete or assigned
	evaluating table[*raftlog.Group] // evaluation groups open
	ended      table[string]         // groups whose end is not mirrored yet, by the event of it
	idle       set                   // clients, by when they were seen
	counts     map[string]counts     // by run

	shuffles map[string]shuffle      // the order of tasks that draws are in, by run and env
	private  map[string]*raftlog.Run // runs that the entry being applied has copied
	noting   bool                    // see Journal
	notes    []note
}

// counts are the lengths of the derived sets and of the outbox, by run.
type counts struct{ queued, leased, jobs, judged, outstanding, events int }

// New returns an empty state.
func New() *State {
	return &State{clock: &raftlog.Clock{NextFence: 1, NextEvent: 1}, counts: map[string]counts{}, private: map[string]*raftlog.Run{}, shuffles: map[string]shuffle{}}
}

// Fork returns a copy in O(1); afterwards each side changes alone.
func (s *State) Fork() *State {
	f := &State{
		clock:      s.clock,
		runs:       *s.runs.Copy(),
		versions:   *s.versions.Copy(),
		groups:     *s.groups.Copy(),
		episodes:   *s.episodes.Copy(),
		jobs:       *s.jobs.Copy(),
		steps:      *s.steps.Copy(),
		gangs:      *s.gangs.Copy(),
		publish:    *s.publish.Copy(),
		nodes:      *s.nodes.Copy(),
		evals:      *s.evals.Copy(),
		clients:    *s.clients.Copy(),
		outbox:     *s.outbox.Copy(),
		peers:      *s.peers.Copy(),
		tokens:     *s.tokens.Copy(),
		projects:   *s.projects.Copy(),
		drops:      *s.drops.Copy(),
		queue:      *s.queue.Copy(),
		leased:     *s.leased.Copy(),
		ready:      *s.ready.Copy(),
		judged:     *s.judged.Copy(),
		ends:       *s.ends.Copy(),
		active:     *s.active.Copy(),
		evaluating: *s.evaluating.Copy(),
		ended:      *s.ended.Copy(),
		idle:       *s.idle.Copy(),
		counts:     make(map[string]counts, len(s.counts)),
		private:    map[string]*raftlog.Run{},
		shuffles:   map[string]shuffle{},
	}
	for k, v := range s.counts {
		f.counts[k] = v
	}
	return f
}

// Clock returns the scalar part of the state.
func (s *State) Clock() *raftlog.Clock { return s.clock }

// Apply carries out one log entry and returns one result for each proposal, in
// order. A proposal whose (client, sequence) was applied before returns the
// stored result and changes nothing.
func (s *State) Apply(e *raftlog.Entry) []*raftlog.Result {
	clock := cloneClock(s.clock) // changed in place until this entry is done
	clear(s.private)
	s.notes = s.notes[:0]
	clock.NowNs = max(clock.NowNs, e.NowNs)
	stale := e.Term < clock.Term
	if e.Term > clock.Term && s.atLeast(2) {
		clock.GraceNs = clock.NowNs + 2*LeaseTTL // holders must find the new leader first
	}
	clock.Term = max(clock.Term, e.Term)
	s.clock = clock
	results := make([]*raftlog.Result, len(e.Proposals))
	for i, p := range e.Proposals {
		if stale && p.Client == "" { // housekeeping of a leader that is no longer one
			results[i] = refuse(raftlog.Code_CODE_CONFLICT, "a newer leader has begun")
			continue
		}
		results[i] = s.propose(p)
	}
	return results
}

func (s *State) propose(p *raftlog.Proposal) *raftlog.Result {
	if p.Client == "" {
		return s.operate(p.Op)
	}
	if internal(p.Op) {
		return refuse(raftlog.Code_CODE_INVALID, "only the leader itself does this")
	}
	if c, ok := s.clients.Get(p.Client); ok {
		if p.Seq < c.Seq {
			return refuse(raftlog.Code_CODE_STALE_SEQ, fmt.Sprintf("sequence %d of client %s is behind %d", p.Seq, p.Client, c.Seq))
		}
		if p.Seq == c.Seq {
			r := &raftlog.Result{}
			if err := proto.Unmarshal(c.Result, r); err != nil {
				return refuse(raftlog.Code_CODE_INVALID, "stored result does not decode: "+err.Error())
			}
			return r
		}
	}
	r := s.operate(p.Op)
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return refuse(raftlog.Code_CODE_INVALID, "result does not encode: "+err.Error())
	}
	s.putClient(&raftlog.Client{Id: p.Client, Seq: p.Seq, Result: b, SeenNs: s.clock.NowNs})
	return r
}

func (s *State) operate(op *raftlog.Op) *raftlog.Result {
	switch o := op.GetOp().(type) {
	case *raftlog.Op_CreateRun:
		return s.createRun(o.CreateRun)
	case *raftlog.Op_ControlRun:
		return s.controlRun(o.ControlRun)
	case *raftlog.Op_Register:
		return s.register(o.Register)
	case *raftlog.Op_Deregister:
		return s.deregister(o.Deregister)
	case *raftlog.Op_Heartbeat:
		return s.heartbeat(o.Heartbeat)
	case *raftlog.Op_Tick:
		return s.tick()
	case *raftlog.Op_LeaseEpisodes:
		return s.leaseEpisodes(o.LeaseEpisodes)
	case *raftlog.Op_SealEpisodes:
		return s.sealEpisodes(o.SealEpisodes)
	case *raftlog.Op_FailEpisodes:
		return s.failEpisodes(o.FailEpisodes)
	case *raftlog.Op_LeaseJobs:
		return s.leaseJobs(o.LeaseJobs)
	case *raftlog.Op_SettleJobs:
		return s.settleJobs(o.SettleJobs)
	case *raftlog.Op_FailJobs:
		return s.failJobs(o.FailJobs)
	case *raftlog.Op_JoinGang:
		return s.joinGang(o.JoinGang)
	case *raftlog.Op_TakeBatch:
		return s.takeBatch(o.TakeBatch)
	case *raftlog.Op_CommitStep:
		return s.commitStep(o.CommitStep)
	case *raftlog.Op_LeasePublish:
		return s.leasePublish(o.LeasePublish)
	case *raftlog.Op_FinishPublish:
		return s.finishPublish(o.FinishPublish)
	case *raftlog.Op_Mirrored:
		return s.markMirrored(o.Mirrored)
	case *raftlog.Op_Identify:
		return s.identify(o.Identify)
	case *raftlog.Op_SetMember:
		return s.setMember(o.SetMember.GetMember())
	case *raftlog.Op_RemoveMember:
		return s.removeMember(o.RemoveMember.GetId())
	case *raftlog.Op_SetToken:
		return s.setToken(o.SetToken.GetToken())
	case *raftlog.Op_RemoveToken:
		return s.removeToken(o.RemoveToken.GetId())
	case *raftlog.Op_Rollback:
		return s.rollback(o.Rollback)
	case *raftlog.Op_Diverged:
		return s.diverged(o.Diverged)
	}
	return refuse(raftlog.Code_CODE_INVALID, "unknown operation")
}

func refuse(c raftlog.Code, message string) *raftlog.Result {
	return &raftlog.Result{Code: c, Message: message}
}

func ok() *raftlog.Result { return &raftlog.Result{} }

// grant mints a lease; the fence rises at every grant.
func (s *State) grant(n *raftlog.Node) *raftlog.Lease {
	return &raftlog.Lease{
		Holder: n.Name, Incarnation: n.Incarnation, Fence: s.mint(),
		GrantedNs: s.clock.NowNs, ExpiryNs: s.clock.NowNs + LeaseTTL,
	}
}

func (s *State) mint() uint64 {
	f := s.clock.NextFence
	s.clock.NextFence++
	return f
}

// holds checks that the lease is held by this incarnation of the node with this fence.
func holds(l *raftlog.Lease, n *raftlog.NodeRef, fence uint64) bool {
	return l != nil && l.Fence == fence && l.Holder == n.GetName() && l.Incarnation == n.GetIncarnation()
}

// emit appends an event to the outbox and returns its sequence number.
func (s *State) emit(run string, e *raftlog.Event) uint64 {
	e.Seq, e.AtNs, e.Run = s.clock.NextEvent, s.clock.NowNs, run
	s.clock.NextEvent++
	s.putEvent(e)
	return e.Seq
}

func (s *State) putEvent(e *raftlog.Event) {
	s.outbox.Set(seqKey(e.Seq), e)
	c := s.counts[e.Run]
	c.events++
	s.counts[e.Run] = c
}

// dropEvent takes an event that is in the store, or will never be, out of the outbox.
func (s *State) dropEvent(k string) {
	e, found := s.outbox.Delete(k)
	if !found {
		return
	}
	if c, is := s.counts[e.Run]; is {
		c.events--
		s.counts[e.Run] = c
	}
}

// Outbox returns up to limit events not yet mirrored, in order.
func (s *State) Outbox(limit int) []*raftlog.Event {
	var out []*raftlog.Event
	s.outbox.Scan(func(_ string, e *raftlog.Event) bool {
		out = append(out, e)
		return len(out) < limit
	})
	return out
}

// markMirrored drops events that are in the store, and the groups they ended with their episodes.
func (s *State) markMirrored(m *raftlog.Mirrored) *raftlog.Result {
	c := s.clock
	c.Mirrored = max(c.Mirrored, min(m.UpTo, c.NextEvent-1))
	limit := seqKey(c.Mirrored)
	for {
		k, _, found := s.outbox.Min()
		if !found || k > limit {
			break
		}
		s.dropEvent(k)
	}
	for {
		k, group, found := s.ended.Min()
		if !found || k > limit {
			break
		}
		s.ended.Delete(k)
		if g, is := s.groups.Get(group); is && !s.kept(g) {
			s.forgetGroup(group)
		}
	}
	return ok()
}
