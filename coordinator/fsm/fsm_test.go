package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// register is an entry that lets a host in.
func register(seq uint64, name string) *raftlog.Entry {
	return &raftlog.Entry{NowNs: int64(seq) * 1e6, Term: 1, Proposals: []*raftlog.Proposal{{
		Client: "c", Seq: seq,
		Op: &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
			Node: &raftlog.NodeRef{Role: state.RoleHost, Name: name, Incarnation: 1}, Agents: 1,
		}}},
	}}}
}

func encode(t *testing.T, e *raftlog.Entry) []byte {
	t.Helper()
	b, err := EncodeEntry(e)
	require.NoError(t, err)
	return b
}

func command(t *testing.T, index uint64, e *raftlog.Entry) *raft.Log {
	t.Helper()
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: encode(t, e)}
}

// dump is the whole state as bytes: two states are equal when these are.
func dump(t *testing.T, s *state.State) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, WriteSnapshot(&b, s))
	return b.Bytes()
}

func TestEntry(t *testing.T) {
	good := encode(t, register(1, "h1"))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	newer := bytes.Clone(good)
	newer[0] = EntryFormat + 1
	unknownOp := &raftlog.Entry{Proposals: []*raftlog.Proposal{{Op: &raftlog.Op{}}}}
	unknownOp.Proposals[0].Op.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"good":              {good, nil},
		"empty":             {nil, ErrDamaged},
		"zeros":             {make([]byte, 64), ErrDamaged},
		"bit flipped":       {flipped, ErrDamaged},
		"cut":               {good[:len(good)-2], ErrDamaged},
		"newer format":      {newer, ErrNewer},
		"unknown operation": {encode(t, unknownOp), ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := DecodeEntry(c.data)
			if c.want == nil {
				require.NoError(t, err)
				require.True(t, proto.Equal(register(1, "h1"), e))
				return
			}
			require.ErrorIs(t, err, c.want)
			require.Nil(t, e)
		})
	}
}

func TestSnapshotRestoreAndSwap(t *testing.T) {
	a := New(state.New(), 0, nil)
	_, _, changed := a.View()
	out := a.ApplyBatch([]*raft.Log{command(t, 3, register(1, "h1")), {Index: 4, Type: raft.LogConfiguration}, command(t, 5, register(2, "h2"))})
	require.Len(t, out, 3)
	require.IsType(t, []*raftlog.Result{}, out[0])
	<-changed
	before, index, _ := a.View()
	require.Equal(t, uint64(5), index)

	snap, err := a.Snapshot()
	require.NoError(t, err)
	a.Apply(command(t, 6, register(3, "h3"))) // beside Persist
	sink := &memorySink{}
	require.NoError(t, snap.Persist(sink))
	require.True(t, sink.closed)
	snap.Release()
	require.Equal(t, dump(t, before), sink.Bytes(), "the snapshot is of its moment, and views do not move")

	b := New(state.New(), 0, nil)
	b.Apply(command(t, 1, register(1, "other"))) // must be gone after Restore
	require.NoError(t, b.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()))))
	restored, _, _ := b.View()
	require.Equal(t, sink.Bytes(), dump(t, restored))

	require.ErrorIs(t, b.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()[:40]))), ErrCut)
	again, _, _ := b.View()
	require.Equal(t, sink.Bytes(), dump(t, again), "a failed restore changes nothing")
}

func TestSnapshotPersistFailure(t *testing.T) {
	f := New(state.New(), 0, nil)
	snap, err := f.Snapshot()
	require.NoError(t, err)
	sink := &memorySink{fail: errors.New("disk full")}
	require.ErrorIs(t, snap.Persist(sink), sink.fail)
	require.True(t, sink.cancelled)
	require.False(t, sink.closed)
}

func TestReadSnapshotRefuses(t *testing.T) {
	s := state.New()
	for i := uint64(1); i < 20; i++ {
		s.Apply(register(i, string(rune('a'+i))))
	}
	good := dump(t, s)
	with := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"empty":             {nil, ErrNotOurs},
		"something else":    {[]byte("PK\x03\x04 this is an archive of some kind"), ErrNotOurs},
		"newer format":      {with(func(b []byte) []byte { b[len(snapshotMagic)]++; return b }), ErrNewer},
		"header only":       {good[:snapshotHeader], ErrCut},
		"cut in a record":   {good[:len(good)/2], ErrCut},
		"cut before sum":    {good[:len(good)-4], ErrCut},
		"cut before count":  {good[:len(good)-12], ErrCut},
		"sum wrong":         {with(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), ErrDamaged},
		"count wrong":       {with(func(b []byte) []byte { b[len(b)-12]++; return b }), ErrDamaged},
		"name changed":      {with(func(b []byte) []byte { b[bytes.LastIndex(b, []byte("host"))] = 'H'; return b }), ErrDamaged},
		"length enormous":   {with(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[snapshotHeader:], 1<<31); return b }), ErrDamaged},
		"record of garbage": {with(func(b []byte) []byte { copy(b[snapshotHeader+4:], "\xff\xff\xff"); return b }), ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadSnapshot(bytes.NewReader(c.data))
			require.ErrorIs(t, err, c.want)
		})
	}
	t.Run("every cut", func(t *testing.T) {
		for n := range len(good) {
			_, err := ReadSnapshot(bytes.NewReader(good[:n]))
			require.Error(t, err, "%d of %d bytes", n, len(good))
		}
	})
}

func TestSnapshotOfNewerState(t *testing.T) {
	rec, err := proto.Marshal(&raftlog.Record{Record: &raftlog.Record_Header{Header: &raftlog.Header{Format: 1000}}})
	require.NoError(t, err)
	b := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotFormat)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(rec))), rec...)
	_, err = ReadSnapshot(bytes.NewReader(b))
	require.ErrorIs(t, err, ErrNewer)
}

// An entry that cannot be understood stops the machine: nothing after it is
// applied, nothing is snapshotted, the reason stays.
func TestUndecodableEntryStops(t *testing.T) {
	f := New(state.New(), 0, nil)
	f.Apply(command(t, 1, register(1, "h1")))
	s, _, _ := f.View()
	want := dump(t, s)
	bad := command(t, 2, register(2, "h2"))
	bad.Data[0] = EntryFormat + 1
	out := f.ApplyBatch([]*raft.Log{bad, command(t, 3, register(3, "h3"))})
	for _, o := range out {
		require.ErrorIs(t, o.(error), ErrNewer)
	}
	<-f.Failed()
	require.ErrorContains(t, f.Err(), "entry 2")
	require.ErrorIs(t, f.Apply(command(t, 4, register(4, "h4"))).(error), ErrNewer)
	_, err := f.Snapshot()
	require.ErrorIs(t, err, ErrNewer)
	s, index, _ := f.View()
	require.Equal(t, uint64(1), index)
	require.Equal(t, want, dump(t, s))
}

type memorySink struct {
	bytes.Buffer
	fail              error
	closed, cancelled bool
}

func (m *memorySink) Write(b []byte) (int, error) {
	if m.fail != nil {
		return 0, m.fail
	}
	return m.Buffer.Write(b)
}
func (m *memorySink) Close() error  { m.closed = true; return nil }
func (m *memorySink) Cancel() error { m.cancelled = true; return nil }
func (m *memorySink) ID() string    { return "memory" }
