package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

// dial serves the node on a listener and returns a client of it.
func dial(t *testing.T, n *Node, l net.Listener, opts ...grpc.DialOption) pb.CoordinatorClient {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- n.Serve(l) }()
	target := l.Addr().String()
	switch l := l.(type) {
	case *net.UnixListener:
		target = "unix:" + target
	case *bufconn.Listener:
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	}
	if _, unix := l.(*net.UnixListener); !unix {
		target = "passthrough:///" + target
	}
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		require.NoError(t, n.Close())
		require.NoError(t, <-served)
	})
	return pb.NewCoordinatorClient(conn)
}

func reason(t *testing.T, err error) pb.Reason {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*pb.Refusal); ok {
			return r.Reason
		}
	}
	t.Fatalf("no refusal in %v", err)
	return 0
}

func TestServiceOnEveryTransport(t *testing.T) {
	for name, listen := range map[string]func(t *testing.T) net.Listener{
		"unix": func(t *testing.T) net.Listener {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			require.NoError(t, err)
			return l
		},
		"tcp": func(t *testing.T) net.Listener {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			return l
		},
		"memory": func(*testing.T) net.Listener { return bufconn.Listen(1 << 16) },
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t, testConfig(t.TempDir()))
			c := dial(t, n, listen(t))
			r, err := c.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 1, Op: createRun("r")})
			require.NoError(t, err)
			require.Equal(t, "r", r.GetCreateRun().GetId())
			why, err := c.Why(t.Context(), &pb.WhyRequest{Run: "r"})
			require.NoError(t, err)
			require.Contains(t, why.Text, "Run r is at step 0 of 1")
			st, err := c.Status(t.Context(), &pb.StatusRequest{})
			require.NoError(t, err)
			require.Equal(t, "leader", st.State)
			require.Equal(t, "n1", st.Leader)
			require.Positive(t, st.Applied)
		})
	}
}

func TestServiceRefusals(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxMessage = 1 << 20
	n := open(t, cfg)
	c := dial(t, n, bufconn.Listen(1<<16), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(100<<20)))
	op := registerOp("h")
	for name, p := range map[string]*raftlog.Proposal{
		"no client":    {Seq: 1, Op: op},
		"no sequence":  {Client: "c", Op: op},
		"no operation": {Client: "c", Seq: 1},
		"housekeeping": {Client: "c", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}},
		"mirrored":     {Client: "c", Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 9}}}},
	} {
		_, err := c.Propose(t.Context(), p)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Equal(t, pb.Reason_REASON_INVALID, reason(t, err), name)
	}
	big := createRun("r")
	big.GetCreateRun().Spec = make([]byte, 50<<20)
	_, err := c.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 1, Op: big})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = c.Why(t.Context(), &pb.WhyRequest{Run: "none"})
	require.Equal(t, codes.NotFound, status.Code(err))
	view, err := c.View(t.Context(), &pb.ViewRequest{Run: "none"})
	require.NoError(t, err)
	_, err = view.Recv()
	require.Equal(t, pb.Reason_REASON_NOT_FOUND, reason(t, err))
	require.Empty(t, read(t, n).Runs(), "refusals change nothing")

	l, err := net.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	require.ErrorIs(t, n.Serve(l), ErrExposed)
}

func collect(t *testing.T, c pb.CoordinatorClient, req *pb.ViewRequest) (records []*raftlog.Record, chunks int, last *pb.ViewResponse) {
	t.Helper()
	s, err := c.View(t.Context(), req)
	require.NoError(t, err)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return records, chunks, last
		}
		require.NoError(t, err)
		records, chunks, last = append(records, m.Records...), chunks+1, m
	}
}

func TestView(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	c := dial(t, n, bufconn.Listen(1<<16))
	propose(t, n, "c", 1, createRun("a"))
	propose(t, n, "c", 2, createRun("b"))
	propose(t, n, "c", 3, registerOp("h"))

	all, _, last := collect(t, c, &pb.ViewRequest{})
	kinds := map[string]int{}
	for _, r := range all {
		kinds[fmt.Sprintf("%T", r.Record)]++
	}
	require.Equal(t, 2, kinds["*raftlogv1.Record_Run"])
	require.Equal(t, 2, kinds["*raftlogv1.Record_Version"])
	require.Equal(t, 1, kinds["*raftlogv1.Record_Node"])
	require.Equal(t, 1, kinds["*raftlogv1.Record_Clock"])
	require.False(t, last.Stale)
	require.Positive(t, last.Index)

	one, chunks, last := collect(t, c, &pb.ViewRequest{Run: "a", Kinds: []pb.Kind{pb.Kind_KIND_RUN, pb.Kind_KIND_ALARM}, Stale: true})
	require.Len(t, one, 1)
	require.Equal(t, "a", one[0].GetRun().GetId())
	require.Equal(t, 1, chunks)
	require.True(t, last.Stale)
	require.NotEmpty(t, last.Alarms)

	none, chunks, last := collect(t, c, &pb.ViewRequest{Kinds: []pb.Kind{pb.Kind_KIND_STEP}})
	require.Empty(t, none)
	require.Equal(t, 1, chunks, "an empty answer still has its index")
	require.Positive(t, last.Index)
}

// Every kind finds what the state holds of it.
func TestViewFindsEveryKind(t *testing.T) {
	const run = "r"
	records := []*raftlog.Record{
		{Record: &raftlog.Record_Header{Header: &raftlog.Header{Format: 1}}},
		{Record: &raftlog.Record_Clock{Clock: &raftlog.Clock{NowNs: 5, NextFence: 1, NextEvent: 1}}},
		{Record: &raftlog.Record_Run{Run: createRunRecord(run)}},
		{Record: &raftlog.Record_Version{Version: &raftlog.PolicyVersion{Run: run}}},
		{Record: &raftlog.Record_Node{Node: &raftlog.Node{Role: state.RoleHost, Name: "h"}}},
		{Record: &raftlog.Record_Group{Group: &raftlog.Group{Run: run, Id: 1}}},
		{Record: &raftlog.Record_Episode{Episode: &raftlog.Episode{Run: run, Group: 1}}},
		{Record: &raftlog.Record_Job{Job: &raftlog.VerifyJob{Run: run, Group: 1}}},
		{Record: &raftlog.Record_Step{Step: &raftlog.Step{Run: run, Step: 1}}},
		{Record: &raftlog.Record_Gang{Gang: &raftlog.Gang{Run: run}}},
		{Record: &raftlog.Record_Publish{Publish: &raftlog.Publish{Run: run}}},
		{Record: &raftlog.Record_Eval{Eval: &raftlog.EvalResult{Run: run, Suite: "s"}}},
	}
	records = append(records, &raftlog.Record{Record: &raftlog.Record_Footer{Footer: &raftlog.Footer{Records: uint64(len(records))}}})
	rest := records
	s, err := state.Restore(func() (*raftlog.Record, error) {
		r := rest[0]
		rest = rest[1:]
		return r, nil
	})
	require.NoError(t, err)
	for kind, want := range map[pb.Kind]*raftlog.Record{
		pb.Kind_KIND_CLOCK: records[1], pb.Kind_KIND_RUN: records[2], pb.Kind_KIND_VERSION: records[3], pb.Kind_KIND_NODE: records[4],
		pb.Kind_KIND_GROUP: records[5], pb.Kind_KIND_EPISODE: records[6], pb.Kind_KIND_JOB: records[7], pb.Kind_KIND_STEP: records[8],
		pb.Kind_KIND_GANG: records[9], pb.Kind_KIND_PUBLISH: records[10], pb.Kind_KIND_EVAL: records[11],
	} {
		var got []*raftlog.Record
		selection{state: s, kinds: []pb.Kind{kind}}.records(func(r *raftlog.Record) bool { got = append(got, r); return true })
		require.Len(t, got, 1, kind)
		require.True(t, proto.Equal(want, got[0]), kind)
	}
}

func createRunRecord(id string) *raftlog.Run {
	return &raftlog.Run{Id: id, State: raftlog.RunState_RUN_STATE_RUNNING, Config: createRun(id).GetCreateRun().Config, Counters: &raftlog.Counters{}, Live: -1}
}

func TestViewChunks(t *testing.T) {
	s := state.New()
	for i := range 5 {
		op := createRun(fmt.Sprint("r", i))
		op.GetCreateRun().Spec = make([]byte, viewChunk/2)
		s.Apply(&raftlog.Entry{NowNs: 1, Proposals: []*raftlog.Proposal{{Client: "c", Seq: uint64(i + 1), Op: op}}})
	}
	var sizes []int
	require.NoError(t, selection{state: s, kinds: []pb.Kind{pb.Kind_KIND_RUN}}.send(9, false, func(m *pb.ViewResponse) error {
		require.Equal(t, uint64(9), m.Index)
		sizes = append(sizes, len(m.Records))
		return nil
	}))
	require.Equal(t, []int{2, 2, 1}, sizes)
	broken := errors.New("broken pipe")
	require.ErrorIs(t, selection{state: s}.send(9, false, func(*pb.ViewResponse) error { return broken }), broken)
}

func TestChanges(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	c := dial(t, n, bufconn.Listen(1<<16))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.Changes(ctx, &pb.ChangesRequest{Run: "r"})
	require.NoError(t, err)
	first, err := s.Recv()
	require.NoError(t, err)
	require.Empty(t, first.State, "no such run yet")
	propose(t, n, "c", 1, registerOp("h")) // changes nothing for the run: not sent
	propose(t, n, "c", 2, createRun("r"))
	m, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "running", m.State)
	require.Greater(t, m.Revision, first.Revision)
	propose(t, n, "c", 3, &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "r", Action: "pause", Reason: "test"}}})
	m, err = s.Recv()
	require.NoError(t, err)
	require.Equal(t, "paused", m.State)
	cancel()
	_, err = s.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool { return !n.hub.watched() }, time.Minute, time.Millisecond)

	s, err = c.Changes(t.Context(), &pb.ChangesRequest{})
	require.NoError(t, err)
	m, err = s.Recv()
	require.NoError(t, err)
	require.Empty(t, m.Run)
	require.NoError(t, n.Close())
	_, err = s.Recv()
	require.Error(t, err, "a closing node ends its streams")
}

// A watcher that takes its time gets the newest summary only, however many there were.
func TestChangesAreCoalesced(t *testing.T) {
	s := state.New()
	h := newHub(fsm.New(s, 0, nil), newMetrics())
	defer h.watch("r")()
	_, changed := h.get("r")
	for i := range 100 {
		op := createRun("r")
		if i > 0 {
			action := "pause"
			if i%2 == 0 {
				action = "resume"
			}
			op = &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: "r", Action: action}}}
		}
		s.Apply(&raftlog.Entry{NowNs: int64(i + 1), Proposals: []*raftlog.Proposal{{Client: "c", Seq: uint64(i + 1), Op: op}}})
		h.update(s.Fork(), uint64(i+1))
	}
	<-changed
	c, changed := h.get("r")
	require.Equal(t, uint64(100), c.Revision)
	require.Equal(t, "paused", c.State)
	h.update(s.Fork(), 101) // nothing new: nobody is woken
	h.update(state.New(), 50)
	select {
	case <-changed:
		t.Fatal("woken without a change")
	default:
	}
	c, _ = h.get("r")
	require.Equal(t, uint64(100), c.Revision)
}
