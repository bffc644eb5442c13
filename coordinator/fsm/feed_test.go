package fsm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func groupChange(id, step int) state.Change {
	return state.Change{Kind: state.KindGroup, Key: fmt.Sprint("r/", id), Record: &raftlog.Record{Record: &raftlog.Record_Group{Group: &raftlog.Group{Run: "r", Id: uint64(id), Step: int64(step)}}}}
}

// Watchers that come when they like hold the same records as the state, or are
// told that they missed something; a watcher that keeps up is never told that.
func TestFeedBringsWatchersUpToDate(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := newFeed(50, 1<<20)
	truth := map[string]*raftlog.Record{}
	copyOf := func() map[string]*raftlog.Record {
		m := map[string]*raftlog.Record{}
		for k, r := range truth {
			m[k] = r
		}
		return m
	}
	type watcher struct {
		has      map[string]*raftlog.Record
		revision uint64
	}
	watchers := make([]watcher, 10)
	for i := range watchers {
		watchers[i].has = map[string]*raftlog.Record{}
	}
	gaps := 0
	index := uint64(0)
	for range 2000 {
		index += 1 + rnd.Uint64N(3)
		var changes []state.Change
		for range rnd.IntN(4) {
			c := groupChange(rnd.IntN(100), int(index))
			if rnd.IntN(4) == 0 {
				c.Record = nil
			}
			if truth[c.Key] = c.Record; c.Record == nil {
				delete(truth, c.Key)
			}
			changes = append(changes, c)
		}
		f.add(index, changes)
		require.LessOrEqual(t, f.order.Len(), 50)
		require.Len(t, f.byKey, f.order.Len())
		for i := range watchers {
			w := &watchers[i]
			if i > 0 && rnd.IntN(1<<i) > 0 { // the first always comes
				continue
			}
			got, upTo, err := f.since(w.revision, 0)
			if err != nil {
				require.ErrorIs(t, err, ErrGap)
				require.Positive(t, i, "who keeps up misses nothing")
				gaps++
				w.has, w.revision = copyOf(), index
				continue
			}
			require.Equal(t, index, upTo)
			w.revision = upTo
			for _, c := range got {
				if w.has[c.Key] = c.Record; c.Record == nil {
					delete(w.has, c.Key)
				}
			}
			require.Equal(t, truth, w.has)
		}
	}
	require.Positive(t, gaps)
}

func TestFeedIsBounded(t *testing.T) {
	f := newFeed(1000, 100_000)
	for i := range 100_000 {
		f.add(uint64(i+1), []state.Change{groupChange(i%5000, i), {Kind: state.KindRun, Key: "r"}})
		require.LessOrEqual(t, f.bytes, 100_000)
		require.LessOrEqual(t, f.order.Len(), 1000)
	}
	require.Greater(t, f.bytes, 90_000)
	_, _, err := f.since(0, 0)
	require.ErrorIs(t, err, ErrGap)
	got, upTo, err := f.since(99_990, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(100_000), upTo)
	require.Len(t, got, 11, "ten groups, and the run once")
	got, upTo, err = f.since(100_100, 0)
	require.NoError(t, err)
	require.Empty(t, got)
	require.Equal(t, uint64(100_100), upTo, "a revision that another node gave and this one has not reached")
	for i := range 10 {
		f.add(uint64(100_001+i), []state.Change{{Kind: state.KindRun, Key: string(bytes.Repeat([]byte("x"), 200_000))}})
	}
	require.Zero(t, f.order.Len(), "what is larger than the feed is not kept")
	_, _, err = f.since(100_009, 0)
	require.ErrorIs(t, err, ErrGap)
	_, _, err = f.since(100_010, 0)
	require.NoError(t, err)
}

func TestSince(t *testing.T) {
	f := New(state.New(), 2, nil)
	_, _, err := f.Since(1, 0)
	require.ErrorIs(t, err, ErrGap, "from before the start")
	f.ApplyBatch([]*raft.Log{command(t, 3, register(1, "h1")), command(t, 4, register(2, "h2"))})
	got, upTo, err := f.Since(2, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(4), upTo)
	require.Len(t, got, 2)
	require.Equal(t, "h1", got[0].Record.GetNode().GetName())
	got, _, err = f.Since(3, 0)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "h2", got[0].Record.GetNode().GetName())
}

// issue 16028 of etcd: a watcher with a revision of before a restore is told to
// begin again; nothing is passed over in silence.
func TestEtcd16028_WatchersResyncAfterARestore(t *testing.T) {
	f := New(state.New(), 0, nil)
	for i := range uint64(9) {
		f.Apply(command(t, i+1, register(i+1, fmt.Sprint("h", i))))
	}
	old, _, _ := f.View()
	for _, c := range []struct {
		name  string
		state *state.State
		epoch uint64
		index uint64
	}{
		{"from another node", old.Fork(), 0, 20},
		{"by hand", old.Reborn("c", 1), 1, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			var from io.ReadCloser = io.NopCloser(bytes.NewReader(dump(t, c.state)))
			require.NoError(t, f.Restore(wrapped{placed{from, c.index}}))
			_, index, _ := f.View()
			require.Equal(t, c.index, index, "the view is of the snapshot's entry")
			_, _, err := f.Since(9, 0)
			require.ErrorIs(t, err, ErrGap)
			f.Apply(command(t, c.index+1, register(100+c.index, "later")))
			_, _, err = f.Since(c.index, c.epoch+1)
			require.ErrorIs(t, err, ErrGap, "an epoch that is not this one's")
			got, upTo, err := f.Since(c.index, c.epoch)
			require.NoError(t, err)
			require.Equal(t, c.index+1, upTo)
			require.Len(t, got, 1)
		})
	}
}

type placed struct {
	io.ReadCloser
	index uint64
}

func (p placed) SnapshotIndex() uint64 { return p.index }

// wrapped hides the index as raft does.
type wrapped struct{ io.ReadCloser }

func (w wrapped) WrappedReadCloser() io.ReadCloser { return w.ReadCloser }
