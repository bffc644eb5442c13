package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testRun = "r"

var testTime = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// memory is an ObjectStore in memory.
type memory struct {
	mu      sync.Mutex // guards what follows
	objects map[string][]byte
	puts    []string
	gets    []string
}

func newMemory() *memory { return &memory{objects: map[string][]byte{}} }

func (m *memory) Put(_ context.Context, key string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts = append(m.puts, key)
	if old, ok := m.objects[key]; ok && string(old) != string(data) {
		return store.ErrExists
	}
	m.objects[key] = slices.Clone(data)
	return nil
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets = append(m.gets, key)
	b, ok := m.objects[key]
	if !ok {
		return nil, fmt.Errorf("memory: get %s: %w", key, store.ErrNotFound)
	}
	return slices.Clone(b), nil
}

func (m *memory) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	b, err := m.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	from := min(offset, int64(len(b)))
	return b[from:min(from+length, int64(len(b)))], nil
}

func (m *memory) Head(ctx context.Context, key string) (store.Info, error) {
	b, err := m.Get(ctx, key)
	return store.Info{Key: key, Size: int64(len(b))}, err
}

func (m *memory) List(_ context.Context, prefix string) iter.Seq2[store.Info, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.Sorted(maps.Keys(m.objects))
	return func(yield func(store.Info, error) bool) {
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) && !yield(store.Info{Key: k}, nil) {
				return
			}
		}
	}
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

// toy is a Backend whose single weight moves by advantage-weighted, order-sensitive sums.
type toy struct {
	w, momentum float64
	context     int
	batches     []Batch
	loads       int
	during      func() // called by Train
}

func (b *toy) Load(files map[string][]byte) error {
	b.loads++
	if len(files["weights"]) != 8 {
		return errors.New("toy: weights have a bad length")
	}
	b.w, b.momentum = math.Float64frombits(binary.LittleEndian.Uint64(files["weights"])), 0
	if o := files["optimizer"]; len(o) == 8 {
		b.momentum = math.Float64frombits(binary.LittleEndian.Uint64(o))
	}
	return nil
}

func (b *toy) Train(ctx context.Context, batch Batch) (Metrics, error) {
	b.batches = append(b.batches, batch)
	if b.during != nil {
		b.during()
	}
	for i, s := range batch.Samples {
		for j, lp := range s.Logprobs {
			b.momentum = 0.9*b.momentum + s.Advantage*float64(lp)/float64(1+i+j)
		}
	}
	b.w += 0.1*b.momentum + 0.01
	return Metrics{Loss: b.w, Entropy: 1, ESS: 1, GradNorm: math.NaN()}, ctx.Err()
}

func (b *toy) Files() (map[string][]byte, error) {
	return map[string][]byte{
		"weights":   binary.LittleEndian.AppendUint64(nil, math.Float64bits(b.w)),
		"optimizer": binary.LittleEndian.AppendUint64(nil, math.Float64bits(b.momentum)),
	}, nil
}

func (b *toy) Context() int { return b.context }

func newToy() *toy { return &toy{context: 64} }

// putPolicy stores a version 0 with a tokenizer that no backend writes.
func putPolicy(t *testing.T, s store.ObjectStore) policy.Digest {
	t.Helper()
	return putFiles(t, s, map[string][]byte{"weights": make([]byte, 8), "tokenizer.json": []byte("{}")})
}

// message returns a message of an episode; sampled ones carry two tokens of the version.
func message(id string, step, turn int32, role trajectory.Role, v policy.Version, token int32) trajectory.Step {
	m := trajectory.Step{
		EpisodeID: id, Step: step, Turn: turn, Role: role, MessageJSON: fmt.Sprintf(`{"role":%q,"n":%d}`, role, token),
		TokenIDs: []int32{1, token}, LossMask: []bool{false, false}, CreatedAt: testTime.Add(time.Duration(step) * time.Second),
	}
	if step > 0 {
		m.ParentStep = ptr(step - 1)
	}
	if role == trajectory.Assistant {
		m.TokenIDs = append(m.TokenIDs, 2)
		m.LossMask, m.Logprobs = []bool{false, true, true}, []float32{-0.25 * float32(token), -0.5}
		m.PolicySpans = trajectory.NewSpans([]policy.Span{{Length: 2, Version: v}}, "e0")
		m.Sampled, m.PolicyID, m.FinishReason = true, ptr("actor"), trajectory.FinishStop
		m.Sampling = &trajectory.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, MaxTokens: 8}
	}
	m.MessageHash = trajectory.HashMessage(m.MessageJSON)
	return m
}

// conversation has two sampled messages, by version v and then w.
func conversation(id string, v, w policy.Version, token int32) []trajectory.Step {
	return []trajectory.Step{
		message(id, 0, 0, trajectory.User, 0, token),
		message(id, 1, 0, trajectory.Assistant, v, token),
		message(id, 2, 1, trajectory.Tool, 0, token),
		message(id, 3, 1, trajectory.Assistant, w, token+1),
	}
}

// member describes a member of a recorded group.
type member struct {
	disposition outcome.Disposition
	reward      *float64
	end         outcome.EndReason // stop when empty
	v, w        policy.Version    // of the two sampled messages
	steps       func(id string) []trajectory.Step
}

func trained(reward float64) member { return member{disposition: outcome.Train, reward: &reward} }

// record writes the episodes of a group into one shard and returns the group as
// a batch has it. Dropped members have no rows.
func record(t testing.TB, s store.ObjectStore, group uint64, members ...member) *raftlog.BatchGroup {
	t.Helper()
	w := trajectory.NewWriter[trajectory.Step](trajectory.Meta{Run: testRun, Writer: "test", Created: testTime})
	g := &raftlog.BatchGroup{Group: group}
	for i, m := range members {
		bm := &raftlog.BatchMember{Index: int32(i), Attempt: 1, Disposition: string(m.disposition), Reward: m.reward, Verdict: string(outcome.Fail)}
		g.Members = append(g.Members, bm)
		if m.disposition == outcome.Drop {
			bm.Verdict = string(outcome.NotRun)
			continue
		}
		id := trajectory.EpisodeID(testRun, group, int32(i), 1)
		steps := conversation(id, m.v, m.w, int32(10*group)+int32(i))
		if m.steps != nil {
			steps = m.steps(id)
		}
		for _, row := range steps {
			require.NoError(t, w.Append(row))
		}
		if m.end == "" {
			m.end = outcome.Stop
		}
		bm.Sealed = &raftlog.Sealed{EndReason: string(m.end), MinVersion: int64(min(m.v, m.w)), MaxVersion: int64(max(m.v, m.w)), Tokens: 4}
	}
	shard, err := w.Close()
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), store.ObjectKey(testRun, shard.Digest, shard.Table.Kind()), shard.Data))
	byID := map[string]trajectory.Ref{}
	for _, r := range shard.Refs {
		byID[r.Episode] = r.Ref
	}
	for _, bm := range g.Members {
		if r, ok := byID[trajectory.EpisodeID(testRun, group, bm.Index, 1)]; ok {
			bm.Sealed.Steps = &raftlog.RowRef{Object: string(r.Object), Batch: r.Batch, Row: r.Row, Rows: r.Rows}
		}
	}
	return g
}

// coordinator is a Coordinator with the rules of the log for gangs and steps.
type coordinator struct {
	mu       sync.Mutex // guards what follows
	epoch    uint64
	holder   bool // somebody holds the gang
	lose     func()
	versions []policy.Digest // manifests, by version
	batches  [][]*raftlog.BatchGroup
	commits  []*raftlog.CommitStep
	waits    []string
	ready    int // batches that are complete
	changed  chan struct{}
	onCommit func(*raftlog.CommitStep) error // before it is applied
	away     map[string]int                  // calls without an answer, by operation
	applied  bool                            // an unanswered commit happens all the same
}

func newCoordinator(init policy.Digest, batches ...[]*raftlog.BatchGroup) *coordinator {
	return &coordinator{versions: []policy.Digest{init}, batches: batches, ready: len(batches), changed: make(chan struct{})}
}

func (c *coordinator) Node() *raftlog.NodeRef {
	return &raftlog.NodeRef{Role: "trainer", Name: "t0", Incarnation: 1}
}

func (c *coordinator) head() int64 { return int64(len(c.versions)) - 1 }

func (c *coordinator) JoinGang(context.Context, string) (*raftlog.JoinGangResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unanswered("join") {
		return nil, client.ErrUnavailable
	}
	if c.holder || c.head() == int64(len(c.batches)) {
		return nil, fmt.Errorf("refused: %w", client.ErrConflict)
	}
	c.epoch++
	c.holder = true
	return &raftlog.JoinGangResult{Epoch: c.epoch, Fence: c.epoch, TtlNs: int64(10 * time.Second), Head: c.head(), Manifest: string(c.versions[c.head()]), Lineage: 1}, nil
}

func (c *coordinator) TakeBatch(_ context.Context, _ string, epoch, _ uint64) (*raftlog.TakeBatchResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.head()
	switch {
	case epoch > 0 && c.unanswered("take"):
		return nil, client.ErrUnavailable
	case n == int64(len(c.batches)):
		return &raftlog.TakeBatchResult{Ended: true, Step: n}, nil
	case !c.holder || epoch != c.epoch:
		return nil, fmt.Errorf("take batch: %w", lease.ErrFenced)
	case n >= int64(c.ready):
		return &raftlog.TakeBatchResult{Step: n, WaitsFor: "groups: 0 of 1 complete"}, nil
	}
	return &raftlog.TakeBatchResult{Ready: true, Step: n, Groups: c.batches[n]}, nil
}

func (c *coordinator) CommitStep(_ context.Context, s *raftlog.CommitStep) (*raftlog.CommitStepResult, error) {
	if c.onCommit != nil {
		if err := c.onCommit(s); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	away := c.unanswered("commit")
	again := len(c.commits) > 0 && c.commits[len(c.commits)-1].Manifest == s.Manifest
	switch {
	case away && (again || !c.applied):
		return nil, client.ErrUnavailable
	case again:
		return &raftlog.CommitStepResult{Version: s.Step + 1}, nil
	}
	if !c.holder || s.Epoch != c.epoch {
		return nil, fmt.Errorf("commit: %w", lease.ErrFenced)
	}
	if s.Step != c.head() {
		return nil, fmt.Errorf("refused: %w", client.ErrConflict)
	}
	c.commits, c.versions = append(c.commits, s), append(c.versions, policy.Digest(s.Manifest))
	if away {
		return nil, client.ErrUnavailable
	}
	return &raftlog.CommitStepResult{Version: s.Step + 1}, nil
}

func (c *coordinator) unanswered(op string) bool {
	if c.away[op] == 0 {
		return false
	}
	c.away[op]--
	return true
}

func (c *coordinator) Hold(_ lease.Token, lost func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = lost
}

func (c *coordinator) Drop(string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holder = false
}

func (c *coordinator) Waits(_, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, what)
}

func (c *coordinator) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// complete makes one more batch ready and wakes who waits.
func (c *coordinator) complete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready++
	close(c.changed)
	c.changed = make(chan struct{})
}

// mirror writes the committed run to the store as the coordinator would.
func (c *coordinator) mirror(t *testing.T, s store.ObjectStore) {
	t.Helper()
	events := []*raftlog.Event{{Event: &raftlog.Event_RunCreated{RunCreated: &raftlog.RunCreated{Config: &raftlog.RunConfig{Steps: int64(len(c.batches))}, Manifest: string(c.versions[0])}}}}
	for n, commit := range c.commits {
		var groups []uint64
		for _, g := range c.batches[n] {
			groups = append(groups, g.Group)
			events = append(events, &raftlog.Event{Event: &raftlog.Event_GroupAdmitted{GroupAdmitted: &raftlog.GroupAdmitted{Group: g.Group, Size: int32(len(g.Members))}}})
			for _, m := range g.Members {
				if m.Sealed != nil {
					events = append(events, &raftlog.Event{Event: &raftlog.Event_Sealed{Sealed: &raftlog.EpisodeSealed{Group: g.Group, Index: m.Index, Attempt: m.Attempt, Sealed: m.Sealed}}})
				}
				events = append(events, &raftlog.Event{Event: &raftlog.Event_Settled{Settled: &raftlog.EpisodeSettled{
					Group: g.Group, Index: m.Index, Attempt: m.Attempt, Verdict: m.Verdict, Disposition: m.Disposition, Reward: m.Reward,
				}}})
			}
		}
		events = append(events, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{
			Step: commit.Step, Lineage: 1, Groups: groups, Manifest: commit.Manifest, Ledger: commit.Ledger, Metrics: commit.Metrics,
		}}})
	}
	var raw []json.RawMessage
	for i, e := range events {
		e.Seq, e.Run, e.AtNs = uint64(i+1), testRun, testTime.UnixNano()
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
		require.NoError(t, err)
		raw = append(raw, b)
	}
	b, err := json.Marshal(map[string]any{"first": 1, "last": len(events), "prev": 0, "events": raw})
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), store.ManifestKey(testRun, 1), b))
}

// worker returns a worker over the parts.
func worker(t *testing.T, s store.ObjectStore, c *coordinator, b Backend, change func(*Config, *Deps)) *Worker {
	t.Helper()
	cfg, deps := DefaultConfig(testRun), Deps{Coordinator: c, Store: s, Backend: b, Log: slog.New(slog.DiscardHandler)}
	cfg.LagMax = 1
	if change != nil {
		change(&cfg, &deps)
	}
	w, err := NewWorker(cfg, deps)
	require.NoError(t, err)
	return w
}
