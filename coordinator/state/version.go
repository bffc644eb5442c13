package state

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (s *State) putVersion(v *raftlog.PolicyVersion) {
	k := numberKey(v.Run, v.Version)
	s.versions.Set(k, v)
	s.note(KindVersion, k)
}

func (s *State) setVersion(run string, v int64, st raftlog.VersionState, reason string) {
	old, found := s.versions.Get(numberKey(run, v))
	if !found || old.State == st {
		return
	}
	c := proto.CloneOf(old)
	c.State, c.Reason = st, reason
	if st == raftlog.VersionState_VERSION_STATE_LIVE {
		c.LiveNs = s.clock.NowNs
	}
	s.putVersion(c)
}

func (s *State) versionState(run string, v int64) raftlog.VersionState {
	x, _ := s.versions.Get(numberKey(run, v))
	return x.GetState()
}

// due returns the version to publish next, or false: the newest committed one
// that publish.every allows, always the first and the last.
func (s *State) due(r *raftlog.Run) (int64, bool) {
	v := r.Head
	if v < r.Config.Steps {
		v -= v % int64(r.Config.PublishEvery)
	}
	again := v >= 0 && v == r.Live && s.catchingUp(r) // made anew after a rollback
	return v, (v > r.Live || again) && !terminal(r.State)
}

// leasePublish gives a publisher the next version to switch the engines to.
func (s *State) leasePublish(l *raftlog.LeasePublish) *raftlog.Result {
	n := s.node(RolePublisher, l.GetNode())
	if n == nil {
		return fencedNode(l.GetNode())
	}
	res := &raftlog.LeasePublishResult{TtlNs: LeaseTTL}
	result := &raftlog.Result{Result: &raftlog.Result_LeasePublish{LeasePublish: res}}
	for _, id := range s.runs.Keys() {
		r, _ := s.runs.Get(id)
		if l.Run != "" && l.Run != id {
			continue
		}
		v, is := s.due(r)
		if !is || r.State == raftlog.RunState_RUN_STATE_PAUSED {
			res.WaitsFor = "a committed version"
			continue
		}
		if p, busy := s.publish.Get(id); busy && p.Lease != nil && (p.Lease.Holder != n.Name || p.Lease.Incarnation == n.Incarnation) {
			res.WaitsFor = "another publisher"
			continue
		}
		engines := s.engines(-1)
		if len(engines) == 0 {
			res.WaitsFor = "a ready engine"
			continue
		}
		ver, _ := s.versions.Get(numberKey(id, v))
		if ver.State == raftlog.VersionState_VERSION_STATE_REJECTED {
			res.WaitsFor = fmt.Sprintf("a version after %d, which was rejected", v)
			continue
		}
		p := &raftlog.Publish{Run: id, Version: v, Lease: s.grant(n)}
		s.publish.Set(id, p)
		s.setVersion(id, v, raftlog.VersionState_VERSION_STATE_STAGING, "")
		res.Ready, res.Run, res.Version, res.Manifest, res.Fence = true, id, v, ver.Manifest, p.Lease.Fence
		res.Engines, res.WaitsFor, res.Live = engines, "", r.Live
		break
	}
	return result
}

// finishPublish makes the version live, or rejects it and pauses the run.
// Ready engines that were not switched are fenced: they come back by registering again.
func (s *State) finishPublish(f *raftlog.FinishPublish) *raftlog.Result {
	p, found := s.publish.Get(f.Run)
	r, exists := s.runs.Get(f.Run)
	if !exists {
		return refuse(raftlog.Code_CODE_NOT_FOUND, fmt.Sprintf("no run %q", f.Run))
	}
	if !found || p.Version != f.Version || !holds(p.Lease, f.Node, f.Fence) {
		return refuse(raftlog.Code_CODE_FENCED, fmt.Sprintf("version %d is not held with fence %d", f.Version, f.Fence))
	}
	if f.Accepted && len(f.Served) == 0 {
		return refuse(raftlog.Code_CODE_INVALID, "an accepted version is served by at least one engine")
	}
	s.publish.Delete(f.Run)
	if !f.Accepted {
		s.setVersion(f.Run, f.Version, raftlog.VersionState_VERSION_STATE_REJECTED, f.Reason)
		s.versionEvent(f.Run, f.Version, "rejected", f.Reason)
		s.pause(f.Run, fmt.Sprintf("version %d was rejected: %s", f.Version, f.Reason))
		return ok()
	}
	for v := max(0, r.Live); v < f.Version; v++ {
		if s.versionState(f.Run, v) != raftlog.VersionState_VERSION_STATE_REJECTED {
			s.setVersion(f.Run, v, raftlog.VersionState_VERSION_STATE_RETIRED, "")
		}
	}
	s.setVersion(f.Run, f.Version, raftlog.VersionState_VERSION_STATE_LIVE, "")
	for _, e := range s.engines(-1) {
		e = cloneNode(e)
		if slices.Contains(f.Served, e.Name) {
			e.Version = f.Version
		} else {
			e.State, e.Version = raftlog.NodeState_NODE_STATE_FENCED, -1
		}
		s.putNode(e)
	}
	kept := s.keptFrom(r)
	s.update(f.Run, func(r *raftlog.Run) {
		r.Live = f.Version
		r.ProgressNs, r.Progress = s.clock.NowNs, fmt.Sprintf("version %d went live", f.Version)
	})
	s.versionEvent(f.Run, f.Version, "live", "")
	r, _ = s.runs.Get(f.Run)
	s.release(f.Run, kept, min(r.Head, s.keptFrom(r)))
	return ok()
}

func (s *State) versionEvent(run string, v int64, st, reason string) {
	s.emit(run, &raftlog.Event{Event: &raftlog.Event_VersionChanged{VersionChanged: &raftlog.VersionChanged{
		Version: v, State: st, Reason: reason,
	}}})
}

// Versions returns a run's policy versions in order.
func (s *State) Versions(run string) []*raftlog.PolicyVersion { return list(&s.versions, run+"/") }
