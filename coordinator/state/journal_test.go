package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// follower is what a watcher has: the records it began with, and changes on top.
type follower map[note]proto.Message

func follow(s *State) follower {
	f := follower{}
	s.runs.Scan(func(k string, v *raftlog.Run) bool { f[note{KindRun, k}] = v; return true })
	s.versions.Scan(func(k string, v *raftlog.PolicyVersion) bool { f[note{KindVersion, k}] = v; return true })
	s.groups.Scan(func(k string, v *raftlog.Group) bool { f[note{KindGroup, k}] = v; return true })
	s.steps.Scan(func(k string, v *raftlog.Step) bool { f[note{KindStep, k}] = v; return true })
	s.evals.Scan(func(k string, v *raftlog.EvalResult) bool { f[note{KindEval, k}] = v; return true })
	s.nodes.Scan(func(k string, v *raftlog.Node) bool {
		n := cloneNode(v)
		n.ExpiryNs = 0 // not followed
		f[note{KindNode, k}] = n
		return true
	})
	return f
}

func (f follower) apply(changes []Change) {
	for _, c := range changes {
		k := note{c.Kind, c.Key}
		if c.Record == nil {
			delete(f, k)
			continue
		}
		m := c.Record.ProtoReflect()
		v := m.Get(m.WhichOneof(m.Descriptor().Oneofs().Get(0))).Message().Interface()
		if n, is := v.(*raftlog.Node); is {
			n = cloneNode(n)
			n.ExpiryNs = 0
			v = n
		}
		f[k] = v
	}
}

func (f follower) requireEqual(t tester, want follower) {
	t.Helper()
	require.Len(t, f, len(want))
	for k, v := range want {
		require.True(t, proto.Equal(v, f[k]), "%v: %v, want %v", k, f[k], v)
	}
}

func TestJournalNamesEachChangeOnce(t *testing.T) {
	m := busy(t)
	m.s.Journal(true)
	require.Empty(t, m.s.Changed())
	m.beat()
	require.Empty(t, m.s.Changed(), "renewals are no news")
	m.advance(30*second, "episode/r/000000000010/000000") // whatever is lost
	m.control("cancel", "")
	seen := map[note]bool{}
	for _, c := range m.s.Changed() {
		require.False(t, seen[note{c.Kind, c.Key}])
		seen[note{c.Kind, c.Key}] = true
		require.NotNil(t, c.Record)
	}
	require.True(t, seen[note{KindRun, "r"}])
	m.mirrorAll()
	gone := 0
	for _, c := range m.s.Changed() {
		require.Equal(t, KindGroup, c.Kind)
		require.Nil(t, c.Record)
		gone++
	}
	require.NotZero(t, gone)
	require.Equal(t, raftlog.Code_CODE_OK, m.control("remove", "").Code)
	require.NotEmpty(t, m.s.Changed())
	require.False(t, m.s.Fork().noting)
	m.s.Journal(false)
	m.create(config())
	require.Empty(t, m.s.Changed())
}
