package state

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// million is a run at full size in a state of a million records: a store that
// has been away for hours, so that ended groups and events wait, and all the
// clients of a day.
func million(b testing.TB) *machine {
	m := loaded(b)
	load := func(r *raftlog.Record) {
		if err := m.s.load(r); err != nil {
			b.Fatal(err)
		}
	}
	m.s.clock = cloneClock(m.s.clock)
	for g := range uint64(40_000) { // 640,000 episodes
		id := 1_000_000 + g
		event := m.s.clock.NextEvent
		m.s.clock.NextEvent += 6
		load(&raftlog.Record{Record: &raftlog.Record_Group{Group: &raftlog.Group{
			Run: m.run, Id: id, Size: 16, Pin: -1, State: raftlog.GroupState_GROUP_STATE_DROPPED, Reason: "old", EndedEvent: event, Step: -1,
		}}})
		for i := range int32(16) {
			load(&raftlog.Record{Record: &raftlog.Record_Episode{Episode: &raftlog.Episode{
				Run: m.run, Group: id, Index: i, State: raftlog.EpisodeState_EPISODE_STATE_SETTLED, Attempt: 1,
				Sealed: sealed("stop", 0, 0), Verdict: "pass", Disposition: "train", Reward: proto.Float64(1),
			}}})
		}
		for i := range uint64(6) {
			load(&raftlog.Record{Record: &raftlog.Record_Event{Event: &raftlog.Event{Seq: event + i, Run: m.run, Event: &raftlog.Event_Settled{
				Settled: &raftlog.EpisodeSettled{Group: id, Index: int32(i), Attempt: 1, Verdict: "pass", Disposition: "train"},
			}}}})
		}
	}
	for i := range 80_000 {
		load(&raftlog.Record{Record: &raftlog.Record_Client{Client: &raftlog.Client{Id: fmt.Sprintf("old-%d", i), Seq: 1, Result: []byte("r"), SeenNs: m.now - int64(i)*second/2}}})
	}
	n := 0
	m.s.Records(func(*raftlog.Record) bool { n++; return true })
	if n < 1_000_000 {
		b.Fatalf("%d records", n)
	}
	return m
}

// mill feeds a state with entries of 64 commands, as a busy queue does: grants,
// seals, verdicts and heartbeats of 64 clients, one item a command.
type mill struct {
	*machine
	seq    uint64
	open   []*raftlog.EpisodeGrant
	judge  []*raftlog.JobGrant
	gang   *raftlog.JoinGangResult
	worst  time.Duration // longest Apply by the clock
	cpu    time.Duration // and by the time it had a CPU
	spent  time.Duration
	ran    time.Duration
	slow   *raftlog.Op // the longest by the CPU
	number int
}

func newMill(b testing.TB, m *machine) *mill {
	x := &mill{machine: m, gang: m.join()}
	for {
		g := m.leaseBare(16)
		if len(g) == 0 {
			return x
		}
		x.open = append(x.open, g...)
	}
}

func (x *mill) entry() *raftlog.Entry {
	e := &raftlog.Entry{NowNs: x.now, Term: x.term}
	x.seq++
	for i := range 64 {
		e.Proposals = append(e.Proposals, &raftlog.Proposal{Client: fmt.Sprintf("c%d", i), Seq: x.seq, Op: x.op(i)})
	}
	return e
}

func (x *mill) op(i int) *raftlog.Op {
	switch {
	case i%4 == 0 && len(x.open) > 0:
		g := x.open[0]
		x.open = x.open[1:]
		return &raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: x.ref(RoleRollout), Run: x.run, Items: []*raftlog.SealItem{
			{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: sealed("stop", g.Live, g.Live)},
		}}}}
	case i%4 == 1:
		return &raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: x.ref(RoleVerifier), Count: 1}}}
	case i%4 == 2 && len(x.judge) > 0:
		j := x.judge[0]
		x.judge = x.judge[1:]
		return &raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: x.ref(RoleVerifier), Run: x.run, Items: []*raftlog.SettleItem{
			{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: "pass", Reward: proto.Float64(1)},
		}}}}
	case i%4 == 3:
		return &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: x.ref(RoleRollout), Run: x.run, Count: 1}}}
	}
	return &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: x.ref(RoleTrainer)}}}
}

// threadCPU is the time that this thread has had a CPU; the caller is locked to it.
func threadCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(1 /* RUSAGE_THREAD */, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// turn applies one entry, and trains and publishes when a batch is there.
func (x *mill) turn() {
	x.timed(x.entry())
	if x.s.Work(x.run).Batch {
		t := x.bare(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: x.ref(RoleTrainer), Run: x.run, Epoch: x.gang.Epoch, Fence: x.gang.Fence}}}).GetTakeBatch()
		x.timed(x.alone(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{Node: x.ref(RoleTrainer), Run: x.run, Epoch: x.gang.Epoch, Fence: x.gang.Fence, Step: t.Step, Manifest: "m", Ledger: "l", Full: true}}}))
		p := x.bare(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: x.ref(RolePublisher), Run: x.run}}}).GetLeasePublish()
		x.timed(x.alone(&raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{Node: x.ref(RolePublisher), Run: x.run, Version: p.Version, Fence: p.Fence, Accepted: true, Served: []string{"engine-1"}}}}))
	}
	if x.number%6400 < 64 {
		x.timed(x.alone(&raftlog.Op{Op: &raftlog.Op_Tick{}}))
	}
}

func (x *mill) alone(op *raftlog.Op) *raftlog.Entry {
	return &raftlog.Entry{NowNs: x.now, Term: x.term, Proposals: []*raftlog.Proposal{{Op: op}}}
}

func (x *mill) timed(e *raftlog.Entry) {
	from, cpu := time.Now(), threadCPU()
	res := x.s.Apply(e)
	x.s.Changed()
	took, ran := time.Since(from), threadCPU()-cpu
	if ran > x.cpu {
		x.cpu, x.slow = ran, e.Proposals[0].Op
	}
	x.worst, x.spent, x.ran, x.number = max(x.worst, took), x.spent+took, x.ran+ran, x.number+len(res)
	for _, r := range res {
		if refused(r) {
			x.t.Logf("refused: %s", r.Message)
		}
		x.open = append(x.open, r.GetLeaseEpisodes().GetGrants()...)
		x.judge = append(x.judge, r.GetLeaseJobs().GetGrants()...)
	}
}

// BenchmarkMillion is Apply on a state of a million records: commands a second
// and the longest Apply of an entry, alone; with the journal of changes that
// watchers read; with a reader that forks after each
// entry; and while forks are persisted one after the other, as snapshots are.
// "cpu" is the longest by the time the thread had a CPU: the rest is the machine's.
func BenchmarkMillion(b *testing.B) {
	m := million(b)
	full := m.s
	for _, mode := range []string{"alone", "journal", "forked", "persisted"} {
		b.Run(mode, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			m.s, m.forked, m.t = full.Fork(), false, b
			x := newMill(b, m)
			x.s.Journal(mode == "journal")
			stop, done := make(chan struct{}), make(chan struct{})
			forks := make(chan *State, 1)
			var snapshots atomic.Int64
			if mode == "persisted" {
				go persist(forks, stop, done, &snapshots)
			} else {
				close(done)
			}
			for b.Loop() {
				x.turn()
				switch mode {
				case "forked":
					x.s.Fork()
				case "persisted":
					select {
					case forks <- x.s.Fork():
					default:
					}
				}
			}
			close(stop)
			<-done
			b.ReportMetric(float64(x.number)/x.spent.Seconds(), "commands/s")
			b.ReportMetric(float64(x.number)/x.ran.Seconds(), "commands/cpu-s")
			b.ReportMetric(float64(x.worst)/1e6, "longest-ms")
			b.Logf("longest: %T", x.slow.GetOp())
			b.ReportMetric(float64(x.cpu)/1e6, "longest-cpu-ms")
			if mode == "persisted" {
				b.ReportMetric(float64(snapshots.Load()), "snapshots")
			}
		})
	}
}

// persist encodes forks as they come, until stop is closed.
func persist(forks <-chan *State, stop <-chan struct{}, done chan<- struct{}, n *atomic.Int64) {
	defer close(done)
	var buf []byte
	for {
		select {
		case <-stop:
			return
		case s := <-forks:
			s.Records(func(r *raftlog.Record) bool {
				buf, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(buf[:0], r)
				select {
				case <-stop:
					return false
				default:
					return true
				}
			})
			n.Add(1)
		}
	}
}
