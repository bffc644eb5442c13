package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/raftlogslog"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// machine drives a state machine as raft does, without raft.
type machine struct {
	fsm   *fsm.FSM
	index uint64
	now   int64
}

// apply carries out one log entry and returns how long it took. What refuses is an error.
func (m *machine) apply(ops ...*raftlog.Op) (time.Duration, []*raftlog.Result, error) {
	m.index++
	m.now += int64(time.Millisecond)
	e := &raftlog.Entry{NowNs: m.now, Term: 1}
	for _, op := range ops {
		e.Proposals = append(e.Proposals, &raftlog.Proposal{Op: op})
	}
	b, err := fsm.EncodeEntry(e)
	if err != nil {
		return 0, nil, err
	}
	from := time.Now()
	out := m.fsm.ApplyBatch([]*raft.Log{{Index: m.index, Term: 1, Type: raft.LogCommand, Data: b}})
	took := time.Since(from)
	results, ok := out[0].([]*raftlog.Result)
	if !ok {
		return 0, nil, fmt.Errorf("apply: %v", out[0])
	}
	for _, r := range results {
		if r.Code != raftlog.Code_CODE_OK {
			return 0, nil, fmt.Errorf("apply: %s", r.Message)
		}
	}
	return took, results, nil
}

// begin brings a run live that never lacks episodes.
func (m *machine) begin() error {
	ref := func(role string) *raftlog.NodeRef { return &raftlog.NodeRef{Role: role, Name: role, Incarnation: 1} }
	for _, role := range []string{state.RoleHost, state.RoleEngine, state.RolePublisher, state.RoleRollout} {
		if _, _, err := m.apply(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref(role), Agents: math.MaxInt32}}}); err != nil {
			return err
		}
	}
	_, _, err := m.apply(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: "r", SpecDigest: "d", Manifest: "m", Config: &raftlog.RunConfig{
		Seed: 1, Steps: 1 << 20, LagMax: 1 << 20, GroupsPerStep: 1 << 10, PublishEvery: 1, Concurrency: math.MaxInt32,
		Envs: []*raftlog.EnvConfig{{Name: "e", Weight: 1, GroupSize: 16, Tasks: []*raftlog.TaskRef{{Id: "t", Digest: "d"}}, MaxAttempts: 3}},
	}}}})
	if err != nil {
		return err
	}
	_, res, err := m.apply(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: ref(state.RolePublisher), Run: "r"}}})
	if err != nil {
		return err
	}
	_, _, err = m.apply(&raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{
		Node: ref(state.RolePublisher), Run: "r", Fence: res[0].GetLeasePublish().Fence, Accepted: true, Served: []string{state.RoleEngine},
	}}})
	return err
}

// asking is a request for n episodes.
func asking(n int32) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{
		Node: &raftlog.NodeRef{Role: state.RoleRollout, Name: state.RoleRollout, Incarnation: 1}, Run: "r", Count: n,
	}}}
}

// stall measures the longest Apply, and the call that begins the snapshot,
// while one of a million leased episodes is written to disk: entries of sixteen
// grants, about one a millisecond.
func (b *bench) stall(ctx context.Context) ([]figure.Line, error) {
	m, err := b.filled()
	if err != nil {
		return nil, err
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(b.work, "stall"), 1, raftlogslog.New(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	quiet, _, err := m.longest(ctx, time.After(time.Second))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	snap, err := m.fsm.Snapshot()
	if err != nil {
		return nil, err
	}
	fork := time.Since(began)
	done, written := make(chan time.Time), make(chan error, 1)
	go func() {
		defer close(done)
		written <- persist(files, snap, m.index)
	}()
	during, cpu, err := m.longest(ctx, done)
	<-done // the longest may have ended early, with an error
	if err = errors.Join(err, <-written); err != nil {
		return nil, err
	}
	b.note("stall: the snapshot took %.1f s and began in %s; longest Apply %s, of which %s on a processor; before the snapshot %s",
		time.Since(began).Seconds(), fork, during, cpu, quiet)
	return []figure.Line{figure.New("apply_stall_snapshot", max(fork, during).Seconds()*1e3, "ms", figure.AtMost(20))}, nil
}

// filled is a state of a million leased episodes, made once.
func (b *bench) filled() (*machine, error) {
	if b.million != nil {
		return b.million, nil
	}
	m := &machine{fsm: fsm.New(state.New(), 0, nil), now: time.Now().UnixNano()}
	if err := m.begin(); err != nil {
		return nil, err
	}
	records, began := b.count(1_000_000, 50_000), time.Now()
	for n := 0; n < records; n += 500 {
		if _, _, err := m.apply(asking(500)); err != nil {
			return nil, err
		}
	}
	b.note("stall: %d episodes leased in %.1f s", records, time.Since(began).Seconds())
	b.million = m
	return m, nil
}

// longest applies entries until then and returns how long the longest took, and
// how much of that its thread was on a processor: the rest is the machine's noise.
func (m *machine) longest(ctx context.Context, then <-chan time.Time) (longest, cpu time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	ops := make([]*raftlog.Op, 16)
	for i := range ops {
		ops[i] = asking(1)
	}
	for {
		used := threadTime()
		took, _, err := m.apply(ops...)
		if err != nil {
			return 0, 0, err
		}
		if took > longest {
			longest, cpu = took, min(took, threadTime()-used)
		}
		select {
		case <-pace.C:
		case <-then:
			return longest, cpu, nil
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// threadTime is the processor time that the calling thread has used.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		return 0 // it never fails for the own thread
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// persist writes a snapshot as raft does.
func persist(files raft.SnapshotStore, snap raft.FSMSnapshot, index uint64) error {
	_, tr := raft.NewInmemTransport("")
	sink, err := files.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 0, tr)
	if err != nil {
		return err
	}
	defer snap.Release()
	return snap.Persist(sink)
}
