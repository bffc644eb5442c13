package state

import (
	"cmp"
	"slices"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Kind names a kind of record that watchers follow.
type Kind string

// The kinds that are noted. Episodes, jobs and clients are not: they change too often.
const (
	KindRun     Kind = "run"
	KindVersion Kind = "version"
	KindGroup   Kind = "group"
	KindStep    Kind = "step"
	KindEval    Kind = "eval"
	KindNode    Kind = "node"
)

// Change is one record that an entry changed. Its key is the one it has in the
// state: of a run "RUN", of a node "ROLE/NAME", of the others "RUN/…".
type Change struct {
	Kind   Kind
	Key    string
	Record *raftlog.Record // nil: it is gone
}

type note struct {
	kind Kind
	key  string
}

// Journal makes Apply note which records it changes. Forks do not note theirs.
func (s *State) Journal(on bool) { s.noting, s.notes = on, nil }

// note is called wherever a record of a noted kind is put or deleted.
func (s *State) note(kind Kind, key string) {
	if !s.noting {
		return
	}
	n := note{kind, key}
	if len(s.notes) > 0 && s.notes[len(s.notes)-1] == n {
		return
	}
	s.notes = append(s.notes, n)
}

// Changed returns what the last Apply changed, each record once, by kind and
// key. A node that only renewed is not among them.
func (s *State) Changed() []Change {
	slices.SortFunc(s.notes, func(a, b note) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key)) })
	s.notes = slices.Compact(s.notes)
	out := make([]Change, 0, len(s.notes))
	for _, n := range s.notes {
		out = append(out, Change{n.kind, n.key, s.record(n)})
	}
	return out
}

func (s *State) record(n note) *raftlog.Record {
	switch n.kind {
	case KindRun:
		if v, found := s.runs.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Run{Run: v}}
		}
	case KindVersion:
		if v, found := s.versions.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Version{Version: v}}
		}
	case KindGroup:
		if v, found := s.groups.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Group{Group: v}}
		}
	case KindStep:
		if v, found := s.steps.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Step{Step: v}}
		}
	case KindEval:
		if v, found := s.evals.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Eval{Eval: v}}
		}
	case KindNode:
		if v, found := s.nodes.Get(n.key); found {
			return &raftlog.Record{Record: &raftlog.Record_Node{Node: v}}
		}
	}
	return nil
}
