package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// mirrored is what a receiver of updates holds.
type mirrored struct {
	records map[RecordKey]*raftlog.Record
	alarms  []*raftlog.Alarm
	begins  int
	last    uint64
}

func (m *mirrored) take(t *testing.T, u Update) {
	t.Helper()
	if u.Begin {
		m.records = map[RecordKey]*raftlog.Record{}
		m.begins++
	}
	require.NotNil(t, m.records, "a watch begins with the records as they are")
	for _, r := range u.Records {
		require.NotEmpty(t, KeyOf(r).Key)
		if run := r.GetRun(); run != nil {
			require.NotNil(t, run.Config, "what a message leaves out is put back")
		}
		m.records[KeyOf(r)] = r
	}
	for _, k := range u.Removed {
		delete(m.records, k)
	}
	if u.AlarmsChanged {
		m.alarms = u.Alarms
	}
	if u.Revision > 0 {
		require.GreaterOrEqual(t, u.Revision, m.last, "revisions never fall")
		m.last = u.Revision
	}
}

func (m *mirrored) run(id string) *raftlog.Run {
	return m.records[RecordKey{pb.Kind_KIND_RUN, id}].GetRun()
}

func TestRecordsSurviveARestart(t *testing.T) {
	f := newFleet(t)
	c := f.client(nil)
	_, err := c.CreateRun(t.Context(), runOp("r").GetCreateRun())
	require.NoError(t, err)
	m := &mirrored{}
	for u, err := range c.Records(t.Context(), "r") {
		require.NoError(t, err)
		m.take(t, u)
		switch s := m.run("r").GetState(); {
		case s == raftlog.RunState_RUN_STATE_RUNNING && m.last > 0 && m.begins == 1:
			f.stop()
			f.start()
			require.NoError(t, c.ControlRun(t.Context(), "r", "pause", "restart"))
		case s == raftlog.RunState_RUN_STATE_PAUSED:
			require.NotEmpty(t, m.alarms)
			return
		}
	}
	t.Fatal("the watch ended by itself")
}

func TestRecordsEnd(t *testing.T) {
	f := newFleet(t)
	c, err := New(t.Context(), DefaultConfig("test", "unix:"+f.socket))
	require.NoError(t, err)
	var last error
	for _, err := range c.Records(t.Context(), "r", pb.Kind_KIND_EPISODE) {
		last = err
	}
	require.ErrorIs(t, last, ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Records(ctx, "r") {
		require.NoError(t, err)
		cancel()
	}
	require.NoError(t, c.Close())
	for _, err := range c.Records(t.Context(), "r") {
		t.Fatal("a closed client yields nothing", err)
	}
}

// torn ends watches after a few messages, in all the ways they can end.
type torn struct {
	pb.CoordinatorServer
	mu     sync.Mutex
	rnd    *rand.Rand
	resync error
	count  map[bool]int // watches, by whether they had a revision
	whole  bool         // lets them be
}

type tornStream struct {
	grpc.ServerStreamingServer[pb.WatchResponse]
	left int
}

func (s *tornStream) Send(m *pb.WatchResponse) error {
	if s.left--; s.left < 0 {
		return status.Error(codes.Unavailable, "torn")
	}
	return s.ServerStreamingServer.Send(m)
}

func (s *torn) Watch(req *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.WatchResponse]) error {
	s.mu.Lock()
	s.count[req.After > 0]++
	whole, left, resync := s.whole, s.rnd.IntN(4), s.rnd.IntN(5) == 0
	s.mu.Unlock()
	switch {
	case whole:
		return s.CoordinatorServer.Watch(req, stream)
	case resync && req.After > 0:
		return s.resync
	}
	_ = s.CoordinatorServer.Watch(req, &tornStream{stream, left}) // the tear is the error
	return status.Error(codes.Unavailable, "torn")
}

// However often a watch is torn, also within a moment that takes several
// messages, its receiver ends up with the records of the coordinator.
func TestRecordsOfATornWatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := newFleet(t)
	resync, err := status.New(codes.OutOfRange, "begin again").WithDetails(&pb.Refusal{Reason: pb.Reason_REASON_RESYNC})
	require.NoError(t, err)
	s := &torn{CoordinatorServer: f.node.Service(), rnd: rand.New(rand.NewPCG(seed, 0)), resync: resync.Err(), count: map[bool]int{}}
	direct := f.client(nil)
	c := f.client(func(c *Config) { c.Addresses = []string{serve(t, s)} })
	big := runOp("big").GetCreateRun()
	for i := range 3 { // the first moment takes three messages
		big.Id, big.Spec = fmt.Sprint("big", i), make([]byte, 200<<10)
		_, err := direct.CreateRun(t.Context(), big)
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(seed, 1))
		torn := func() bool { // often enough, in both ways
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.count[true] > 3 && s.count[false] > 5
		}
		for i := 0; i < 400 || i < 50_000 && !torn(); i++ {
			var err error
			switch rnd.IntN(3) {
			case 0:
				_, err = direct.CreateRun(t.Context(), func() *raftlog.CreateRun { r := runOp("").GetCreateRun(); r.Id = fmt.Sprint("r", i%400); return r }())
			case 1:
				action := "pause"
				if rnd.IntN(2) == 0 {
					action = "resume"
				}
				_ = direct.ControlRun(t.Context(), fmt.Sprint("big", rnd.IntN(3)), action, "") // may be so already
			case 2:
				_, err = direct.Register(t.Context(), &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", rnd.IntN(5)), Incarnation: uint64(i + 1)}})
			}
			if err != nil {
				t.Error(err)
			}
		}
		s.mu.Lock()
		s.whole = true
		s.mu.Unlock()
		if err := direct.ControlRun(t.Context(), "big0", "cancel", "the end"); err != nil {
			t.Error(err)
		}
	})
	m := &mirrored{}
	for u, err := range c.Records(t.Context(), "", pb.Kind_KIND_RUN, pb.Kind_KIND_VERSION, pb.Kind_KIND_NODE) {
		require.NoError(t, err)
		m.take(t, u)
		if m.run("big0").GetReason() == "the end" && u.Revision > 0 {
			break
		}
	}
	v, err := direct.View(t.Context(), "", pb.Kind_KIND_RUN, pb.Kind_KIND_VERSION, pb.Kind_KIND_NODE)
	require.NoError(t, err)
	require.Len(t, m.records, len(v.Records))
	for _, want := range v.Records {
		if n := want.GetNode(); n != nil { // renewals are not sent
			n.ExpiryNs = m.records[KeyOf(want)].GetNode().GetExpiryNs()
		}
		require.True(t, proto.Equal(want, m.records[KeyOf(want)]), KeyOf(want))
	}
	require.Greater(t, m.begins, 1)
	require.Positive(t, s.count[true], "watches went on where they were")
}
