package report

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/tiny"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

var testTime = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

const testRun = "files-1"

// memory is a store of objects in memory.
type memory struct {
	mu      sync.Mutex // guards objects
	objects map[string][]byte
}

func (m *memory) Put(_ context.Context, key string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[key] = data
	return nil
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.objects[key]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("memory: get %s: %w", key, store.ErrNotFound)
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
	var keys []string
	for k := range m.objects {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return func(yield func(store.Info, error) bool) {
		for _, k := range keys {
			if !yield(store.Info{Key: k}, nil) {
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

// simulation makes the record of a run that learns: what its workers, its
// trainer and its coordinator would have stored.
type simulation struct {
	steps, groups, size int
	evalEvery, episodes int
	unended             bool

	t      testing.TB
	store  *memory
	r      *rand.Rand
	tok    *tiny.Tokenizer
	events []*raftlog.Event
	at     time.Duration
	group  uint64
	spec   string
}

func ptr[T any](v T) *T { return &v }

func digest(s string) policy.Digest { return policy.DigestOf([]byte(s)) }

func (s *simulation) meta() trajectory.Meta {
	return trajectory.Meta{Run: testRun, Writer: "test", Created: testTime}
}

func (s *simulation) emit(e *raftlog.Event) {
	e.Seq, e.Run, e.AtNs = uint64(len(s.events)+1), testRun, testTime.Add(s.at).UnixNano()
	s.events = append(s.events, e)
}

func (s *simulation) put(kind string, data []byte) policy.Digest {
	d, err := store.PutObject(s.t.Context(), s.store, testRun, kind, data)
	require.NoError(s.t, err)
	return d
}

// make writes the whole run and returns its store.
func (s *simulation) make(t testing.TB) *memory {
	s.t, s.store, s.r = t, &memory{objects: map[string][]byte{}}, rand.New(rand.NewPCG(1, 2))
	var err error
	s.tok, err = tiny.Build([]string{"read ls cat answer F0 F1 F2 F3 F4 F5 F6 F7 0 1 2 3 4 5 6 7 8 9 No such file"}, 64)
	require.NoError(t, err)
	files, err := s.tok.Files()
	require.NoError(t, err)
	m := policy.Manifest{Lineage: 1, Full: true}
	for path, data := range files {
		m.Files = append(m.Files, policy.File{Path: path, Digest: s.put(blob, data), Size: int64(len(data))})
	}
	raw, err := m.Encode()
	require.NoError(t, err)
	s.emit(&raftlog.Event{Event: &raftlog.Event_RunCreated{RunCreated: &raftlog.RunCreated{
		SpecDigest: string(digest("spec")), Spec: []byte(s.spec), Manifest: string(s.put(blob, raw)),
		Config: &raftlog.RunConfig{
			Seed: 7, Steps: int64(s.steps), LagMax: 2, GroupsPerStep: int32(s.groups), StopEvalReward: ptr(0.95),
			Envs: []*raftlog.EnvConfig{{Name: "files", GroupSize: int32(s.size), Tasks: make([]*raftlog.TaskRef, 256)}},
		},
	}}})
	for step := range s.steps {
		if step%s.evalEvery == 0 {
			s.evaluate(int64(step))
		}
		s.step(int64(step))
	}
	s.evaluate(int64(s.steps))
	if !s.unended {
		s.emit(&raftlog.Event{Event: &raftlog.Event_RunEnded{RunEnded: &raftlog.RunEnded{State: "succeeded", Reason: "all steps committed", Counters: &raftlog.Counters{}}}})
	}
	s.mirror()
	return s.store
}

func (s *simulation) skill(version int64) float64 {
	return 0.16 + 0.8/(1+math.Exp(-(float64(version)/float64(s.steps)-0.45)*10))
}

// played is one episode before its shard is closed.
type played struct {
	row     trajectory.Episode
	steps   []trajectory.Step
	verdict trajectory.Verdict
	lost    string
	index   int32
	group   uint64
	suite   string
}

// message returns a message that was not sampled.
func (s *simulation) message(id string, steps []trajectory.Step, role trajectory.Role, text string, ids ...int32) trajectory.Step {
	m := trajectory.Step{
		EpisodeID: id, Step: int32(len(steps)), Role: role, Content: &text, MessageJSON: fmt.Sprintf(`{"role":%q,"content":%q}`, role, text),
		TokenIDs: ids, LossMask: make([]bool, len(ids)), CreatedAt: testTime,
	}
	m.MessageHash = trajectory.HashMessage(m.MessageJSON)
	if len(steps) > 0 {
		m.ParentStep = ptr(int32(len(steps) - 1))
		last := steps[len(steps)-1]
		m.Turn = last.Turn
		if last.Sampled {
			m.Turn++
		}
	}
	return m
}

// say appends a message that the policy sampled, from version and, if it is higher, then from another.
func (s *simulation) say(id string, steps []trajectory.Step, text string, version, then int64) []trajectory.Step {
	ids := append(s.tok.Encode(text), tiny.End)
	m := s.message(id, steps, trajectory.Assistant, text, append([]int32{tiny.Act}, ids...)...)
	m.Sampled, m.NScaffold, m.PolicyID, m.FinishReason = true, 1, ptr("actor"), trajectory.FinishStop
	m.Sampling = &trajectory.Sampling{Temperature: 1, TopP: 1}
	m.StopMatch = &trajectory.StopMatch{Kind: trajectory.StopToken, TokenID: ptr(tiny.End)}
	m.Time = trajectory.StepTime{Queue: 200 * time.Microsecond, Decode: 3 * time.Millisecond}
	for i := range ids {
		m.LossMask[i+1] = true
		m.Logprobs = append(m.Logprobs, -float32(s.r.ExpFloat64()*0.6))
	}
	spans := policy.Extend(nil, policy.Version(version), 1)
	spans = policy.Extend(spans, policy.Version(then), int32(len(ids)-1))
	m.PolicySpans = trajectory.NewSpans(spans, "engine-0")
	if verb, rest, _ := strings.Cut(text, " "); verb != "answer" {
		m.ToolCalls = []trajectory.ToolCall{{ID: "c", Name: "bash", Arguments: fmt.Sprintf(`{"command":%q}`, strings.TrimSpace(verb+" "+rest)), ValidJSON: true}}
		m.FinishReason = trajectory.FinishToolCalls
	}
	return append(steps, m)
}

func (s *simulation) hear(id string, steps []trajectory.Step, text string, code int32) []trajectory.Step {
	m := s.message(id, steps, trajectory.Tool, text, s.tok.Encode(text)...)
	status := trajectory.ToolOK
	if code != 0 {
		status = trajectory.ToolError
	}
	m.ToolResult = &trajectory.ToolResult{
		CallID: "c", Name: "bash", Status: status, ExitCode: &code, StartedAt: testTime, Duration: 2400 * time.Microsecond,
		BytesTotal: int64(len(text)), BytesKept: int64(len(text)), Truncation: trajectory.TruncNone,
	}
	return append(steps, m)
}

// play makes one episode of a version; then is the version it ends with.
func (s *simulation) play(group uint64, index int32, suite string, version, then int64, target string) played {
	id := trajectory.EpisodeID(testRun, group, index, 1)
	p := played{group: group, index: index, suite: suite}
	steps := []trajectory.Step{s.message(id, nil, trajectory.User, "read "+target, append([]int32{tiny.BOS}, s.tok.Encode("read "+target)...)...)}
	end := outcome.Stop
	if s.r.Float64() < 0.3 {
		steps = s.hear(id, s.say(id, steps, "ls", version, version), "F0\nF2\nF3\n"+target+"\n", 0)
	}
	right := s.r.Float64() < s.skill(version)
	switch {
	case !right && s.r.Float64() < 0.2:
		for range 3 {
			steps = s.hear(id, s.say(id, steps, "cat F1", version, then), "cat: F1: No such file or directory", 1)
		}
		end = outcome.MaxTurns
	case right:
		steps = s.hear(id, s.say(id, steps, "cat "+target, version, then), "7", 0)
		steps = s.say(id, steps, "answer 7", then, then)
	default:
		steps = s.hear(id, s.say(id, steps, "cat F0", version, then), "3", 0)
		steps = s.say(id, steps, "answer 3", then, then)
	}
	class, err := outcome.Class(end)
	require.NoError(s.t, err)
	p.steps = steps
	p.row = trajectory.Episode{
		RunID: testRun, ExperimentDigest: digest("exp"), EpisodeID: id, Attempt: 1, LeaseID: "l", WorkerID: "rollout-0", EnvID: "files",
		TaskID: "train-0001", TaskDigest: digest("task"), Split: trajectory.SplitTrain, GroupSize: int32(s.size), GroupIndex: index, PolicyID: "actor",
		BaseModelDigest: digest("m"), TokenizerDigest: digest("t"), ChatTemplateDigest: digest("c"), RendererDigest: digest("r"),
		ToolsDigest: digest("tools"), EnvImageDigest: digest("image"), HarnessDigest: digest("h"),
		LogprobsMode: trajectory.ProcessedLogprobs, EndClass: class, EndReason: end, CommittedAt: testTime,
		Time: trajectory.EpisodeTime{Model: 12 * time.Millisecond, Tool: 7 * time.Millisecond},
	}
	p.verdict = s.judge(id, right)
	if !right && suite == "" && s.r.Float64() < 0.01 {
		p.lost = string(outcome.WorkerLost)
	}
	return p
}

func (s *simulation) judge(id string, right bool) trajectory.Verdict {
	reward, out := 0.0, "0\nexpected <7>, got <3>"
	v := trajectory.Verdict{Verdict: outcome.Fail, Reason: trajectory.ChecksFailed}
	if right {
		reward, out, v.Verdict, v.Reason = 1, "1", outcome.Pass, trajectory.ChecksPassed
	}
	v.VerdictID, v.EpisodeID, v.VerifierID, v.VerifierDigest, v.SandboxImageDigest, v.Attempt = "v/"+id, id, "tests", digest("tests"), digest("image"), 1
	v.Score, v.Reward, v.Disposition, v.StartedAt, v.Duration, v.ExitCode = &reward, &reward, outcome.Train, testTime, 5*time.Millisecond, ptr(int32(0))
	v.RewardComponents = []trajectory.RewardComponent{{Name: "tests", Value: &reward, Weight: 1, Source: trajectory.FromVerifier, Required: true}}
	v.Evidence = []trajectory.Evidence{{Kind: trajectory.EvidenceStdout, SHA256: digest(out), Bytes: int64(len(out)), Excerpt: &out}}
	return v
}

// record stores the shards of a batch and emits what the log says of its episodes.
func (s *simulation) record(batch []played) {
	rec, verdicts := trajectory.NewRecording(s.meta()), trajectory.NewWriter[trajectory.Verdict](s.meta())
	for _, p := range batch {
		require.NoError(s.t, rec.Add(p.row, p.steps))
		require.NoError(s.t, verdicts.Append(p.verdict))
	}
	sealed, err := rec.Close()
	require.NoError(s.t, err)
	judged, err := verdicts.Close()
	require.NoError(s.t, err)
	for _, sh := range []trajectory.Shard{sealed.Steps, sealed.Episodes, judged} {
		s.put(sh.Table.Kind(), sh.Data)
	}
	for i, p := range batch {
		e := p.row
		trajectory.Count(&e, p.steps)
		s.at += 4 * time.Millisecond
		s.emit(&raftlog.Event{Event: &raftlog.Event_Sealed{Sealed: &raftlog.EpisodeSealed{Group: p.group, Index: p.index, Attempt: 1, Suite: p.suite, Sealed: &raftlog.Sealed{
			EndReason: string(e.EndReason), MinVersion: int64(*e.PolicyVersionMin), MaxVersion: int64(*e.PolicyVersionMax), Tokens: e.NSampledTokens,
			Turns: int64(e.NTurns), Steps: sealed.Refs[i].Steps.RowRef(), Episode: sealed.Refs[i].Row.RowRef(),
		}}}})
		if p.lost != "" {
			s.emit(&raftlog.Event{Event: &raftlog.Event_AttemptLost{AttemptLost: &raftlog.AttemptLost{Group: p.group, Index: p.index, Attempt: 1, Reason: p.lost}}})
			continue
		}
		s.emit(&raftlog.Event{Event: &raftlog.Event_Settled{Settled: &raftlog.EpisodeSettled{
			Group: p.group, Index: p.index, Attempt: 1, Verdict: string(p.verdict.Verdict), Disposition: string(p.verdict.Disposition),
			Reward: p.verdict.Reward, VerdictRow: judged.Refs[i].Ref.RowRef(), EndReason: string(e.EndReason),
		}}})
	}
}

func (s *simulation) admit(size int32, suite string, pin, live int64) {
	s.group++
	s.emit(&raftlog.Event{Event: &raftlog.Event_GroupAdmitted{GroupAdmitted: &raftlog.GroupAdmitted{
		Group: s.group, Task: &raftlog.TaskRef{Id: "train-0001"}, Suite: suite, Pin: pin, Size: size, Live: live,
	}}})
}

// step plays a batch, a part of it by older versions, and commits.
func (s *simulation) step(n int64) {
	var batch []played
	var groups []uint64
	var sum float64
	lags := []float64{0, 0}
	for g := range s.groups {
		version := max(n-int64(g%3), 0)
		s.admit(int32(s.size), "", -1, version)
		groups = append(groups, s.group)
		for i := range s.size {
			then := version
			if g%3 > 0 && s.r.Float64() < 0.2 {
				then++
			}
			batch = append(batch, s.play(s.group, int32(i), "", version, then, fmt.Sprintf("F%d", 4+s.group%4)))
			sum += *batch[len(batch)-1].verdict.Reward
			lags[0] += float64(n-version) / float64(s.groups*s.size)
			lags[1] = max(lags[1], float64(n-version))
		}
	}
	s.record(batch)
	s.at += 300 * time.Millisecond
	mean := sum / float64(len(batch))
	s.emit(&raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{
		Step: n, Lineage: 1, Groups: groups, Manifest: string(digest("policy")), Ledger: string(s.ledger(n, mean, batch)),
		Metrics: map[string]float64{
			"reward_mean": mean, "reward_std": math.Sqrt(mean * (1 - mean)), "entropy": 1.4 - mean + 0.05*s.r.NormFloat64(), "kl_behaviour": 4e-5 * s.r.ExpFloat64(),
			"clip_fraction_pos": 0.01 * s.r.Float64(), "clip_fraction_neg": 0.02 * s.r.Float64(), "ess": 1 - 0.1*s.r.Float64(), "grad_norm": 0.3 + s.r.ExpFloat64()*0.2,
			"loss": 0.02 * s.r.NormFloat64(), "length_p50": 7, "length_p95": 12 - 3*mean, "zero_variance": 0.1 + 0.6*mean*mean, "masked": 0, "truncated": 0.2 * (1 - mean),
			"lag_mean": lags[0], "lag_max": lags[1], "tokens": 2000, "train_seconds": 0.3, "wait_seconds": 1 + 0.2*s.r.Float64(),
		},
	}}})
	for _, g := range groups {
		s.emit(&raftlog.Event{Event: &raftlog.Event_GroupEnded{GroupEnded: &raftlog.GroupEnded{Group: g, Outcome: "consumed", Step: n}}})
	}
	s.emit(&raftlog.Event{Event: &raftlog.Event_VersionChanged{VersionChanged: &raftlog.VersionChanged{Version: n + 1, State: "live"}}})
}

func (s *simulation) ledger(n int64, mean float64, batch []played) policy.Digest {
	w := trajectory.NewWriter[trajectory.LedgerRow](s.meta())
	for _, p := range batch {
		if p.lost != "" {
			continue
		}
		require.NoError(s.t, w.Append(trajectory.LedgerRow{
			TrainerStep: n, PolicyVersionTrained: policy.Version(n), Lineage: 1, EpisodeID: p.row.EpisodeID, NTokens: 20, NLossTokens: 8, GroupMembersUsed: 4,
			AdvantageScalar: ptr(*p.verdict.Reward - mean), GroupMean: ptr(mean), GroupStd: ptr(0.5), StalenessMax: 1, StalenessMean: 0.5, Outcome: trajectory.Trained, Weight: 1,
		}))
	}
	sh, err := w.Close()
	require.NoError(s.t, err)
	return s.put(sh.Table.Kind(), sh.Data)
}

func (s *simulation) evaluate(version int64) {
	var batch []played
	passed := int32(0)
	for range s.episodes {
		s.admit(1, "held-out", version, version)
		p := s.play(s.group, 0, "held-out", version, version, "F5")
		p.row.Split, p.row.GroupSize = trajectory.SplitEval, 1
		if p.verdict.Verdict == outcome.Pass {
			passed++
		}
		batch = append(batch, p)
	}
	s.record(batch)
	for _, p := range batch {
		s.emit(&raftlog.Event{Event: &raftlog.Event_GroupEnded{GroupEnded: &raftlog.GroupEnded{Group: p.group, Outcome: "evaluated", Step: -1}}})
	}
	n := int32(s.episodes)
	s.emit(&raftlog.Event{Event: &raftlog.Event_EvalDone{EvalDone: &raftlog.EvalDone{Suite: "held-out", Version: version, Episodes: n, Scored: n, Passed: passed, Reward: float64(passed) / float64(n)}}})
}

// mirror writes the events as the coordinator does, a thousand to an object.
func (s *simulation) mirror() {
	var prev uint64
	for part := range slices.Chunk(s.events, 1000) {
		o := struct {
			First  uint64            `json:"first"`
			Last   uint64            `json:"last"`
			Prev   uint64            `json:"prev"`
			Events []json.RawMessage `json:"events"`
		}{First: part[0].Seq, Last: part[len(part)-1].Seq, Prev: prev}
		for _, e := range part {
			raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
			require.NoError(s.t, err)
			o.Events = append(o.Events, raw)
		}
		prev = o.Last
		data, err := json.Marshal(o)
		require.NoError(s.t, err)
		require.NoError(s.t, s.store.Put(s.t.Context(), store.ManifestKey(testRun, o.First), data))
	}
}
