package state

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// dump encodes the whole state, record by record.
func dump(t tester, s *State) [][]byte {
	t.Helper()
	var out [][]byte
	s.Records(func(r *raftlog.Record) bool {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		require.NoError(t, err)
		out = append(out, b)
		return true
	})
	return out
}

func reader(records [][]byte) func() (*raftlog.Record, error) {
	return func() (*raftlog.Record, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		r := &raftlog.Record{}
		err := proto.Unmarshal(records[0], r)
		records = records[1:]
		return r, err
	}
}

func restored(t tester, s *State) *State {
	t.Helper()
	r, err := Restore(reader(dump(t, s)))
	require.NoError(t, err)
	return r
}

// busy is a state with every kind of record in it.
func busy(t tester) *machine {
	m := fleet(t, suite(1, 2), func(c *raftlog.RunConfig) { c.LagMax = 2 })
	m.run = "gone"
	m.create(config())
	m.control("cancel", "")
	m.mirrorAll()
	require.Equal(t, raftlog.Code_CODE_OK, m.control("remove", "").Code)
	m.run = "r"
	g := m.join()
	m.evaluate(1)
	m.complete(4)
	m.step(g)
	m.evaluate(1)
	m.leasePublish()
	m.complete(4)
	require.True(t, m.take(g).Ready)
	grants := m.lease(4)
	m.failEpisode(grants[0], "env_crash")
	m.seal(grants[1])
	m.seal(grants[2])
	m.leaseJobs(1)
	m.ok(&raftlog.Op{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: &raftlog.Member{Id: "n1", Raft: "n1:1", Level: Level}}}})
	m.ok(&raftlog.Op{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{Token: &raftlog.Token{Id: "t1", Sum: make([]byte, 32), Role: TokenViewer}}}})
	m.propose(&raftlog.Proposal{Client: "c", Seq: 3, Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}})
	return m
}

func TestRestore(t *testing.T) {
	m := busy(t)
	m.s.mayRequeue(m.s.Groups(m.run)[0], true)
	kinds := map[string]bool{}
	m.s.Records(func(r *raftlog.Record) bool {
		kinds[string(r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().Get(0)).Name())] = true
		return true
	})
	all := (&raftlog.Record{}).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		require.Contains(t, kinds, string(all.Get(i).Name()), "the test's state lacks a kind of record")
	}
	r := restored(t, m.s)
	require.Equal(t, dump(t, m.s), dump(t, r))
	requireConsistent(t, r)
	require.Equal(t, m.s.Work(m.run), r.Work(m.run))
	require.Equal(t, m.s.Why(m.run), r.Why(m.run))
	require.Equal(t, m.s.queue.Keys(), r.queue.Keys())
}

func TestRestoreRefuses(t *testing.T) {
	whole := dump(t, busy(t).s)
	encode := func(r *raftlog.Record) []byte {
		b, err := proto.Marshal(r)
		require.NoError(t, err)
		return b
	}
	newer := encode(&raftlog.Record{Record: &raftlog.Record_Header{Header: &raftlog.Header{Format: snapshotFormat + 1}}})
	unknown := encode(&raftlog.Record{})
	for name, tc := range map[string]struct {
		records [][]byte
		want    error
	}{
		"nothing":           {nil, ErrCut},
		"no header":         {whole[1:], ErrCut},
		"no footer":         {whole[:len(whole)-1], ErrCut},
		"a record less":     {append(append([][]byte{}, whole[:5]...), whole[6:]...), ErrCut},
		"a record twice":    {append(append([][]byte{}, whole[:6]...), whole[5:]...), ErrCut},
		"a newer format":    {append([][]byte{newer}, whole[1:]...), ErrNewer},
		"an unknown record": {append(append([][]byte{}, whole[:5]...), append([][]byte{unknown}, whole[5:]...)...), ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Restore(reader(tc.records))
			require.ErrorIs(t, err, tc.want)
			require.Nil(t, s)
		})
	}
	broken := errors.New("the disk is on fire")
	_, err := Restore(func() (*raftlog.Record, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
}

func TestRecordsStopsWhenAsked(t *testing.T) {
	n := 0
	busy(t).s.Records(func(*raftlog.Record) bool { n++; return n < 4 })
	require.Equal(t, 4, n)
}

func TestForkIsIsolated(t *testing.T) {
	m := busy(t)
	fork := m.s.Fork()
	was := dump(t, fork)
	m.advance(30 * second)
	m.judge(1)
	m.control("cancel", "")
	m.mirrorAll()
	require.Equal(t, was, dump(t, fork), "the original moved, the fork did not")
	requireConsistent(t, fork)

	m = busy(t)
	other := *m
	other.s = m.s.Fork()
	was = dump(t, m.s)
	other.advance(30 * second)
	other.control("cancel", "")
	other.mirrorAll()
	require.Equal(t, was, dump(t, m.s), "the fork moved, the original did not")
	requireConsistent(t, m.s)
}

// Readers share a fork while the state goes on; the race detector watches.
func TestReadersOfAFork(t *testing.T) {
	m := busy(t)
	var readers sync.WaitGroup
	for range 50 {
		fork, run, now := m.s.Fork(), m.run, m.now
		for range 2 {
			readers.Go(func() {
				fork.Work(run)
				fork.Why(run)
				fork.Due(now)
				fork.Outbox(10)
				fork.Records(func(r *raftlog.Record) bool {
					_, err := proto.Marshal(r)
					return err == nil
				})
			})
		}
		m.now += second
		m.bare(heartbeat(m.s, m.s.Nodes()[0]))
		m.bare(&raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}})
		for _, n := range m.s.Nodes() {
			m.register(n.Role, n.Name, n.Incarnation+1)
		}
		m.leaseBare(1)
	}
	readers.Wait()
}

// Copies made by hand must not forget a field that a later version of a record adds.
func TestHandMadeCopiesAreWhole(t *testing.T) {
	whole(t, cloneClock)
	whole(t, cloneRun)
	whole(t, cloneGroup)
	whole(t, cloneEpisode)
	whole(t, cloneJob)
	whole(t, cloneNode)
	whole(t, cloneLease)
}

func whole[M proto.Message](t *testing.T, clone func(M) M) {
	t.Helper()
	var none M
	r := none.ProtoReflect().New().Interface().(M)
	fill(r.ProtoReflect(), 0)
	require.True(t, proto.Equal(r, clone(r)), "%T", r)
}

func TestKeys(t *testing.T) {
	for _, n := range []uint64{0, 1, 42, 999_999, 1_000_000, 999_999_999_999, 1_000_000_000_000, 1<<64 - 1} {
		require.Equal(t, fmt.Sprintf("%020d", n), seqKey(n))
		require.Equal(t, fmt.Sprintf("a/%012d", n), groupKey("a", n))
		require.Equal(t, fmt.Sprintf("a/%012d", int64(n)), numberKey("a", int64(n)))
		for _, i := range []int32{-1 << 31, -1, 0, 7, 999_999, 1_000_000, 1<<31 - 1} {
			require.Equal(t, lease.Member("run", n, i), memberKey("run", n, i))
		}
	}
}

// fill sets every field of a message.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			if f.MapValue().Kind() == protoreflect.StringKind {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
			} else {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfFloat64(2))
			}
		case f.IsList():
			l := m.Mutable(f).List()
			if f.Message() != nil {
				v := l.NewElement()
				if depth < 4 {
					fill(v.Message(), depth+1)
				}
				l.Append(v)
			} else {
				l.Append(scalar(f))
			}
		case f.Message() != nil:
			if depth < 4 {
				fill(m.Mutable(f).Message(), depth+1)
			}
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(f.Number()))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(f.Number()))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(f.Number()))
	}
	return protoreflect.ValueOfInt64(int64(f.Number()))
}
