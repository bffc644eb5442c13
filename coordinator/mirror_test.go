package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// memoryStore is a ManifestStore whose failures a test decides.
type memoryStore struct {
	mu      sync.Mutex // guards all
	objects map[string][]byte
	puts    int
	broken  error
}

func newMemoryStore() *memoryStore { return &memoryStore{objects: map[string][]byte{}} }

func (s *memoryStore) Put(_ context.Context, key string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if s.broken != nil {
		return s.broken
	}
	if old, found := s.objects[key]; found {
		if string(old) != string(data) {
			return errors.New("exists with other content")
		}
		return nil
	}
	s.objects[key] = data
	return nil
}

func (s *memoryStore) Get(_ context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, found := s.objects[key]; found && s.broken == nil {
		return b, nil
	}
	return nil, errors.Join(errors.New("not found"), s.broken)
}

func (s *memoryStore) Keys(_ context.Context, prefix string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for k := range s.objects {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	sort.Strings(out)
	return out, s.broken
}

func (s *memoryStore) breakWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

// events reads a run's chain as an offline reader does: in key order, each object after the one before.
func (s *memoryStore) events(t *testing.T, run string) (out []*raftlog.Event) {
	t.Helper()
	keys, err := s.Keys(t.Context(), run+"/manifest/")
	require.NoError(t, err)
	var prev uint64
	for _, k := range keys {
		var m manifest
		require.NoError(t, json.Unmarshal(s.objects[k], &m))
		require.Equal(t, prev, m.Prev, "%s: an object is missing before it", k)
		require.Equal(t, ManifestKey(run, m.First), k)
		for _, raw := range m.Events {
			e := &raftlog.Event{}
			require.NoError(t, protojson.Unmarshal(raw, e))
			require.Greater(t, e.Seq, prev)
			require.Equal(t, run, e.Run)
			prev = e.Seq
			out = append(out, e)
		}
		require.Equal(t, m.Last, prev)
	}
	return out
}

// mirrorBench is a mirror over a state machine without raft.
type mirrorBench struct {
	*mirror
	store *memoryStore
	state *state.State
	seq   uint64
}

func newMirrorBench(t *testing.T, store *memoryStore) *mirrorBench {
	t.Helper()
	cfg := DefaultConfig("unused")
	cfg.Mirror = store
	s := state.New()
	return &mirrorBench{
		mirror: newMirror(cfg, fsm.New(s, 0, nil), newMetrics()),
		store:  store, state: s,
	}
}

// events makes n runs, which emit an event each, or ends runs, which does too.
func (b *mirrorBench) apply(t *testing.T, op *raftlog.Op) {
	t.Helper()
	b.seq++
	r := b.state.Apply(&raftlog.Entry{NowNs: int64(b.seq), Proposals: []*raftlog.Proposal{{Client: "t", Seq: b.seq, Op: op}}})
	require.Equal(t, raftlog.Code_CODE_OK, r[0].Code, r[0].Message)
}

func (b *mirrorBench) commit(_ context.Context, op *raftlog.Op) error {
	b.state.Apply(&raftlog.Entry{Proposals: []*raftlog.Proposal{{Op: op}}})
	b.mirror.fsm = fsm.New(b.state, 0, nil) // a new view
	return nil
}

func cancelRun(id string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: id, Action: "cancel"}}}
}

func TestMirrorChainsRunsApart(t *testing.T) {
	b := newMirrorBench(t, newMemoryStore())
	ends := map[string]uint64{}
	b.apply(t, createRun("a"))
	b.apply(t, createRun("b"))
	require.NoError(t, b.round(t.Context(), ends, b.commit))
	require.Empty(t, b.state.Outbox(10))
	b.apply(t, cancelRun("b"))
	b.apply(t, cancelRun("a"))
	require.NoError(t, b.round(t.Context(), ends, b.commit))
	require.Len(t, b.store.objects, 4)
	for _, run := range []string{"a", "b"} {
		got := b.store.events(t, run)
		require.NotNil(t, got[0].GetRunCreated())
		require.Equal(t, "cancelled", got[len(got)-1].GetRunEnded().GetState())
	}
	puts := b.store.puts
	require.NoError(t, b.round(t.Context(), ends, b.commit))
	require.Equal(t, puts, b.store.puts, "nothing to mirror, nothing written")
}

// A leader that dies between Put and Mirrored leaves an object that holds less than
// what waits now; the next one goes on behind it.
func TestMirrorContinuesAfterACrash(t *testing.T) {
	b := newMirrorBench(t, newMemoryStore())
	b.apply(t, createRun("a"))
	lost := errors.New("killed before Mirrored")
	err := b.round(t.Context(), map[string]uint64{}, func(context.Context, *raftlog.Op) error { return lost })
	require.ErrorIs(t, err, lost)
	require.Len(t, b.store.objects, 1)
	b.apply(t, createRun("b"))
	b.apply(t, cancelRun("a"))
	b.mirror.fsm = fsm.New(b.state, 0, nil)

	t.Run("same process", func(t *testing.T) { // knows nothing of what it wrote, the key tells
		require.NoError(t, b.write(t.Context(), "a", onlyRun(b.state.Outbox(100), "a"), 0, map[string]uint64{"a": 0}))
		require.Len(t, b.store.events(t, "a"), len(onlyRun(b.state.Outbox(100), "a")))
	})
	t.Run("next leader", func(t *testing.T) {
		want := onlyRun(b.state.Outbox(100), "a")
		require.NoError(t, b.round(t.Context(), map[string]uint64{}, b.commit))
		require.Len(t, b.store.events(t, "a"), len(want))
		require.Len(t, b.store.events(t, "b"), 1)
	})
}

// A store that knows this run from another coordinator is never continued, and nothing in it is taken for ours.
func TestMirrorRefusesAnotherHistory(t *testing.T) {
	old := newMirrorBench(t, newMemoryStore())
	old.seq = 100 // at other moments
	old.apply(t, createRun("x"))
	old.apply(t, createRun("r"))
	require.NoError(t, old.round(t.Context(), map[string]uint64{}, old.commit))
	for name, runs := range map[string][]string{
		"older sequence numbers": {"r"},
		"the same":               {"y", "r"},
		"newer":                  {"y", "z", "r"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMirrorBench(t, old.store)
			for _, run := range runs {
				b.apply(t, createRun(run))
			}
			require.ErrorIs(t, b.write(t.Context(), "r", onlyRun(b.state.Outbox(9), "r"), 0, map[string]uint64{}), errOtherHistory)
			require.Len(t, b.store.events(t, "r"), 1)
		})
	}
}

// The name of a removed run whose objects were deleted begins a new chain.
func TestMirrorOfARecreatedRun(t *testing.T) {
	b := newMirrorBench(t, newMemoryStore())
	ends := map[string]uint64{}
	for range 2 {
		b.apply(t, createRun("r"))
		b.apply(t, cancelRun("r"))
		require.NoError(t, b.round(t.Context(), ends, b.commit))
		require.GreaterOrEqual(t, len(b.store.events(t, "r")), 2)
		b.apply(t, &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "r", Action: "remove"}}})
		clear(b.store.objects)
	}
}

func onlyRun(events []*raftlog.Event, run string) (out []*raftlog.Event) {
	for _, e := range events {
		if e.Run == run {
			out = append(out, e)
		}
	}
	return out
}

func TestMirrorSplitsLargeRounds(t *testing.T) {
	store := newMemoryStore()
	m := &mirror{store: store}
	events := make([]*raftlog.Event, 2*mirrorObject+5)
	for i := range events {
		events[i] = &raftlog.Event{Seq: uint64(3*i + 1), Run: "r"}
	}
	require.NoError(t, m.write(t.Context(), "r", events, 0, map[string]uint64{}))
	require.Len(t, store.objects, 3)
	require.Len(t, store.events(t, "r"), len(events))
}

func TestMirrorRefusesAForeignObject(t *testing.T) {
	store := newMemoryStore()
	store.objects[ManifestKey("r", 1)] = []byte("{}")
	m := &mirror{store: store}
	err := m.write(t.Context(), "r", []*raftlog.Event{{Seq: 1, Run: "r"}}, 0, map[string]uint64{"r": 0})
	require.ErrorContains(t, err, "holds no events")
}

// A store that fails stops nothing: proposals commit, the reason is visible, and writing goes on when it is back.
func TestMirrorFailureIsVisibleAndHeals(t *testing.T) {
	cfg := testConfig(t.TempDir())
	store := newMemoryStore()
	store.breakWith(errors.New("no such bucket"))
	cfg.Mirror, cfg.MirrorEvery = store, time.Millisecond
	n := open(t, cfg)
	propose(t, n, "c", 1, createRun("r"))
	require.Eventually(t, func() bool { return n.MirrorLag().Err != nil }, time.Minute, time.Millisecond)
	lag := n.MirrorLag()
	require.Equal(t, uint64(1), lag.Waiting)
	require.Contains(t, n.Status().Mirror.Reason, "no such bucket")
	for i := range 10 {
		propose(t, n, "c", uint64(i+2), registerOp(fmt.Sprint("h", i)))
	}
	store.breakWith(nil)
	require.Eventually(t, func() bool { return n.MirrorLag() == Lag{} }, time.Minute, time.Millisecond)
	require.Len(t, store.events(t, "r"), 1)
	require.Empty(t, n.Status().Mirror.Reason)
}

// An orderly close takes the last events with it, although the pace would let them wait.
func TestCloseFlushesTheMirror(t *testing.T) {
	cfg := testConfig(t.TempDir())
	store := newMemoryStore()
	cfg.Mirror, cfg.MirrorEvery = store, 20*time.Millisecond
	reg := prometheus.NewRegistry()
	cfg.Registerer = reg
	for _, run := range []string{"a", "b"} { // the same registry again: nothing is registered twice
		n := open(t, cfg)
		propose(t, n, run, 1, createRun(run))
		propose(t, n, run, 2, cancelRun(run))
		require.NoError(t, n.Close())
		got := store.events(t, run)
		require.NotNil(t, got[len(got)-1].GetRunEnded())
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
}

// A log that has lost acknowledged entries at its end looks like one that was
// cut by a crash; the store knows better.
func TestStoreAheadOfTheLog(t *testing.T) {
	cfg := testConfig(t.TempDir())
	store := newMemoryStore()
	cfg.Mirror, cfg.MirrorEvery = store, time.Millisecond
	n := open(t, cfg)
	propose(t, n, "a", 1, createRun("a"))
	require.Eventually(t, func() bool { return n.MirrorLag().Waiting == 0 }, 10*time.Second, time.Millisecond)
	older := killed(t, cfg.Dir)
	propose(t, n, "a", 2, cancelRun("a"))
	require.NoError(t, n.Close())
	events := store.events(t, "a")

	cfg.Dir = older
	_, err := Open(t.Context(), cfg)
	require.ErrorIs(t, err, fsm.ErrDamaged)
	require.ErrorContains(t, err, "of run a")
	require.Equal(t, len(events), len(store.events(t, "a")), "nothing was changed")
}
