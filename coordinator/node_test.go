package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(dir string) Config {
	c := DefaultConfig(dir)
	c.SegmentBytes = 256 << 10
	c.Election = 20 * time.Millisecond
	return c
}

func open(t *testing.T, cfg Config) *Node {
	t.Helper()
	n, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func registerOp(name string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
		Node: &raftlog.NodeRef{Role: state.RoleHost, Name: name, Incarnation: 1}, Agents: 1,
	}}}
}

// createRun has one run of two groups of one task that nothing will ever lease.
func createRun(id string) *raftlog.Op {
	return &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{
		Id: id, SpecDigest: "sha256:0", Manifest: "sha256:1",
		Config: &raftlog.RunConfig{
			Steps: 1, GroupsPerStep: 1, PublishEvery: 1, Concurrency: 4,
			Envs: []*raftlog.EnvConfig{{Name: "e", Weight: 1, GroupSize: 2, Tasks: []*raftlog.TaskRef{{Id: "t", Digest: "d"}}}},
		},
	}}}
}

func propose(t *testing.T, n *Node, client string, seq uint64, op *raftlog.Op) *raftlog.Result {
	t.Helper()
	r, err := n.Propose(t.Context(), &raftlog.Proposal{Client: client, Seq: seq, Op: op})
	require.NoError(t, err)
	require.Equal(t, raftlog.Code_CODE_OK, r.Code, r.Message)
	return r
}

func dump(t *testing.T, s *state.State) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, fsm.WriteSnapshot(&b, s))
	return b.Bytes()
}

func read(t *testing.T, n *Node) *state.State {
	t.Helper()
	s, _, err := n.Read(t.Context())
	require.NoError(t, err)
	return s
}

// killed copies a running node's directory: what is left when its process is killed at this moment.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func TestAcknowledgedSurvivesAKill(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	for i := range 50 {
		propose(t, n, "c", uint64(i+1), registerOp(fmt.Sprint("h", i)))
	}
	want := dump(t, read(t, n))
	left := killed(t, dir)

	offline, err := fsm.Open(left)
	require.NoError(t, err)
	require.Equal(t, want, dump(t, offline))
	again := open(t, testConfig(left))
	require.Equal(t, want, dump(t, read(t, again)))
	propose(t, again, "c", 51, registerOp("h50"))
	require.Len(t, read(t, again).Nodes(), 51)
}

func TestDedupAcrossRestartAndSnapshot(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	first := propose(t, n, "c", 7, createRun("r"))
	require.NoError(t, n.Close())

	n = open(t, testConfig(dir))
	require.Equal(t, first.String(), propose(t, n, "c", 7, createRun("another name")).String())
	require.NoError(t, n.Snapshot())
	require.NoError(t, n.Close())
	names, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	require.NoError(t, err)
	require.NotEmpty(t, names)

	n = open(t, testConfig(dir))
	require.Equal(t, first.String(), propose(t, n, "c", 7, createRun("a third")).String())
	require.Len(t, read(t, n).Runs(), 1)
	r, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 6, Op: createRun("x")})
	require.NoError(t, err)
	require.Equal(t, raftlog.Code_CODE_STALE_SEQ, r.Code)
}

func TestDamagedNewestSnapshotFallsBack(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	propose(t, n, "c", 1, registerOp("a"))
	require.NoError(t, n.Snapshot())
	propose(t, n, "c", 2, registerOp("b"))
	require.NoError(t, n.Snapshot())
	want := dump(t, read(t, n))
	require.NoError(t, n.Close())
	names, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	require.NoError(t, err)
	require.Len(t, names, 2)
	require.NoError(t, os.Truncate(names[1], 30))
	n = open(t, testConfig(dir))
	require.Equal(t, want, dump(t, read(t, n)))
	propose(t, n, "c", 3, registerOp("c"))
}

// Log time stands still while nothing leads: downtime expires nothing.
func TestLogTimeDoesNotJumpOverDowntime(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	n := open(t, testConfig(dir))
	propose(t, n, "c", 1, registerOp("a"))
	at := read(t, n).Clock().NowNs
	require.GreaterOrEqual(t, at, start.UnixNano(), "a new cluster starts at the wall clock")
	require.NoError(t, n.Close())

	// A node that comes back after a year has the same log time as one that comes
	// back at once: only the reign's monotonic time is added.
	r := &reign{base: at, at: time.Now()}
	require.Less(t, r.now()-at, int64(time.Minute))
	n = open(t, testConfig(dir))
	up := time.Now()
	propose(t, n, "c", 2, registerOp("b"))
	got := read(t, n).Clock().NowNs
	require.Greater(t, got, at)
	reign, err := n.currentReign()
	require.NoError(t, err)
	require.Equal(t, at, reign.base)
	require.LessOrEqual(t, got-at, int64(time.Since(up)+time.Since(reign.at)))
}

func TestTwoNodesOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	_, err := Open(t.Context(), testConfig(dir))
	require.ErrorIs(t, err, fsm.ErrLocked)
	require.NotContains(t, err.Error(), "\n")
	propose(t, n, "c", 1, registerOp("a"))
}

func TestCorruptSegmentIsOneSentence(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	propose(t, n, "c", 1, registerOp("the-first-host"))
	propose(t, n, "c", 2, registerOp("the-second-host"))
	require.NoError(t, n.Close())
	names, err := filepath.Glob(filepath.Join(dir, "log", "*.wal"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	b, err := os.ReadFile(names[0])
	require.NoError(t, err)
	b[bytes.Index(b, []byte("the-first"))] ^= 1
	require.NoError(t, os.WriteFile(names[0], b, 0o600))
	_, err = Open(t.Context(), testConfig(dir))
	require.ErrorIs(t, err, fsm.ErrDamaged)
	require.NotContains(t, err.Error(), "\n")

	require.NoError(t, os.Remove(names[0]))
	_, err = Open(t.Context(), testConfig(dir))
	require.ErrorContains(t, err, "closed at", "an orderly close is remembered")
	require.NoError(t, os.Remove(filepath.Join(dir, "closed.json")))
	_, err = Open(t.Context(), testConfig(dir))
	require.ErrorIs(t, err, fsm.ErrDamaged, "an empty log under a term that was kept")
}

// A committed entry that this binary does not know stops the node, which says why.
func TestUnknownEntryStopsTheNode(t *testing.T) {
	dir := t.TempDir()
	n := open(t, testConfig(dir))
	propose(t, n, "c", 1, registerOp("a"))
	b, err := fsm.EncodeEntry(&raftlog.Entry{Proposals: []*raftlog.Proposal{{Op: &raftlog.Op{}}}})
	require.NoError(t, err)
	require.NoError(t, n.raft.Apply(b, 0).Error())
	<-n.Done()
	require.ErrorIs(t, n.Err(), fsm.ErrNewer)
	_, err = n.Propose(t.Context(), &raftlog.Proposal{Client: "c", Seq: 2, Op: registerOp("b")})
	require.ErrorIs(t, err, ErrStopped)
	require.NoError(t, n.Close())
	_, err = Open(t.Context(), testConfig(dir))
	require.ErrorIs(t, err, fsm.ErrNewer)
	_, err = fsm.Open(dir)
	require.ErrorIs(t, err, fsm.ErrNewer)
}

func TestIdleWritesNothing(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tick, cfg.MirrorEvery = time.Millisecond, time.Millisecond
	cfg.Mirror = newMemoryStore()
	n := open(t, cfg)
	before := n.raft.LastIndex()
	due := time.NewTimer(50 * time.Millisecond) // some fifty ticks
	<-due.C
	require.Equal(t, before, n.raft.LastIndex())
}

func TestTickEndsWhatIsOverdue(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tick = time.Millisecond
	n := open(t, cfg)
	propose(t, n, "c", 1, registerOp("a"))
	r, err := n.currentReign()
	require.NoError(t, err)
	n.reign.Store(&reign{term: r.term, base: r.base + state.LeaseTTL, at: r.at}) // as if the leader had run for a lease's time
	for {
		s, _, changed := n.fsm.View()
		if s.Nodes()[0].State == raftlog.NodeState_NODE_STATE_FENCED {
			break
		}
		<-changed
	}
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, DefaultConfig("x").Validate())
	bad := DefaultConfig("")
	bad.Queue, bad.Election = 0, 0
	err := bad.Validate()
	require.ErrorContains(t, err, "Dir is empty")
	require.ErrorContains(t, err, "Queue")
	require.ErrorContains(t, err, "Election")
	_, err = Open(context.Background(), bad)
	require.Error(t, err)
}
