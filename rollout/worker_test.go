package rollout

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/rollout/agent"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
	"github.com/rlfleet/rlfleet/task"
	"github.com/rlfleet/rlfleet/trajectory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log is a coordinator that grants what it is given and remembers what it is told.
type log struct {
	mu      sync.Mutex
	grants  []*raftlog.EpisodeGrant
	lost    map[string]func()
	held    map[string]lease.Token
	sealed  []*raftlog.SealItem
	failed  []*raftlog.FailItem
	code    raftlog.Code
	changed chan struct{}
	done    chan struct{} // closed when everything granted was answered
	want    int
	answer  func(context.Context) error // not nil: what an answer waits for
}

func newLog(n int) *log {
	l := &log{lost: map[string]func(){}, held: map[string]lease.Token{}, changed: make(chan struct{}), done: make(chan struct{}), want: n}
	for i := range n {
		l.grants = append(l.grants, &raftlog.EpisodeGrant{
			Run: "r", Group: uint64(i/4 + 1), Index: int32(i % 4), Attempt: 1, Fence: uint64(i + 1), Seed: int64(i), Pin: -1, Size: 4,
			TaskRef: &raftlog.TaskRef{Id: "t", Digest: string(policy.DigestOf([]byte("t")))},
		})
	}
	return l
}

func (l *log) Node() *raftlog.NodeRef {
	return &raftlog.NodeRef{Role: "rollout", Name: "w", Incarnation: 1}
}

func (l *log) LeaseEpisodes(ctx context.Context, _ string, n int) (*raftlog.LeaseEpisodesResult, error) {
	if l.answer != nil {
		if err := l.answer(ctx); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.grants))
	out := l.grants[:n]
	l.grants = l.grants[n:]
	return &raftlog.LeaseEpisodesResult{Grants: out, TtlNs: int64(10 * time.Second)}, nil
}

func (l *log) answered() {
	if len(l.sealed)+len(l.failed) == l.want {
		close(l.done)
	}
}

func (l *log) SealEpisodes(_ context.Context, _ string, items []*raftlog.SealItem) (*raftlog.ItemsResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &raftlog.ItemsResult{}
	for range items {
		out.Codes, out.Messages = append(out.Codes, l.code), append(out.Messages, "")
	}
	l.sealed = append(l.sealed, items...)
	l.answered()
	return out, nil
}

func (l *log) FailEpisodes(_ context.Context, _ string, items []*raftlog.FailItem) (*raftlog.ItemsResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, items...)
	l.answered()
	return &raftlog.ItemsResult{Codes: make([]raftlog.Code, len(items)), Messages: make([]string, len(items))}, nil
}

func (l *log) Hold(t lease.Token, lost func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[t.Resource], l.lost[t.Resource] = t, lost
}

func (l *log) Drop(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, resource)
}

func (l *log) Waits(string, string)     {}
func (l *log) Changed() <-chan struct{} { return l.changed }

// boxes is a host whose sandboxes print one line.
type boxes struct {
	envpool.Host
	mu       sync.Mutex
	claimed  int
	released int
	exec     func(ctx context.Context) (envpool.Result, error)
}

func (b *boxes) Prepare(context.Context, envpool.Template) (envpool.SnapshotID, error) {
	return "s", nil
}

func (b *boxes) Claim(_ context.Context, c envpool.Claim) (envpool.Handle, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claimed++
	return envpool.Handle{Sandbox: c.Lease.Resource, Fence: c.Lease.Fence}, nil
}

func (b *boxes) Exec(ctx context.Context, _ envpool.Handle, _ envpool.Command) (envpool.Result, error) {
	if b.exec != nil {
		return b.exec(ctx)
	}
	return envpool.Result{Stdout: []byte("7"), StdoutTotal: 1}, nil
}

func (b *boxes) Write(context.Context, envpool.Handle, string, fs.FileMode, []byte) error { return nil }

func (b *boxes) Collect(context.Context, envpool.Handle, []string, int64) ([]envpool.File, error) {
	return []envpool.File{{Path: "/app/answer.txt", Mode: 0o644, Data: []byte("7\n")}}, nil
}

func (b *boxes) Release(context.Context, envpool.Handle) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released++
	return nil
}

// echo looks once, then answers.
type echo struct{}

func (echo) Generate(_ context.Context, r engine.Request) (engine.Response, error) {
	ids := []int32{3, 2}
	if r.Drawn > 0 {
		ids = []int32{4, 2}
	}
	return engine.Response{Tokens: ids, Logprobs: []float32{-1, -1}, Spans: policy.Extend(nil, 5, 2), Finish: engine.FinishStop}, nil
}

type plain struct{}

func (plain) Start(string) []int32          { return []int32{0} }
func (plain) Open() []int32                 { return []int32{1} }
func (plain) Observe(string) ([]int32, int) { return []int32{5}, 0 }
func (plain) StopIDs() []int32              { return []int32{2} }
func (plain) Text(ids []int32) string       { return map[int32]string{3: "ls", 4: "answer 7"}[ids[0]] }

func loadTask(t *testing.T) *task.Task {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"task.toml":              "artifacts = [\"/app/answer.txt\"]\n[verifier]\nenvironment_mode = \"separate\"\n[environment]\nnetwork_mode = \"no-network\"\n",
		"instruction.md":         "read F2\n",
		"environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\n",
		"tests/test.sh":          "echo 1 > /logs/verifier/reward.txt\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
	}
	tk, err := task.Load(dir)
	require.NoError(t, err)
	return tk
}

func worker(t *testing.T, l *log, b *boxes, objects store.ObjectStore, n int) *Worker {
	t.Helper()
	d := policy.DigestOf([]byte("t"))
	tk := loadTask(t)
	run := Run{
		ID: "r", Experiment: d, BaseModel: d, Tokenizer: d,
		Engine: trajectory.Engine{Name: "echo", Version: "1", Dtype: "float32", TP: 1, KVDtype: "float32", PolicyID: "actor"},
		Envs: []Env{{
			Name: "e", Tier: "fake", Renderer: plain{}, Harness: d, Artifact: 1 << 20,
			Agent: agent.Config{MaxTurns: 4, MaxTokens: 16, MaxTurnTokens: 4, MaxContext: 64, Timeout: time.Minute, Sampling: engine.Sampling{Temperature: 1, TopP: 1}},
			Task:  func(x policy.Digest) *task.Task { return map[policy.Digest]*task.Task{d: tk}[x] },
		}},
	}
	cfg := DefaultConfig()
	cfg.Concurrency, cfg.Drain = n, time.Second
	w, err := NewWorker(run, Deps{
		Coordinator: l, Store: objects, Host: func(string, string) (envpool.Host, error) { return b, nil },
		Engine: echo{}, Log: slog.New(slog.DiscardHandler), Build: "test",
	}, cfg)
	require.NoError(t, err)
	return w
}

func start(t *testing.T, l *log, b *boxes, objects store.ObjectStore, n int) (stop func()) {
	t.Helper()
	w := worker(t, l, b, objects, n)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

func TestWorkerSealsWhatItPlayed(t *testing.T) {
	l, b := newLog(40), &boxes{}
	objects, err := file.Open(t.TempDir())
	require.NoError(t, err)
	stop := start(t, l, b, objects, 8)
	<-l.done
	stop()
	require.Empty(t, l.failed)
	require.Len(t, l.sealed, 40)
	require.Empty(t, l.failed)
	require.Empty(t, l.held, "every lease was given back")
	require.Equal(t, b.claimed, b.released)
	for _, it := range l.sealed {
		require.Equal(t, int64(5), it.Sealed.MinVersion)
		require.Equal(t, int64(4), it.Sealed.Tokens)
		steps := it.Sealed.Steps
		data, err := store.GetObject(t.Context(), objects, "r", policy.Digest(steps.Object), trajectory.Steps.Kind())
		require.NoError(t, err, "I7: what the log names is in the store")
		r, err := trajectory.Open[trajectory.Step](data, policy.Digest(steps.Object))
		require.NoError(t, err)
		rows, err := r.Read(trajectory.Ref{Object: policy.Digest(steps.Object), Batch: steps.Batch, Row: steps.Row, Rows: steps.Rows})
		require.NoError(t, err)
		require.Len(t, rows, 4)
		require.True(t, strings.HasPrefix(rows[0].EpisodeID, lease.Member("r", it.Group, it.Index)))
	}
}

// What is granted while a worker stops is played, not lost with the answer.
func TestWorkerPlaysWhatIsGrantedLate(t *testing.T) {
	l, b := newLog(4), &boxes{}
	asked, stopping := make(chan struct{}), make(chan struct{})
	var once sync.Once
	l.answer = func(ctx context.Context) error {
		once.Do(func() { close(asked) })
		select {
		case <-stopping:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	objects, err := file.Open(t.TempDir())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := worker(t, l, b, objects, 4)
	go func() { ended <- w.Run(ctx) }()
	<-asked
	cancel()
	close(stopping)
	require.NoError(t, <-ended)
	require.Len(t, l.sealed, 4)
	require.Empty(t, l.held)
}

// A store that is full loses nothing: each attempt is reported and comes back.
// The worker ends, and says what is to be done, where it would else try for ever.
func TestWorkerReportsWhatItCannotStore(t *testing.T) {
	l, b := newLog(4), &boxes{}
	dir := t.TempDir()
	objects, err := file.Open(dir)
	require.NoError(t, err)
	require.ErrorIs(t, worker(t, l, b, full{objects}, 4).Run(t.Context()), store.ErrFull)
	require.Empty(t, l.sealed)
	require.Len(t, l.failed, 4)
	require.Equal(t, "upload_failed", l.failed[0].Reason)
	left, err := filepath.Glob(filepath.Join(dir, "r", "objects", "sha256", "*", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

type full struct{ store.ObjectStore }

func (full) Put(context.Context, string, []byte) error { return store.ErrFull }

// consul#1843: a lost lease ends what runs under it, and no result of it is reported.
func TestConsul1843_LostLeaseEndsTheSandbox(t *testing.T) {
	l := newLog(1)
	started, ended := make(chan struct{}), make(chan struct{})
	b := &boxes{exec: func(ctx context.Context) (envpool.Result, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return envpool.Result{}, ctx.Err()
	}}
	objects, err := file.Open(t.TempDir())
	require.NoError(t, err)
	stop := start(t, l, b, objects, 1)
	<-started
	l.mu.Lock()
	lost := l.lost[lease.Episode("r", 1, 0)]
	l.mu.Unlock()
	lost()
	<-ended
	stop()
	require.Empty(t, l.sealed)
	require.Empty(t, l.failed)
	require.Empty(t, l.held)
	require.Equal(t, b.claimed, b.released)
}

func TestWorkerBlamesTheHostOnlyByItsWord(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{{envpool.ErrEnvironment, "env_crash"}, {errors.New("unavailable"), "host_lost"}} {
		l := newLog(1)
		b := &boxes{exec: func(context.Context) (envpool.Result, error) { return envpool.Result{}, c.err }}
		objects, err := file.Open(t.TempDir())
		require.NoError(t, err)
		stop := start(t, l, b, objects, 1)
		<-l.done
		stop()
		require.Equal(t, c.want, l.failed[0].Reason)
	}
}

func TestConfig(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	require.Error(t, Config{}.Validate())
}
