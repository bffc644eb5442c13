package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// slowLog is a log whose entries a test answers.
type slowLog struct {
	entries chan *logEntry
}

type logEntry struct {
	*raftlog.Entry
	answered chan error
}

func (l *slowLog) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	e, err := fsm.DecodeEntry(data)
	entry := &logEntry{Entry: e, answered: make(chan error, 1)}
	if err != nil {
		entry.answered <- err
		return entry
	}
	l.entries <- entry
	return entry
}

func (e *logEntry) Error() error  { return <-e.answered }
func (e *logEntry) Index() uint64 { return 1 }
func (e *logEntry) Response() any {
	out := make([]*raftlog.Result, len(e.Proposals))
	for i, p := range e.Proposals {
		out[i] = &raftlog.Result{Message: p.Client}
	}
	return out
}

func startQueue(t *testing.T, change func(*Config), r func() (*reign, error)) (*queue, *slowLog) {
	t.Helper()
	cfg := DefaultConfig("unused")
	cfg.InFlight = 1
	change(&cfg)
	if r == nil {
		begun := &reign{term: 3, base: 1000, at: time.Now()}
		r = func() (*reign, error) { return begun, nil }
	}
	l := &slowLog{entries: make(chan *logEntry)}
	q := newQueue(cfg, l, r, raft.Future.Error, newMetrics())
	var wg sync.WaitGroup
	wg.Go(q.send)
	wg.Go(q.settle)
	t.Cleanup(func() { q.close(); wg.Wait() })
	return q, l
}

func ask(q *queue, ctx context.Context, client string) <-chan answer {
	out := make(chan answer, 1)
	p := &raftlog.Proposal{Client: client, Seq: 1, Op: registerOp("h")}
	go func() {
		r, err := q.propose(ctx, p)
		out <- answer{r, err}
	}()
	return out
}

func TestQueueBatchesWhatIsThere(t *testing.T) {
	q, l := startQueue(t, func(c *Config) { c.BatchCount = 10 }, nil)
	first := ask(q, t.Context(), "first")
	e := <-l.entries // a lone proposal does not wait for company
	require.Len(t, e.Proposals, 1)
	require.Equal(t, uint64(3), e.Term)
	require.GreaterOrEqual(t, e.NowNs, int64(1000))

	var rest []<-chan answer
	for i := range 25 {
		rest = append(rest, ask(q, t.Context(), fmt.Sprint("c", i)))
	}
	// One is in the hands of the sender, which waits for the entry on its way.
	require.Eventually(t, func() bool { return len(q.in) == 24 }, time.Minute, time.Millisecond)
	e.answered <- nil
	last := e.NowNs
	for _, want := range []int{10, 10, 5} {
		e := <-l.entries
		require.Len(t, e.Proposals, want, "everything that waits, up to the limit")
		require.GreaterOrEqual(t, e.NowNs, last, "log time never falls")
		last = e.NowNs
		e.answered <- nil
	}
	require.Equal(t, "first", (<-first).result.Message)
	for i, r := range rest {
		require.Equal(t, fmt.Sprint("c", i), (<-r).result.Message, "each caller gets its own result")
	}
}

func TestQueueRespectsBytes(t *testing.T) {
	q, l := startQueue(t, func(c *Config) { c.BatchBytes = 1; c.MaxMessage = 2000 }, nil)
	a, b := ask(q, t.Context(), "a"), ask(q, t.Context(), "b")
	for range 2 {
		e := <-l.entries
		require.Len(t, e.Proposals, 1)
		e.answered <- nil
	}
	<-a
	<-b
	_, err := q.propose(t.Context(), &raftlog.Proposal{Client: strings.Repeat("x", 3000)})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestQueueFull(t *testing.T) {
	q, l := startQueue(t, func(c *Config) { c.Queue = 2 }, nil)
	out := []<-chan answer{ask(q, t.Context(), "a")}
	e := <-l.entries
	out = append(out, ask(q, t.Context(), "b")) // the sender holds it until there is room on the way
	require.Eventually(t, func() bool { return len(q.in) == 0 }, time.Minute, time.Millisecond)
	for i := range 2 {
		require.Eventually(t, func() bool { return len(q.in) == i }, time.Minute, time.Millisecond)
		out = append(out, ask(q, t.Context(), fmt.Sprint("c", i)))
	}
	require.Eventually(t, func() bool { return len(q.in) == 2 }, time.Minute, time.Millisecond)
	_, err := q.propose(t.Context(), &raftlog.Proposal{Client: "x", Seq: 1, Op: registerOp("h")})
	require.ErrorIs(t, err, ErrQueueFull)
	require.Equal(t, Rejected, Classify(err))
	s := status.Convert(statusOf(err, "", ""))
	require.Equal(t, codes.ResourceExhausted, s.Code())
	require.Positive(t, s.Details()[0].(*pb.Refusal).RetryAfterNs)
	e.answered <- nil
	(<-l.entries).answered <- nil
	for _, o := range out {
		require.NoError(t, (<-o).err)
	}
}

func TestQueueOutcomes(t *testing.T) {
	q, l := startQueue(t, func(*Config) {}, nil)
	for _, c := range []struct {
		err  error
		want Class
	}{
		{raft.ErrNotLeader, Rejected},
		{raft.ErrLeadershipLost, Unknown},
		{errors.New("the disk is on fire"), Unknown},
	} {
		a := ask(q, t.Context(), "a")
		(<-l.entries).answered <- c.err
		got := (<-a).err
		require.ErrorIs(t, got, c.err)
		require.Equal(t, c.want, Classify(got))
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := ask(q, ctx, "a")
	e := <-l.entries
	cancel()
	got := (<-a).err
	require.ErrorIs(t, got, context.Canceled)
	require.Equal(t, Unknown, Classify(got), "it may still be committed")
	e.answered <- nil
}

func TestQueueWithoutAReign(t *testing.T) {
	q, _ := startQueue(t, func(*Config) {}, func() (*reign, error) { return nil, ErrStarting })
	require.ErrorIs(t, (<-ask(q, t.Context(), "a")).err, ErrStarting)
}

func TestQueueRefusesOnlyTheCulprit(t *testing.T) {
	q, l := startQueue(t, func(*Config) {}, nil)
	hold := ask(q, t.Context(), "hold")
	e := <-l.entries
	bad, good := ask(q, t.Context(), "\xff not UTF-8"), ask(q, t.Context(), "good")
	require.Eventually(t, func() bool { return len(q.in) == 1 }, time.Minute, time.Millisecond)
	e.answered <- nil
	(<-l.entries).answered <- nil
	require.ErrorIs(t, (<-bad).err, ErrInvalid)
	require.Equal(t, "good", (<-good).result.Message)
	<-hold
}

func TestQueueCloseDrains(t *testing.T) {
	q, l := startQueue(t, func(*Config) {}, nil)
	a := ask(q, t.Context(), "a")
	e := <-l.entries
	var waiting []<-chan answer
	for i := range 3 {
		waiting = append(waiting, ask(q, t.Context(), fmt.Sprint("c", i)))
	}
	require.Eventually(t, func() bool { return len(q.in) == 2 }, time.Minute, time.Millisecond)
	q.close()
	_, err := q.propose(t.Context(), &raftlog.Proposal{Client: "late"})
	require.ErrorIs(t, err, ErrStopped)
	e.answered <- nil
	(<-l.entries).answered <- nil
	require.NoError(t, (<-a).err)
	for _, w := range waiting {
		require.NoError(t, (<-w).err, "what was in is answered")
	}
}

// Every error of raft that a proposal can meet, and what it means.
func TestOutcomeTable(t *testing.T) {
	for _, c := range []struct {
		err    error
		class  Class
		code   codes.Code
		reason pb.Reason
	}{
		{raft.ErrNotLeader, Rejected, codes.Unavailable, pb.Reason_REASON_NOT_LEADER},
		{raft.ErrLeadershipTransferInProgress, Rejected, codes.Unavailable, pb.Reason_REASON_NOT_LEADER},
		{raft.ErrEnqueueTimeout, Rejected, codes.Unavailable, pb.Reason_REASON_STARTING},
		{raft.ErrLeadershipLost, Unknown, codes.Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME},
		{raft.ErrAbortedByRestore, Unknown, codes.Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME},
		{raft.ErrRaftShutdown, Unknown, codes.Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME},
		{context.DeadlineExceeded, Unknown, codes.Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME},
		{fsm.ErrNewer, Unknown, codes.Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME},
		{ErrNotLeader, Rejected, codes.Unavailable, pb.Reason_REASON_NOT_LEADER},
		{ErrStarting, Rejected, codes.Unavailable, pb.Reason_REASON_STARTING},
		{ErrQueueFull, Rejected, codes.ResourceExhausted, pb.Reason_REASON_QUEUE_FULL},
		{ErrStopped, Rejected, codes.Unavailable, pb.Reason_REASON_STOPPED},
		{ErrInvalid, Rejected, codes.InvalidArgument, pb.Reason_REASON_INVALID},
		{ErrNotFound, Rejected, codes.NotFound, pb.Reason_REASON_NOT_FOUND},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			err := fmt.Errorf("coordinator: propose: %w", c.err)
			require.Equal(t, c.class, Classify(err))
			s := status.Convert(statusOf(err, "n2", ""))
			require.Equal(t, c.code, s.Code())
			require.Equal(t, c.reason, s.Details()[0].(*pb.Refusal).Reason)
			require.Equal(t, "n2", s.Details()[0].(*pb.Refusal).Leader)
		})
	}
	require.Equal(t, Committed, Classify(nil))
}
