package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// verify ends every fault, lets the cluster settle and checks what must hold
// whatever happened: equal logs, equal states, every acknowledged command once
// and with the result that was given, log time that never falls and never runs
// ahead, fences that rise.
func (b *bubble) verify() {
	b.t.Helper()
	b.recover()
	index := b.settle()
	if b.restored {
		b.sameStates(index)
		return
	}
	log := b.sameLogs(index)
	b.replay(log, index)
}

// recover mends network and disks and starts what is down, unless a test gave it up.
func (b *bubble) recover() {
	b.t.Helper()
	b.net.heal()
	for _, m := range b.members {
		if m.broken {
			continue
		}
		b.net.resume(m.at)
		m.log.disk(nil)
		if n := m.running(); n != nil && n.Err() != nil {
			m.stop()
		}
		m.mu.Lock()
		down := m.opened == nil
		m.mu.Unlock()
		if down {
			m.start()
		}
	}
	for _, m := range b.members {
		b.until(time.Minute, m.id+" starts", func() bool { return m.broken || m.running() != nil })
	}
}

// settle waits until every node has applied the same, and returns the index.
func (b *bubble) settle() uint64 {
	b.t.Helper()
	b.caller("last").must(time.Minute, registerOp("last"))
	index := uint64(0)
	b.until(time.Minute, "all nodes apply the same", func() bool {
		nodes := b.nodes()
		index = nodes[0].raft.LastIndex()
		for _, n := range nodes {
			if _, applied := n.Stale(); applied != index || n.raft.LastIndex() != index {
				return false
			}
		}
		return true
	})
	return index
}

// sameLogs compares all logs up to an index and returns the one they are.
func (b *bubble) sameLogs(index uint64) []*raft.Log {
	b.t.Helper()
	out := make([]*raft.Log, index+1)
	by := make([]*member, index+1)
	for _, m := range b.members {
		limit := index
		if m.broken { // what it never knew to be committed may be taken back
			limit = 0
			if n := m.running(); n != nil {
				limit = min(index, n.raft.CommitIndex())
			}
		}
		m.log.mu.Lock()
		for i, l := range m.log.past {
			switch {
			case i > limit:
			case out[i] == nil:
				out[i], by[i] = l, m
			default:
				same := out[i].Term == l.Term && out[i].Type == l.Type && bytes.Equal(out[i].Data, l.Data)
				require.True(b.t, same, "entry %d differs between %s and %s: terms %d and %d", i, by[i].id, m.id, out[i].Term, l.Term)
			}
		}
		m.log.mu.Unlock()
	}
	term := uint64(0)
	for i, l := range out[1:] {
		require.NotNil(b.t, l, "no node has entry %d of %d", i+1, index)
		require.GreaterOrEqual(b.t, l.Term, term)
		term = l.Term
	}
	return out[1:]
}

// replay applies the log to an empty state and compares with what nodes and callers have.
func (b *bubble) replay(log []*raft.Log, index uint64) {
	b.t.Helper()
	s := state.New()
	results := map[string]*raftlog.Result{} // by client and sequence
	fences := map[uint64]string{}
	var first, last, fence uint64
	for _, l := range log {
		if l.Type != raft.LogCommand {
			continue
		}
		e, err := fsm.DecodeEntry(l.Data)
		require.NoError(b.t, err)
		require.GreaterOrEqual(b.t, uint64(e.NowNs), last, "log time falls at entry %d", l.Index)
		last = uint64(e.NowNs)
		if first == 0 {
			first = last
		}
		require.LessOrEqual(b.t, last-first, uint64(l.AppendedAt.Sub(b.began)), "log time runs ahead at entry %d", l.Index)
		for i, r := range s.Apply(e) {
			p := e.Proposals[i]
			if p.Client == "" {
				continue
			}
			key := fmt.Sprint(p.Client, "/", p.Seq)
			if was := results[key]; was != nil {
				if r.Code != raftlog.Code_CODE_STALE_SEQ {
					require.True(b.t, proto.Equal(was, r), "%s was applied twice", key)
				}
				continue
			}
			results[key] = r
			if f := fenceOf(r); f > 0 {
				require.Empty(b.t, fences[f], "fence %d was given twice", f)
				require.Greater(b.t, f, fence, "fences rise")
				fences[f], fence = key, f
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.acks {
		key := fmt.Sprint(a.client, "/", a.seq)
		got := results[key]
		require.NotNil(b.t, got, "%s was acknowledged and is lost", key)
		require.True(b.t, proto.Equal(got, a.result), "%s was acknowledged with another result: %v, %v", key, a.result, got)
	}
	want := dump(b.t, s)
	for _, m := range b.members {
		n := m.running()
		if n == nil || m.broken {
			continue
		}
		st, at := n.Stale()
		require.Equal(b.t, index, at, m.id)
		require.True(b.t, bytes.Equal(want, dump(b.t, st)), "the state of %s is not that of the log", m.id)
	}
	b.t.Logf("%d entries, %d acknowledged, %s of virtual time", index, len(b.acks), time.Since(b.began).Round(time.Second))
}

// sameStates is what can be checked without the whole log.
func (b *bubble) sameStates(index uint64) {
	b.t.Helper()
	var want []byte
	for _, n := range b.nodes() {
		s, at := n.Stale()
		require.Equal(b.t, index, at)
		got := dump(b.t, s)
		require.True(b.t, want == nil || bytes.Equal(want, got), "the state of %s is not that of the others", n.cfg.Node)
		want = got
	}
}

// see is a linearizable read by whoever answers within a time of the synctest bubble.
func (b *bubble) see(within time.Duration) *state.State {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), within)
	defer cancel()
	for ctx.Err() == nil {
		for _, n := range b.nodes() {
			try, done := context.WithTimeout(ctx, time.Second)
			s, _, err := n.Read(try)
			done()
			if err == nil {
				return s
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatalf("no read within %s%s", within, b.situation())
	return nil
}
