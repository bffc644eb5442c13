package robustness

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Each test here is a fault that users of other systems reported, as
// repository and number, brought about over real connections and a real disk.

// serve starts one node on a disk and returns its address.
func serve(t *testing.T, change func(*coordinator.Config)) string {
	t.Helper()
	cfg := coordinator.DefaultConfig(filepath.Join(t.TempDir(), "node"))
	if change != nil {
		change(&cfg)
	}
	n, err := coordinator.Open(t.Context(), cfg)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- n.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, n.Close()); require.NoError(t, <-served) })
	return l.Addr().String()
}

func dialTo(t *testing.T, address, name string) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), client.DefaultConfig(name, address))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// small is a run of groups of two, whose version 0 is live at an engine, and a host of so many sandboxes.
func small(t *testing.T, c *client.Client, sandboxes int, runs ...string) {
	t.Helper()
	for _, run := range runs {
		_, err := c.CreateRun(t.Context(), &raftlog.CreateRun{Id: run, SpecDigest: "sha256:s", Manifest: "sha256:v0", Config: &raftlog.RunConfig{
			Steps: 4, LagMax: 1, GroupsPerStep: 2, PublishEvery: 1, Concurrency: 64,
			Envs: []*raftlog.EnvConfig{{Name: "e", Weight: 1, GroupSize: 2, Tasks: []*raftlog.TaskRef{{Id: "t", Digest: "sha256:t"}}, MaxAttempts: 9, ShortGroup: "replace"}},
		}})
		require.NoError(t, err)
	}
	join := func(role, name string, agents int, version int64) *client.Session {
		s, err := c.NewSession(t.Context(), client.SessionConfig{
			Role: role, Name: name, Agents: agents, Verifiers: agents, Version: func() int64 { return version }, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()))) })
		return s
	}
	join(state.RoleHost, "h", sandboxes, -1)
	join(state.RoleEngine, "e", 0, 1000)
	p := join(state.RolePublisher, "p", 0, -1)
	for _, run := range runs {
		g, err := p.LeasePublish(t.Context(), run)
		require.NoError(t, err)
		require.True(t, g.Ready)
		require.NoError(t, p.FinishPublish(t.Context(), &raftlog.FinishPublish{Run: run, Version: g.Version, Fence: g.Fence, Accepted: true, Served: []string{"e"}}))
	}
}

// kubernetes-sigs/agent-sandbox#418: two claims got one pod. Many workers ask at
// the same time for fewer sandboxes than they are: each that is granted is
// granted once, never more than there are, and what comes back is granted again.
func TestAgentSandbox418_FewerSandboxesThanClaims(t *testing.T) {
	const workers, sandboxes, rounds = 12, 3, 20
	address := serve(t, nil)
	c := dialTo(t, address, "setup")
	small(t, c, sandboxes, "r")
	var out, most atomic.Int32
	var twice sync.Map
	var wg sync.WaitGroup
	for i := range workers {
		s, err := c.NewSession(t.Context(), client.SessionConfig{Role: state.RoleRollout, Name: fmt.Sprint("w", i), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		wg.Go(func() {
			for range rounds {
				g, err := s.LeaseEpisodes(t.Context(), "r", 2)
				if err != nil {
					t.Error(err)
					return
				}
				now := out.Add(int32(len(g.Grants)))
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				for _, e := range g.Grants {
					k := key(e.Group, e.Index)
					if _, other := twice.LoadOrStore(k, i); other {
						t.Errorf("%s was granted to two workers at a time", k)
					}
					runtime.Gosched()
					twice.Delete(k)
					out.Add(-1) // before the coordinator hears of it
					if _, err := s.FailEpisodes(t.Context(), "r", []*raftlog.FailItem{{Group: e.Group, Index: e.Index, Attempt: e.Attempt, Fence: e.Fence, Reason: "worker_lost"}}); err != nil {
						t.Error(err)
					}
				}
			}
		})
		t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()))) })
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int32(sandboxes))
	require.Positive(t, most.Load())
	v, err := c.View(t.Context(), "", pb.Kind_KIND_NODE)
	require.NoError(t, err)
	for _, r := range v.Records {
		require.Zero(t, r.GetNode().GetAgentsReserved(), "a sandbox stays reserved for nobody")
	}
}

// volcano-sh/volcano#6010 and #5805, koordinator-sh/koordinator#872: two gangs
// that each fit alone half-held each other's resources. Two runs share one
// sandbox, which is less than a group of either; both train to their end,
// because no group holds a sandbox while it waits for another.
func TestVolcano6010_TwoRunsShareOneSandbox(t *testing.T) {
	address := serve(t, nil)
	c := dialTo(t, address, "setup")
	runs := []string{"a", "b"}
	small(t, c, 1, runs...)
	session := func(role, name string) *client.Session {
		s, err := c.NewSession(t.Context(), client.SessionConfig{Role: role, Name: name, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()))) })
		return s
	}
	var wg sync.WaitGroup
	for _, run := range runs {
		worker, judge := session(state.RoleRollout, "w-"+run), session(state.RoleVerifier, "v-"+run)
		trainer, publisher := session(state.RoleTrainer, "t-"+run), session(state.RolePublisher, "p-"+run)
		wg.Go(func() {
			gang, err := trainer.JoinGang(t.Context(), run)
			if err != nil {
				t.Error(err)
				return
			}
			for ended := false; !ended && !t.Failed(); {
				ended, err = round(t.Context(), run, gang, worker, judge, trainer, publisher)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	v, err := c.View(t.Context(), "", pb.Kind_KIND_RUN)
	require.NoError(t, err)
	require.Len(t, v.Records, 2)
	for _, r := range v.Records {
		require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, r.GetRun().State)
	}
}

// round lets each role of a run do what there is to do.
func round(ctx context.Context, run string, gang *raftlog.JoinGangResult, worker, judge, trainer, publisher *client.Session) (ended bool, err error) {
	ref := &raftlog.RowRef{Object: "sha256:o", Rows: 1}
	if g, err := worker.LeaseEpisodes(ctx, run, 1); err != nil {
		return false, err
	} else if len(g.Grants) > 0 {
		e := g.Grants[0]
		if _, err := worker.SealEpisodes(ctx, run, []*raftlog.SealItem{{Group: e.Group, Index: e.Index, Attempt: e.Attempt, Fence: e.Fence, Sealed: &raftlog.Sealed{
			EndReason: "stop", MinVersion: e.Live, MaxVersion: e.Live, Tokens: 1, Steps: ref, Episode: ref,
		}}}); err != nil {
			return false, err
		}
	}
	if g, err := judge.LeaseJobs(ctx, 1); err != nil {
		return false, err
	} else if len(g.Grants) > 0 { // of either run
		j, reward := g.Grants[0], 1.0
		if _, err := judge.SettleJobs(ctx, j.Run, []*raftlog.SettleItem{{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: "pass", Reward: &reward, VerdictRow: ref}}); err != nil {
			return false, err
		}
	}
	if g, err := publisher.LeasePublish(ctx, run); err != nil {
		return false, err
	} else if g.Ready {
		if err := publisher.FinishPublish(ctx, &raftlog.FinishPublish{Run: run, Version: g.Version, Fence: g.Fence, Accepted: true, Served: []string{"e"}}); err != nil {
			return false, err
		}
	}
	b, err := trainer.TakeBatch(ctx, run, gang.Epoch, gang.Fence)
	if err != nil || b.Ended || !b.Ready {
		return b.GetEnded(), err
	}
	_, err = trainer.CommitStep(ctx, &raftlog.CommitStep{
		Run: run, Epoch: gang.Epoch, Fence: gang.Fence, Step: b.Step, Full: true,
		Manifest: fmt.Sprint("sha256:m", b.Step), Ledger: "sha256:l",
	})
	return false, err
}

// ray-project/ray#17427, moby/swarmkit#3267, juju/juju#13333: overload filled
// memory, or blocked everybody. Ten times what the queue holds comes at once
// from callers that do not wait: some are refused as the contract says, the
// memory stays flat, nobody is left without an answer, and then all is well.
func TestJuju13333_TenfoldOverload(t *testing.T) {
	const queue, callers, each = 64, 640, 20
	address := serve(t, func(c *coordinator.Config) { c.Queue, c.BatchCount, c.InFlight = queue, 8, 1 })
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	c := pb.NewCoordinatorClient(conn)
	labels := map[string]string{"x": string(make([]byte, 1<<10))}
	register := func(ctx context.Context, i, n int) error {
		_, err := c.Propose(ctx, &raftlog.Proposal{Client: fmt.Sprint("c", i), Seq: uint64(n), Op: &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
			Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", i%10), Incarnation: uint64(n)}, Labels: labels,
		}}}})
		return err
	}
	before := heap()
	var done, refusals, others atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range callers {
		wg.Go(func() {
			for n := 1; n <= each; n++ {
				switch err := register(ctx, i, n); {
				case err == nil:
					done.Add(1)
				case status.Code(err) == codes.ResourceExhausted && after(err) > 0:
					refusals.Add(1)
				default:
					others.Add(1)
					t.Log(err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, others.Load())
	require.EqualValues(t, callers*each, done.Load()+refusals.Load())
	require.Positive(t, refusals.Load(), "the queue was never full: this is no overload")
	require.Greater(t, done.Load(), int64(queue), "what the queue takes is done")
	require.Less(t, heap(), before+64<<20)
	for n := range 50 { // and then all is well
		require.NoError(t, register(t.Context(), callers, n+1))
	}
	t.Logf("%d done, %d refused", done.Load(), refusals.Load())
}

// after is when a refusal says to come back.
func after(err error) int64 {
	for _, d := range status.Convert(err).Details() {
		if r, is := d.(*pb.Refusal); is && r.Reason == pb.Reason_REASON_QUEUE_FULL {
			return r.RetryAfterNs
		}
	}
	return 0
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// etcd-io/etcd#14370: a node alone lost a write that it had acknowledged. The
// process is killed at each point around a write; whatever was acknowledged is there again.
func TestEtcd14370_OneNodeKilledAroundAWrite(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves out what builds programs")
	}
	r := newRun(t)
	c, err := newCluster(t.Context(), r.dir, filepath.Join(r.dir, "store"), r.programs, 1, r.seed)
	defer func() { require.NoError(t, c.close()) }()
	require.NoError(t, err)
	m := c.machines[0]
	cl, err := c.dial("writer")
	require.NoError(t, err)
	defer cl.Close()
	written := 0
	write := func(until <-chan struct{}) error { // the client repeats what got no answer until the node is back
		for {
			_, err := cl.Register(t.Context(), &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", written), Incarnation: 1}})
			if err != nil {
				return err
			}
			written++
			select {
			case <-until:
				return nil
			default:
			}
		}
	}
	for _, point := range []string{"log.append.before", "log.append.after", "apply.before", "apply.after", "answer.before"} {
		for skipped := range 3 {
			require.NoError(t, m.arm(fmt.Sprintf("%s=%skill", point, skip(skipped))))
			enough, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- write(enough) }()
			died := m.waitEnd(20 * time.Second)
			close(enough)
			require.NoError(t, m.start())
			require.NoError(t, <-ended)
			require.True(t, died, "%s after %d", point, skipped)
			require.FileExists(t, m.plan()+".fired")
		}
	}
	v, err := cl.View(t.Context(), "", pb.Kind_KIND_NODE)
	require.NoError(t, err)
	have := map[string]bool{}
	for _, rec := range v.Records {
		have[rec.GetNode().GetName()] = true
	}
	for n := range written {
		require.True(t, have[fmt.Sprint("h", n)], "write %d of %d is lost", n, written)
	}
}
