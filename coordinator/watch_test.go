package coordinator

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// followed is what a receiver of a Watch holds.
type followed struct {
	revision, epoch uint64
	records         map[string]*raftlog.Record
	alarms          []*raftlog.Alarm
	messages        int
	snapshots       int
}

func (f *followed) take(m *pb.WatchResponse) {
	f.messages++
	if m.Snapshot {
		f.records = map[string]*raftlog.Record{}
		f.snapshots++
	}
	if m.Revision > 0 {
		f.revision, f.epoch = m.Revision, m.Epoch
	}
	for _, r := range m.Records {
		f.records[nameOf(r)] = r
	}
	for _, r := range m.Removed {
		delete(f.records, strings.ToLower(strings.TrimPrefix(r.Kind.String(), "KIND_"))+" "+r.Key)
	}
	if m.AlarmsChanged {
		f.alarms = m.Alarms
	}
}

func nameOf(r *raftlog.Record) string {
	switch v := r.Record.(type) {
	case *raftlog.Record_Run:
		return "run " + v.Run.Id
	case *raftlog.Record_Version:
		return fmt.Sprintf("version %s/%d", v.Version.Run, v.Version.Version)
	case *raftlog.Record_Group:
		return fmt.Sprintf("group %s/%d", v.Group.Run, v.Group.Id)
	case *raftlog.Record_Step:
		return fmt.Sprintf("step %s/%d", v.Step.Run, v.Step.Step)
	case *raftlog.Record_Eval:
		return fmt.Sprintf("eval %s/%d/%s", v.Eval.Run, v.Eval.Version, v.Eval.Suite)
	case *raftlog.Record_Node:
		return fmt.Sprintf("node %s/%s", v.Node.Role, v.Node.Name)
	}
	return fmt.Sprintf("%T", r.Record)
}

// until receives until enough is true.
func (f *followed) until(t *testing.T, s grpc.ServerStreamingClient[pb.WatchResponse], enough func() bool) {
	t.Helper()
	for !enough() {
		m, err := s.Recv()
		require.NoError(t, err)
		f.take(m)
	}
}

func control(run, action string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: run, Action: action, Reason: "test"}}}
}

func (f *followed) run(id string) *raftlog.Run { return f.records["run "+id].GetRun() }

func TestWatch(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	c := dial(t, n, bufconn.Listen(1<<16))
	propose(t, n, "c", 1, createRun("a"))
	propose(t, n, "c", 2, createRun("b"))

	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Watch(ctx, &pb.WatchRequest{Run: "a", Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_VERSION, pb.Kind_KIND_NODE, pb.Kind_KIND_ALARM}})
	require.NoError(t, err)
	f := &followed{}
	f.until(t, s, func() bool { return f.revision > 0 })
	require.Equal(t, 1, f.snapshots)
	require.Len(t, f.records, 2, "the run and its version 0")
	require.NotNil(t, f.run("a").Config)
	require.NotEmpty(t, f.alarms)

	propose(t, n, "c", 3, control("b", "pause"))
	propose(t, n, "c", 4, control("a", "pause"))
	propose(t, n, "c", 5, registerOp("h"))
	f.until(t, s, func() bool {
		return f.records["node host/h"] != nil && f.run("a").State == raftlog.RunState_RUN_STATE_PAUSED
	})
	require.Nil(t, f.run("b"), "of another run")
	require.Nil(t, f.run("a").Config, "what never changes is sent once")
	f.until(t, s, func() bool {
		for _, a := range f.alarms {
			if a.Name == "no-host" {
				return false
			}
		}
		return len(f.alarms) > 0
	})
	cancel()
	for err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool { return !n.hub.alarmed() && watchers(n) == 0 }, time.Minute, time.Millisecond)

	// Back again, with what was missed and nothing else.
	propose(t, n, "c", 6, control("a", "resume"))
	s, err = c.Watch(t.Context(), &pb.WatchRequest{Run: "a", Kinds: []pb.Kind{pb.Kind_KIND_RUN}, After: f.revision, Epoch: f.epoch})
	require.NoError(t, err)
	f.messages = 0
	f.until(t, s, func() bool { return f.run("a").State == raftlog.RunState_RUN_STATE_RUNNING })
	require.Equal(t, 1, f.messages)
	require.Equal(t, 1, f.snapshots)
	require.NotNil(t, f.run("a").Config, "a new stream does not know what its receiver has")
	propose(t, n, "c", 7, control("a", "cancel"))
	require.NoError(t, n.housekeep(t.Context(), &raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 1 << 60}}}))
	propose(t, n, "c", 8, control("a", "remove"))
	f.until(t, s, func() bool { return f.run("a") == nil })
}

func watchers(n *Node) int {
	n.hub.mu.Lock()
	defer n.hub.mu.Unlock()
	return n.hub.watchers
}

func TestWatchRefusals(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	n.hub.limits.watchers, n.hub.limits.leaderless = 1, 0
	c := dial(t, n, bufconn.Listen(1<<16))
	propose(t, n, "c", 1, createRun("a"))
	applied := n.Status().Applied
	for name, x := range map[string]struct {
		req  *pb.WatchRequest
		want pb.Reason
	}{
		"episodes":            {&pb.WatchRequest{Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_EPISODE}}, pb.Reason_REASON_INVALID},
		"from the future":     {&pb.WatchRequest{After: applied + 1000}, pb.Reason_REASON_RESYNC},
		"of another epoch":    {&pb.WatchRequest{After: applied, Epoch: 7}, pb.Reason_REASON_RESYNC},
		"of before the start": {&pb.WatchRequest{After: 1}, pb.Reason_REASON_UNSPECIFIED},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := c.Watch(ctx, x.req)
			require.NoError(t, err)
			if x.want == pb.Reason_REASON_UNSPECIFIED {
				_, err = s.Recv()
				require.NoError(t, err, "nothing was forgotten yet")
			} else {
				for err == nil {
					_, err = s.Recv()
				}
				require.Equal(t, x.want, reason(t, err))
				require.NotContains(t, status.Convert(err).Message(), "\n")
			}
			cancel()
			require.Eventually(t, func() bool { return watchers(n) == 0 }, time.Minute, time.Millisecond)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.Watch(ctx, &pb.WatchRequest{})
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	second, err := c.Watch(ctx, &pb.WatchRequest{})
	require.NoError(t, err)
	_, err = second.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.NoError(t, n.Close())
	for err = nil; err == nil; {
		_, err = s.Recv()
	}
	require.NotEqual(t, codes.Canceled, status.Code(err), "a closing node ends its streams")
}

// A run that is too large for one message comes in several, and only the last has a revision to go on from.
func TestWatchChunks(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	c := dial(t, n, bufconn.Listen(1<<16))
	for i := range 5 {
		op := createRun(fmt.Sprint("r", i))
		op.GetCreateRun().Spec = make([]byte, viewChunk/2)
		propose(t, n, "c", uint64(i+1), op)
	}
	s, err := c.Watch(t.Context(), &pb.WatchRequest{Kinds: []pb.Kind{pb.Kind_KIND_RUN}})
	require.NoError(t, err)
	f := &followed{}
	f.until(t, s, func() bool { return f.messages == 4 })
	require.Zero(t, f.revision)
	f.until(t, s, func() bool { return f.revision > 0 })
	require.Equal(t, 5, f.messages)
	require.Len(t, f.records, 5)
	require.Equal(t, 1, f.snapshots)
}

// issues 17427 of ray and 3267 of swarmkit: receivers that take nothing while
// the state changes and changes cost a bounded amount of memory, are let go,
// and hear that they have to begin again; the others are not held up.
func TestRay17427_StalledWatchers(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	n.hub.limits.stall = 2 * time.Second
	c := dial(t, n, bufconn.Listen(1<<16), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<16))
	op := createRun("r")
	op.GetCreateRun().Spec = make([]byte, 1<<20)
	propose(t, n, "c", 1, op)
	const stalled = 50
	streams := make([]grpc.ServerStreamingClient[pb.WatchResponse], stalled)
	for i := range streams {
		var err error
		streams[i], err = c.Watch(t.Context(), &pb.WatchRequest{Run: "r", Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_NODE}})
		require.NoError(t, err)
	}
	quick, err := c.Watch(t.Context(), &pb.WatchRequest{Run: "r", Kinds: []pb.Kind{pb.Kind_KIND_NODE}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return watchers(n) == stalled+1 }, time.Minute, time.Millisecond)
	f := &followed{}
	f.until(t, quick, func() bool { return f.revision > 0 })
	before := heap()
	labels := map[string]string{"fat": strings.Repeat("x", 10<<10)}
	const last = 1500
	var g errgroup.Group
	g.Go(func() error {
		for f.records[fmt.Sprintf("node host/h%d", (last-1)%10)].GetNode().GetIncarnation() < last {
			m, err := quick.Recv()
			if err != nil {
				return err
			}
			f.take(m)
		}
		return nil
	})
	for i := range last { // 15 MB of changes; times 50 receivers would be 750 MB
		propose(t, n, "c", uint64(i+2), &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
			Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", i%10), Incarnation: uint64(i + 1)}, Labels: labels,
		}}})
	}
	require.NoError(t, g.Wait())
	require.Less(t, heap(), before+160<<20) // of which gRPC holds the 50 first messages of 1 MiB at both ends
	require.Eventually(t, func() bool { return watchers(n) == 1 }, time.Minute, time.Millisecond, "let go although they do not listen")
	for _, s := range streams {
		var err error
		for err == nil {
			_, err = s.Recv()
		}
		require.Equal(t, pb.Reason_REASON_RESYNC, reason(t, err))
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A receiver that is slower than the feed is told so, not given a part.
func TestWatchBehindTheFeed(t *testing.T) {
	m := fsm.New(state.New(), 0, nil)
	n := &Node{fsm: m, hub: newHub(m, newMetrics())}
	index := uint64(0)
	apply := func(names ...string) {
		index++
		e := &raftlog.Entry{NowNs: int64(index), Term: 1}
		for _, name := range names {
			e.Proposals = append(e.Proposals, &raftlog.Proposal{Op: registerOp(name)})
		}
		b, err := fsm.EncodeEntry(e)
		require.NoError(t, err)
		m.Apply(&raft.Log{Index: index, Type: raft.LogCommand, Data: b})
	}
	w := &watcher{node: n, kinds: []pb.Kind{pb.Kind_KIND_NODE}, known: map[string]bool{}}
	f := &followed{}
	w.send = func(m *pb.WatchResponse) error { f.take(proto.CloneOf(m)); return nil }
	standing := n.hub.watchAlarms("")
	defer standing.leave()
	require.NoError(t, w.begin(standing))
	for i := range 5 {
		apply(fmt.Sprint("first", i))
		_, err := w.update(standing)
		require.NoError(t, err)
		require.Len(t, f.records, i+1)
	}
	for i := range 40 {
		var names []string
		for j := range 1000 {
			names = append(names, fmt.Sprint(i, "-", j))
		}
		apply(names...)
	}
	_, err := w.update(standing)
	require.ErrorIs(t, err, fsm.ErrGap)
	require.Len(t, f.records, 5, "and it got nothing that has a hole before it")
	require.NoError(t, w.begin(standing))
	require.Len(t, f.records, 40_005)
}

// Every node serves watches. One that is cut off says so instead of keeping its
// receivers waiting, and they go on elsewhere without missing or repeating anything.
func TestWatchOnFollowers(t *testing.T) {
	nodes := cluster(t)
	leader := leaderOf(t, nodes)
	var followers []*Node
	for _, n := range nodes {
		n.hub.limits.leaderless = 500 * time.Millisecond
		if n != leader {
			followers = append(followers, n)
		}
	}
	propose(t, leader, "c", 1, createRun("r"))
	from := dial(t, followers[0], bufconn.Listen(1<<16))
	s, err := from.Watch(t.Context(), &pb.WatchRequest{Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_NODE}})
	require.NoError(t, err)
	f := &followed{}
	f.until(t, s, func() bool { return f.run("r") != nil })

	cut := followers[0].cfg.Transport.(*raft.InmemTransport)
	for _, n := range nodes {
		if n != followers[0] {
			cut.Disconnect(n.cfg.Transport.LocalAddr())
			n.cfg.Transport.(*raft.InmemTransport).Disconnect(cut.LocalAddr())
		}
	}
	propose(t, leader, "c", 2, registerOp("missed"))
	for err == nil {
		var m *pb.WatchResponse
		if m, err = s.Recv(); err == nil {
			f.take(m)
		}
	}
	require.Equal(t, pb.Reason_REASON_NOT_LEADER, reason(t, err))
	require.Nil(t, f.records["node host/missed"])

	other := dial(t, followers[1], bufconn.Listen(1<<16))
	s, err = other.Watch(t.Context(), &pb.WatchRequest{Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_NODE}, After: f.revision, Epoch: f.epoch})
	require.NoError(t, err)
	f.messages = 0
	f.until(t, s, func() bool { return f.records["node host/missed"] != nil })
	require.Equal(t, 1, f.snapshots, "it went on from its revision")
	require.Equal(t, 1, f.messages)
}
