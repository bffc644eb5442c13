package client

import (
	"context"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// renew sends heartbeats until ctx ends: one an eighth of the TTL after the
// last was answered. It is patient, and the coordinator keeps it for at most
// another eighth, so that the renewals of a whole fleet share few log entries.
// One that was asked for is not patient, and does not wait for one that is.
func (s *Session) renew(ctx context.Context) {
	next := time.NewTimer(s.ttl / 8)
	defer next.Stop()
	asked := false
	for {
		if !asked {
			select {
			case <-next.C:
			case <-s.beat:
				asked = true
			case <-ctx.Done():
				return
			}
		}
		began := time.Now()
		var err error
		if asked, err = s.beatOnce(ctx, !asked); err != nil && ctx.Err() == nil && !asked {
			s.cfg.Logger.Warn("heartbeat failed", "role", s.cfg.Role, "node", s.cfg.Name, "error", err)
		}
		if ctx.Err() != nil {
			return
		}
		pause := s.ttl / 8
		if err != nil { // what it would have renewed has waited long enough
			pause = max(pause-time.Since(began), 10*time.Millisecond)
		}
		next.Reset(pause)
	}
}

// beatOnce sends a heartbeat. A patient one is given up when another is asked
// for: its number is then of the past, should it still arrive.
func (s *Session) beatOnce(ctx context.Context, patient bool) (asked bool, err error) {
	if !patient {
		return false, s.heartbeat(ctx, false)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	s.work.Go(func() { done <- s.heartbeat(ctx, true) })
	select {
	case err = <-done:
		return false, err
	case <-s.beat:
		cancel()
		return true, <-done
	}
}

// heartbeat renews once. Only an acknowledged renewal counts, and from the
// moment it was sent: its answer may have been long on the way.
func (s *Session) heartbeat(ctx context.Context, patient bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.ttl/2) // then with what is held by then
	defer cancel()
	sent := time.Now()
	h := s.message(sent)
	h.Patient = patient
	res, err := s.client.propose(ctx, s.lane, &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}})
	if err != nil {
		return err
	}
	if res.GetHeartbeat().GetFenced() {
		return s.again(ctx, h)
	}
	lost := map[string]uint64{}
	for _, l := range res.GetHeartbeat().GetLost() {
		lost[l.Resource] = l.Fence
	}
	s.renewed(h, sent, lost)
	for resource, fence := range lost {
		s.lose(resource, fence)
	}
	return nil
}

// message lists what is held.
func (s *Session) message(now time.Time) *raftlog.Heartbeat {
	h := &raftlog.Heartbeat{EngineVersion: -1}
	if s.cfg.Version != nil {
		h.EngineVersion = s.cfg.Version()
	}
	if s.cfg.Serves != nil {
		for _, t := range s.cfg.Serves() {
			h.Held = append(h.Held, &raftlog.Held{Resource: t.Resource, Fence: uint64(t.Fence)})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Node, h.Draining = s.ref, s.draining
	for _, x := range s.held {
		held := &raftlog.Held{Resource: x.token.Resource, Fence: uint64(x.token.Fence), WaitsFor: x.waits}
		if x.waits != "" {
			held.WaitsNs = int64(now.Sub(x.since))
		}
		h.Held = append(h.Held, held)
	}
	return h
}

// renewed moves the end of what a heartbeat listed, except of what was lost or has changed hands since.
func (s *Session) renewed(h *raftlog.Heartbeat, sent time.Time, lost map[string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range h.Held {
		x := s.held[l.Resource]
		if _, gone := lost[l.Resource]; gone || x == nil || uint64(x.token.Fence) != l.Fence {
			continue
		}
		t := x.token
		t.TTL = s.ttl // a renewal is for the coordinator's TTL, whatever the grant was for
		x.stop = t.StopAt(sent, s.margin)
	}
	wake(s.kick)
}

// lose tells the holder of a lease, and a host, that it is gone.
func (s *Session) lose(resource string, fence uint64) {
	s.mu.Lock()
	var h *hold
	if x := s.held[resource]; x != nil && uint64(x.token.Fence) == fence {
		h = s.takeLocked(resource)
	}
	s.mu.Unlock()
	if h != nil {
		s.cfg.Logger.Warn("lease lost", "node", s.cfg.Name, "lease", resource, "fence", fence)
		h.lost()
		return
	}
	if s.cfg.Ended != nil {
		s.cfg.Ended(resource, lease.Fence(fence))
	}
}

func (s *Session) takeAll() []*hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*hold
	for r := range s.held {
		out = append(out, s.takeLocked(r))
	}
	return out
}

// again registers the node anew after the coordinator gave it up: first
// everything held is lost, then a higher incarnation begins.
func (s *Session) again(ctx context.Context, h *raftlog.Heartbeat) error {
	s.cfg.Logger.Warn("the coordinator gave this node up; it registers again", "role", s.cfg.Role, "node", s.cfg.Name)
	for _, x := range s.takeAll() {
		x.lost()
	}
	if s.cfg.Ended != nil {
		for _, l := range h.Held {
			s.cfg.Ended(l.Resource, lease.Fence(l.Fence))
		}
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	close(s.fenced)
	s.fenced = make(chan struct{})
	s.mu.Unlock()
	s.pulse()
	return nil
}

// watchdog ends leases whose renewals were not acknowledged in time, by this
// node's monotonic clock, whatever the coordinator may think of them.
func (s *Session) watchdog(ctx context.Context) {
	for {
		next := s.expire(time.Now())
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-s.kick:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// expire ends what is due and returns the time until the next.
func (s *Session) expire(now time.Time) time.Duration {
	var over []*hold
	s.mu.Lock()
	next := s.ttl
	for r, h := range s.held {
		left := h.stop.Sub(now)
		if left <= 0 {
			over = append(over, s.takeLocked(r))
			continue
		}
		next = min(next, left)
	}
	s.mu.Unlock()
	for _, h := range over {
		s.cfg.Logger.Warn("lease not renewed in time: its holder stops", "node", s.cfg.Name, "lease", h.token.Resource, "fence", h.token.Fence)
		h.lost()
	}
	return next
}

// follow wakes Changed.
func (s *Session) follow(ctx context.Context, changes <-chan Change) {
	state := ""
	for c := range changes {
		if s.concerns(c) || c.State != state {
			s.pulse()
		}
		state = c.State
	}
	<-ctx.Done()
}

// concerns reports whether a change may give this role something to do.
// Without it every verdict would wake every rollout worker to ask for nothing.
func (s *Session) concerns(c Change) bool {
	switch s.cfg.Role {
	case "rollout":
		return c.Episodes > 0
	case "verifier":
		return c.Jobs > 0
	case "trainer":
		return c.Batch
	case "publisher":
		return c.Publish
	}
	return true
}

func (s *Session) pulse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}
