package state

import (
	"errors"
	"fmt"
	"io"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// The kinds of failure of Restore.
var (
	ErrNewer = errors.New("snapshot was written by a newer version: upgrade this binary")
	ErrCut   = errors.New("snapshot is incomplete")
)

// Records yields the whole state in a deterministic order: a header first, a footer with the count last.
func (s *State) Records(yield func(*raftlog.Record) bool) {
	n := uint64(0)
	more := true
	put := func(r *raftlog.Record) bool {
		if more {
			n++
			more = yield(r)
		}
		return more
	}
	put(&raftlog.Record{Record: &raftlog.Record_Header{Header: &raftlog.Header{Format: s.format()}}})
	put(&raftlog.Record{Record: &raftlog.Record_Clock{Clock: s.clock}})
	s.runs.Scan(func(_ string, v *raftlog.Run) bool { return put(&raftlog.Record{Record: &raftlog.Record_Run{Run: v}}) })
	s.versions.Scan(func(_ string, v *raftlog.PolicyVersion) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Version{Version: v}})
	})
	s.nodes.Scan(func(_ string, v *raftlog.Node) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Node{Node: v}})
	})
	s.groups.Scan(func(_ string, v *raftlog.Group) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Group{Group: v}})
	})
	s.episodes.Scan(func(_ string, v *raftlog.Episode) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Episode{Episode: v}})
	})
	s.jobs.Scan(func(_ string, v *raftlog.VerifyJob) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Job{Job: v}})
	})
	s.steps.Scan(func(_ string, v *raftlog.Step) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Step{Step: v}})
	})
	s.gangs.Scan(func(_ string, v *raftlog.Gang) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Gang{Gang: v}})
	})
	s.publish.Scan(func(_ string, v *raftlog.Publish) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Publish{Publish: v}})
	})
	s.evals.Scan(func(_ string, v *raftlog.EvalResult) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Eval{Eval: v}})
	})
	s.clients.Scan(func(_ string, v *raftlog.Client) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Client{Client: v}})
	})
	s.outbox.Scan(func(_ string, v *raftlog.Event) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Event{Event: v}})
	})
	s.peers.Scan(func(_ string, v *raftlog.Member) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Member{Member: v}})
	})
	s.tokens.Scan(func(_ string, v *raftlog.Token) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Token{Token: v}})
	})
	s.projects.Scan(func(_ string, v *raftlog.Project) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Project{Project: v}})
	})
	s.drops.Scan(func(_ string, v *raftlog.TaskDrops) bool {
		return put(&raftlog.Record{Record: &raftlog.Record_Drops{Drops: v}})
	})
	put(&raftlog.Record{Record: &raftlog.Record_Footer{Footer: &raftlog.Footer{Records: n}}})
}

// format is the lowest that tells all there is, so that older replicas read what they can.
func (s *State) format() int32 {
	f := max(1, s.clock.Level)
	if s.peers.Len() > 0 || s.tokens.Len() > 0 || s.clock.Cluster != "" {
		f = max(f, 2)
	}
	return f
}

// Restore builds a state from records until next returns io.EOF. It returns
// ErrNewer for a format of a later build and ErrCut when records are missing.
func Restore(next func() (*raftlog.Record, error)) (*State, error) {
	s := New()
	var n uint64
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("state: restore after %d records: %w", n, ErrCut)
		}
		if err != nil {
			return nil, fmt.Errorf("state: restore after %d records: %w", n, err)
		}
		if n == 0 && r.GetHeader() == nil {
			return nil, fmt.Errorf("state: restore: no header: %w", ErrCut)
		}
		if h := r.GetHeader(); h != nil && h.Format > snapshotFormat {
			return nil, fmt.Errorf("state: restore: format %d: %w", h.Format, ErrNewer)
		}
		if f := r.GetFooter(); f != nil {
			if f.Records != n {
				return nil, fmt.Errorf("state: restore: %d of %d records: %w", n, f.Records, ErrCut)
			}
			return s, nil
		}
		if err := s.load(r); err != nil {
			return nil, err
		}
		n++
	}
}

// load puts one record back; groups come before their episodes, so that derived sets are right.
func (s *State) load(r *raftlog.Record) error {
	switch v := r.Record.(type) {
	case *raftlog.Record_Header:
	case *raftlog.Record_Clock:
		s.clock = v.Clock
	case *raftlog.Record_Run:
		s.runs.Set(v.Run.Id, v.Run)
	case *raftlog.Record_Version:
		s.putVersion(v.Version)
	case *raftlog.Record_Node:
		s.putNode(v.Node)
	case *raftlog.Record_Group:
		s.putGroup(v.Group)
		if e := v.Group.EndedEvent; e > s.clock.Mirrored {
			s.ended.Set(seqKey(e), groupKey(v.Group.Run, v.Group.Id))
		}
	case *raftlog.Record_Episode:
		s.putEpisode(v.Episode)
	case *raftlog.Record_Job:
		s.putJob(v.Job)
	case *raftlog.Record_Step:
		s.putStep(v.Step)
	case *raftlog.Record_Gang:
		s.gangs.Set(v.Gang.Run, v.Gang)
	case *raftlog.Record_Publish:
		s.publish.Set(v.Publish.Run, v.Publish)
	case *raftlog.Record_Eval:
		s.putEval(v.Eval)
	case *raftlog.Record_Client:
		s.putClient(v.Client)
	case *raftlog.Record_Event:
		s.putEvent(v.Event)
	case *raftlog.Record_Member:
		s.peers.Set(v.Member.Id, v.Member)
	case *raftlog.Record_Token:
		s.tokens.Set(v.Token.Id, v.Token)
	case *raftlog.Record_Drops:
		s.putDrops(v.Drops)
	case *raftlog.Record_Project:
		s.projects.Set(v.Project.Name, v.Project)
	default:
		return fmt.Errorf("state: restore: unknown record: %w", ErrNewer)
	}
	return nil
}
