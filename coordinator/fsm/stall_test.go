package fsm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

const (
	stallWorkers = 10_000
	stallLeases  = 96 // of each worker
	stallSize    = 16 // of a group
)

// leased is a state of a million episodes, all under lease.
func leased(b *testing.B) *state.State {
	b.Helper()
	const fence = 1 << 40
	now := int64(time.Hour)
	records := []*raftlog.Record{
		{Record: &raftlog.Record_Header{Header: &raftlog.Header{Format: 1}}},
		{Record: &raftlog.Record_Clock{Clock: &raftlog.Clock{NowNs: now, NextFence: fence + 1<<30, NextEvent: 1, Term: 1}}},
		{Record: &raftlog.Record_Run{Run: &raftlog.Run{
			Id: "r", State: raftlog.RunState_RUN_STATE_RUNNING, Counters: &raftlog.Counters{}, Cursors: []*raftlog.Cursor{{}}, NextGroup: 1 << 30,
			Config: &raftlog.RunConfig{Steps: 1 << 20, GroupsPerStep: 1 << 20, LagMax: 2, PublishEvery: 1, Concurrency: 1 << 30, Envs: []*raftlog.EnvConfig{{Name: "e", Weight: 1, GroupSize: stallSize, Tasks: []*raftlog.TaskRef{{Id: "t"}}}}},
		}}},
	}
	for w := range stallWorkers {
		records = append(records, &raftlog.Record{Record: &raftlog.Record_Node{Node: &raftlog.Node{
			Role: state.RoleRollout, Name: fmt.Sprint("w", w), Incarnation: 1, State: raftlog.NodeState_NODE_STATE_READY, ExpiryNs: now + state.LeaseTTL, Version: -1,
		}}})
	}
	const groups = stallWorkers * stallLeases / stallSize
	for g := range groups {
		records = append(records, &raftlog.Record{Record: &raftlog.Record_Group{Group: &raftlog.Group{Run: "r", Id: uint64(g), Size: stallSize, State: raftlog.GroupState_GROUP_STATE_OPEN}}})
	}
	for i := range stallWorkers * stallLeases {
		w := i / stallSize % stallWorkers // a worker leases groups, one now and one then
		records = append(records, &raftlog.Record{Record: &raftlog.Record_Episode{Episode: &raftlog.Episode{
			Run: "r", Group: uint64(i / stallSize), Index: int32(i % stallSize), State: raftlog.EpisodeState_EPISODE_STATE_LEASED, Attempt: 1, Seed: int64(i), Host: "h",
			Lease: &raftlog.Lease{Holder: fmt.Sprint("w", w), Incarnation: 1, Fence: uint64(fence + i), GrantedNs: now, ExpiryNs: now + state.LeaseTTL},
		}}})
	}
	records = append(records, &raftlog.Record{Record: &raftlog.Record_Footer{Footer: &raftlog.Footer{Records: uint64(len(records))}}})
	s, err := state.Restore(func() (*raftlog.Record, error) {
		r := records[0]
		records = records[1:]
		return r, nil
	})
	require.NoError(b, err)
	return s
}

// renewal is an entry that renews what some workers hold.
func renewal(b *testing.B, index uint64, workers int) *raft.Log {
	b.Helper()
	e := &raftlog.Entry{NowNs: int64(time.Hour) + int64(index), Term: 1}
	for range workers {
		w := rand.IntN(stallWorkers)
		h := &raftlog.Heartbeat{Node: &raftlog.NodeRef{Role: state.RoleRollout, Name: fmt.Sprint("w", w), Incarnation: 1}}
		for j := range stallLeases / stallSize {
			for k := range stallSize {
				i := (j*stallWorkers+w)*stallSize + k
				h.Held = append(h.Held, &raftlog.Held{Resource: lease.Episode("r", uint64(i/stallSize), int32(i%stallSize)), Fence: uint64(1<<40 + i)})
			}
		}
		e.Proposals = append(e.Proposals, &raftlog.Proposal{Client: fmt.Sprint("c", w), Seq: index, Op: &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}}})
	}
	data, err := EncodeEntry(e)
	require.NoError(b, err)
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: data}
}

// spent is one Apply by the clock and by the processor time of its thread:
// their difference is what the machine's other work took.
type spent struct{ wall, cpu time.Duration }

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkStall reports how long Apply takes at most for an entry with the
// renewals of some workers, 96 leases each, of a million, while a
// snapshot of them is written, and without one. A reader forks the state after
// every entry, so that each Apply copies what it changes.
func BenchmarkStall(b *testing.B) {
	s := leased(b)
	for _, workers := range []int{1, 10, 40} {
		b.Run(fmt.Sprint("renewals=", workers*stallLeases), func(b *testing.B) { benchmarkStall(b, New(s.Fork(), 1, nil), workers) })
	}
}

func benchmarkStall(b *testing.B, f *FSM, workers int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	index := uint64(1)
	apply := func() (x spent) {
		index++
		l := renewal(b, index, workers)
		wall, cpu := time.Now(), threadTime()
		out := f.Apply(l)
		x.cpu, x.wall = threadTime()-cpu, time.Since(wall)
		if h := out.([]*raftlog.Result)[0].GetHeartbeat(); h.Fenced || len(h.Lost) > 0 {
			b.Fatal(h)
		}
		f.View()
		return x
	}
	var quiet, busy []spent
	for range 50 {
		quiet = append(quiet, apply())
	}
	for b.Loop() {
		snap, err := f.Snapshot()
		require.NoError(b, err)
		file, err := os.Create(filepath.Join(b.TempDir(), "snapshot"))
		require.NoError(b, err)
		written := make(chan error, 1)
		began := time.Now()
		go func() { written <- snap.Persist(fileSink{file}) }()
		for done := false; !done; {
			select {
			case err := <-written:
				require.NoError(b, err)
				done = true
			default:
				busy = append(busy, apply())
			}
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/snapshot")
		require.NoError(b, file.Close())
	}
	b.ReportMetric(0, "ns/op")
	for name, x := range map[string][]spent{"quiet": quiet, "snapshot": busy} {
		report := func(what string, of func(spent) time.Duration) {
			slices.SortFunc(x, func(a, b spent) int { return int(of(a) - of(b)) })
			b.ReportMetric(float64(of(x[len(x)/2]).Microseconds())/1e3, name+"-"+what+"-ms-p50")
			b.ReportMetric(float64(of(x[len(x)-1]).Microseconds())/1e3, name+"-"+what+"-ms-max")
		}
		report("wall", func(x spent) time.Duration { return x.wall })
		report("cpu", func(x spent) time.Duration { return x.cpu })
	}
}

type fileSink struct{ *os.File }

func (s fileSink) ID() string    { return "file" }
func (s fileSink) Cancel() error { return nil }
func (s fileSink) Close() error  { return s.Sync() }
