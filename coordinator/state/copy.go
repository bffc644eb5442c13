package state

import (
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Copies for change. They are made by hand because every command makes several
// and reflection is slow. Messages, slices and maps inside a record are shared:
// they are replaced whole and never changed, except those of a run that
// cloneRun copies.

func cloneClock(c *raftlog.Clock) *raftlog.Clock {
	return &raftlog.Clock{
		NowNs: c.NowNs, NextFence: c.NextFence, NextEvent: c.NextEvent, Mirrored: c.Mirrored, Term: c.Term,
		Cluster: c.Cluster, Epoch: c.Epoch, Level: c.Level, GraceNs: c.GraceNs, RestoredEvent: c.RestoredEvent,
	}
}

// cloneRun copies a run for change. Config and Spec never change and are shared: they are large.
func cloneRun(r *raftlog.Run) *raftlog.Run {
	c := &raftlog.Run{
		Id: r.Id, SpecDigest: r.SpecDigest, Spec: r.Spec, Config: r.Config, State: r.State, Reason: r.Reason,
		Lineage: r.Lineage, Head: r.Head, Live: r.Live, NextGroup: r.NextGroup,
		Counters: proto.CloneOf(r.Counters), CreatedNs: r.CreatedNs, EndedNs: r.EndedNs,
		ProgressNs: r.ProgressNs, Progress: r.Progress, BatchWaitNs: r.BatchWaitNs, Stopping: r.Stopping,
		Best: r.Best, PausedNs: r.PausedNs,
	}
	for _, x := range r.Cursors {
		c.Cursors = append(c.Cursors, proto.CloneOf(x))
	}
	for _, x := range r.Requeues {
		c.Requeues = append(c.Requeues, proto.CloneOf(x))
	}
	for _, x := range r.Failures {
		c.Failures = append(c.Failures, proto.CloneOf(x))
	}
	return c
}

func cloneGroup(g *raftlog.Group) *raftlog.Group {
	return &raftlog.Group{
		Run: g.Run, Id: g.Id, Env: g.Env, Task: g.Task, Suite: g.Suite, Pin: g.Pin, Size: g.Size, State: g.State,
		LiveAtAdmission: g.LiveAtAdmission, Step: g.Step, Reason: g.Reason, Requeued: g.Requeued,
		AdmittedNs: g.AdmittedNs, CompleteNs: g.CompleteNs, Seed: g.Seed, EndedEvent: g.EndedEvent,
		Bound: g.Bound, Sealed: g.Sealed, Settled: g.Settled, Waves: g.Waves,
	}
}

func cloneEpisode(e *raftlog.Episode) *raftlog.Episode {
	return &raftlog.Episode{
		Run: e.Run, Group: e.Group, Index: e.Index, State: e.State, Attempt: e.Attempt, Seed: e.Seed, Lease: e.Lease,
		Host: e.Host, WaitsFor: e.WaitsFor, WaitsSinceNs: e.WaitsSinceNs, Sealed: e.Sealed, Verdict: e.Verdict,
		Disposition: e.Disposition, Reward: e.Reward, VerdictRow: e.VerdictRow, LastFailure: e.LastFailure,
		QueuedNs: e.QueuedNs, Failures: e.Failures, Floor: e.Floor,
	}
}

func cloneJob(j *raftlog.VerifyJob) *raftlog.VerifyJob {
	return &raftlog.VerifyJob{
		Run: j.Run, Group: j.Group, Index: j.Index, Attempt: j.Attempt, State: j.State, Lease: j.Lease,
		Tries: j.Tries, LastFailure: j.LastFailure, Host: j.Host, QueuedNs: j.QueuedNs,
	}
}

func cloneNode(n *raftlog.Node) *raftlog.Node {
	return &raftlog.Node{
		Role: n.Role, Name: n.Name, Incarnation: n.Incarnation, State: n.State, Address: n.Address, Fence: n.Fence,
		ExpiryNs: n.ExpiryNs, Agents: n.Agents, Verifiers: n.Verifiers, AgentsReserved: n.AgentsReserved,
		VerifiersReserved: n.VerifiersReserved, Version: n.Version, Labels: n.Labels, Sandboxes: n.Sandboxes,
	}
}

func cloneLease(l *raftlog.Lease) *raftlog.Lease {
	return &raftlog.Lease{Holder: l.Holder, Incarnation: l.Incarnation, Fence: l.Fence, ExpiryNs: l.ExpiryNs, GrantedNs: l.GrantedNs}
}
