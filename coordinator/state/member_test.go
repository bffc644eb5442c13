package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func (m *machine) setMember(x *raftlog.Member) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: x}}})
}

func (m *machine) setToken(x *raftlog.Token) *raftlog.Result {
	return m.apply(&raftlog.Op{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{Token: x}}})
}

func TestIdentify(t *testing.T) {
	m := newMachineOf(t, 1)
	require.EqualValues(t, 0, m.s.Clock().Level)
	require.Equal(t, raftlog.Code_CODE_OK, m.identify("", 2).Code)
	require.Equal(t, raftlog.Code_CODE_OK, m.identify("a", 1).Code)
	require.EqualValues(t, 2, m.s.Clock().Level, "it never falls")
	require.Equal(t, "a", m.s.Clock().Cluster)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.identify("b", 2).Code)
	require.Equal(t, raftlog.Code_CODE_OK, m.identify("", 2).Code)
	require.Equal(t, "a", m.s.Clock().Cluster)
	for _, op := range []*raftlog.Op{
		{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Cluster: "a", Level: 2}}},
		{Op: &raftlog.Op_Diverged{Diverged: &raftlog.Diverged{Run: "r"}}},
	} {
		r := m.propose(&raftlog.Proposal{Client: "c", Seq: 1, Op: op})
		require.Equal(t, raftlog.Code_CODE_INVALID, r.Code, "a client is not the leader")
	}
}

func TestLevels(t *testing.T) {
	fields := (&raftlog.Op{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		op := &raftlog.Op{}
		op.ProtoReflect().Mutable(fields.Get(i))
		require.True(t, Known(op))
		want := int32(1)
		if fields.Get(i).Number() >= 19 {
			want = 2
		}
		require.Equal(t, want, LevelOf(op), "%s", fields.Get(i).Name())
		require.LessOrEqual(t, LevelOf(op), int32(Level))
	}
	require.EqualValues(t, 2, LevelOf(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Config: &raftlog.RunConfig{BudgetTokens: 1}}}}), "a replica of level 1 would let it spend on")
	require.False(t, Known(&raftlog.Op{}))
	require.False(t, Known(nil))
	require.False(t, Known(&raftlog.Op{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Level: Level + 1}}}), "what may follow is unknown here")
}

// A replica of level 1 reads the snapshot of a cluster that is not above it.
func TestSnapshotFormatFollowsTheLevel(t *testing.T) {
	format := func(s *State) (f int32) {
		s.Records(func(r *raftlog.Record) bool { f = r.GetHeader().GetFormat(); return false })
		return f
	}
	m := newMachineOf(t, 1)
	m.registerAll()
	require.EqualValues(t, 1, format(m.s))
	m.setMember(&raftlog.Member{Id: "n1", Raft: "h:1", Level: 1})
	require.EqualValues(t, 2, format(m.s), "it holds a record that level 1 does not know")
	require.EqualValues(t, 2, format(newMachine(t).s))
}

func TestMembers(t *testing.T) {
	m := newMachine(t)
	for want, bad := range map[string]*raftlog.Member{
		"use letters":             {Id: "a/b", Raft: "h:1", Level: 1},
		"names no raft address":   {Id: "n1", Level: 1},
		"the lowest is 1":         {Id: "n1", Raft: "h:1"},
		"coordinator node \"\": ": nil,
	} {
		r := m.setMember(bad)
		require.Equal(t, raftlog.Code_CODE_INVALID, r.Code)
		require.Contains(t, r.Message, want)
	}
	one := &raftlog.Member{Id: "n1", Address: "h:1", Raft: "h:2", Level: 2, Version: "v1"}
	require.Equal(t, raftlog.Code_CODE_OK, m.setMember(one).Code)
	since := m.now
	m.now += second
	before := m.s.Fork()
	require.Equal(t, raftlog.Code_CODE_OK, m.setMember(one).Code)
	require.Empty(t, changes(before, m.s), "the same again says nothing")
	require.Equal(t, since, m.s.Member("n1").SinceNs)
	one.Address = "h:3"
	require.Equal(t, raftlog.Code_CODE_OK, m.setMember(one).Code)
	require.Equal(t, m.now, m.s.Member("n1").SinceNs)
	require.Equal(t, raftlog.Code_CODE_OK, m.setMember(&raftlog.Member{Id: "n0", Raft: "h:9", Level: 1}).Code)
	require.Equal(t, "n0", m.s.Members()[0].Id)
	remove := &raftlog.Op{Op: &raftlog.Op_RemoveMember{RemoveMember: &raftlog.RemoveMember{Id: "n1"}}}
	m.ok(remove)
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.apply(remove).Code)
	require.Nil(t, m.s.Member("n1"))
}

func TestTokens(t *testing.T) {
	m := newMachine(t)
	good := &raftlog.Token{Id: "t1", Sum: []byte(strings.Repeat("s", 32)), Role: TokenAdmin, ExpiresNs: m.now + 10*second}
	for want, change := range map[string]func(*raftlog.Token){
		"use letters":              func(x *raftlog.Token) { x.Id = "" },
		"has 3 bytes":              func(x *raftlog.Token) { x.Sum = []byte("abc") },
		"expired from the start":   func(x *raftlog.Token) { x.ExpiresNs = m.now },
		`role "root" is not known`: func(x *raftlog.Token) { x.Role = "root" },
	} {
		bad := proto.CloneOf(good)
		change(bad)
		r := m.setToken(bad)
		require.Equal(t, raftlog.Code_CODE_INVALID, r.Code)
		require.Contains(t, r.Message, want)
	}
	require.Equal(t, raftlog.Code_CODE_OK, m.setToken(good).Code)
	created := m.now
	require.Equal(t, created, m.s.Token("t1").CreatedNs)
	other := proto.CloneOf(good)
	other.Sum = make([]byte, 32)
	require.Equal(t, raftlog.Code_CODE_CONFLICT, m.setToken(other).Code)
	m.now += second
	longer := proto.CloneOf(good)
	longer.Note, longer.ExpiresNs = "for CI", m.now+100*second
	require.Equal(t, raftlog.Code_CODE_OK, m.setToken(longer).Code)
	require.Equal(t, created, m.s.Token("t1").CreatedNs)
	require.Equal(t, raftlog.Code_CODE_OK, m.setToken(&raftlog.Token{Id: "ever", Sum: make([]byte, 32), Role: TokenWorker}).Code)
	m.now += 99 * second
	require.False(t, m.tick())
	m.now += second
	require.True(t, m.tick())
	require.Nil(t, m.s.Token("t1"), "forgotten by log time")
	require.Len(t, m.s.Tokens(), 1)
	remove := &raftlog.Op{Op: &raftlog.Op_RemoveToken{RemoveToken: &raftlog.RemoveToken{Id: "ever"}}}
	m.ok(remove)
	require.Equal(t, raftlog.Code_CODE_NOT_FOUND, m.apply(remove).Code)
}
