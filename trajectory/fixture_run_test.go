package trajectory

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
)

// member is one attempt of the test run.
type member struct {
	group   uint64
	index   int32
	attempt int32
	steps   []Step // nil: never sealed
	row     Episode
	verdict *Verdict
	settled *raftlog.EpisodeSettled
	lost    *raftlog.AttemptLost
	sealed  *raftlog.Sealed // refs are filled in by write
}

func (m *member) id() string { return EpisodeID("run-1", m.group, m.index, m.attempt) }

// plan is a small run: groups 1 and 2 are trained by step 0, groups 3 and 4 by
// step 1, group 5 is dropped, group 6 is an evaluation of version 0. S = 1, B = 2.
type plan struct {
	members []*member
	ledgers [][]LedgerRow
	ends    []*raftlog.GroupEnded
	eval    *raftlog.EvalDone
	ended   *raftlog.RunEnded

	editEvents   func([]*raftlog.Event) []*raftlog.Event
	editManifest func([]*manifest) []*manifest
	editPolicy   func(*policy.Manifest)
	dropFile     bool
}

func newPlan() *plan {
	r := rand.New(rand.NewPCG(3, 4))
	p := &plan{
		ends: []*raftlog.GroupEnded{
			{Group: 1, Outcome: "consumed", Step: 0},
			{Group: 2, Outcome: "consumed", Step: 0},
			{Group: 3, Outcome: "consumed", Step: 1},
			{Group: 4, Outcome: "consumed", Step: 1},
			{Group: 5, Outcome: "dropped", Reason: "straggler", Step: -1},
			{Group: 6, Outcome: "evaluated", Step: -1},
		},
		eval:  &raftlog.EvalDone{Suite: "held-out", Version: 0, Episodes: 2, Scored: 2, Reward: 0.5, Passed: 1},
		ended: &raftlog.RunEnded{State: "succeeded", Counters: &raftlog.Counters{}},
	}
	for g := uint64(1); g <= 6; g++ {
		for i := range int32(2) {
			p.add(r, g, i, 1)
		}
	}
	// A member whose sandbox died, and one whose verifier did: both were replaced.
	lost := p.find(2, 1, 1)
	lost.steps, lost.verdict, lost.settled, lost.sealed = nil, nil, nil, nil
	lost.lost = &raftlog.AttemptLost{Group: 2, Index: 1, Attempt: 1, Reason: "env_crash"}
	p.add(r, 2, 1, 2)
	crashed := p.find(3, 0, 1)
	crashed.verdict, crashed.settled = nil, nil
	crashed.lost = &raftlog.AttemptLost{Group: 3, Index: 0, Attempt: 1, Reason: "verifier_crash", Sealed: true}
	p.add(r, 3, 0, 2)
	// A member that was given up: unscored, in no statistics.
	given := p.find(4, 1, 1)
	given.steps, given.sealed, given.verdict = nil, nil, nil
	given.settled = &raftlog.EpisodeSettled{Group: 4, Index: 1, Attempt: 1, Verdict: "indeterminate", Disposition: "drop"}
	// A member of the dropped group was sealed and not judged any more.
	late := p.find(5, 0, 1)
	late.verdict, late.settled = nil, nil
	p.straddle(p.find(3, 1, 1))
	p.ledgers = [][]LedgerRow{p.ledger(0, 1, 2), p.ledger(1, 3, 4)}
	return p
}

func (p *plan) add(r *rand.Rand, group uint64, index, attempt int32) {
	m := &member{group: group, index: index, attempt: attempt}
	m.steps = newSteps(m.id(), 2+int(index), 0, r)
	m.row = newEpisode(group, index, m.steps)
	m.row.Attempt, m.row.GroupSize = attempt, 2
	reward := float64((int32(group) + index) % 2)
	v := newVerdict(m.id(), reward)
	m.verdict = &v
	m.sealed = &raftlog.Sealed{EndReason: "stop", Tokens: m.row.NSampledTokens, Turns: int64(m.row.NTurns)}
	m.settled = &raftlog.EpisodeSettled{
		Group: group, Index: index, Attempt: attempt, Verdict: string(v.Verdict), Disposition: "train", Reward: &reward, EndReason: "stop",
	}
	p.members = append(p.members, m)
}

// straddle lets version 1 take over within the last message.
func (p *plan) straddle(m *member) {
	last := &m.steps[len(m.steps)-1]
	last.PolicySpans = NewSpans([]policy.Span{{Length: 4, Version: 0}, {Start: 4, Length: 6, Version: 1}}, "engine-0")
	Count(&m.row, m.steps)
	m.sealed.MaxVersion = 1
}

func (p *plan) find(group uint64, index, attempt int32) *member {
	for _, m := range p.members {
		if m.group == group && m.index == index && m.attempt == attempt {
			return m
		}
	}
	return nil
}

// ledger is what a correct trainer writes.
func (p *plan) ledger(step int64, groups ...uint64) []LedgerRow {
	var out []LedgerRow
	for _, g := range groups {
		var rewards []float64
		for _, m := range p.members {
			if m.group == g && m.settled != nil && m.settled.Reward != nil && outcome.Disposition(m.settled.Disposition).InStatistics() {
				rewards = append(rewards, *m.settled.Reward)
			}
		}
		var mean, std float64
		for _, x := range rewards {
			mean += x / float64(len(rewards))
		}
		for _, x := range rewards {
			std += (x - mean) * (x - mean) / float64(len(rewards))
		}
		std = math.Sqrt(std)
		for _, m := range p.members {
			if m.group != g || m.settled == nil || m.settled.Disposition != "train" {
				continue
			}
			for _, b := range Branches(m.steps) {
				f := factsOf(b, m.steps)
				out = append(out, LedgerRow{
					BatchID: "run-1/x", TrainerStep: step, PolicyVersionTrained: policy.Version(step), Lineage: 1, EpisodeID: m.id(), Branch: b.ID,
					NTokens: f.tokens, NLossTokens: f.loss, AdvantageScalar: ptr(*m.settled.Reward - mean), GroupID: GroupID("run-1", g),
					GroupMembersUsed: int32(len(rewards)), GroupMean: ptr(mean), GroupStd: ptr(std),
					StalenessMax: step - int64(f.lowest), StalenessMean: float64(step) - float64(f.sum)/float64(f.loss), Outcome: Trained, Weight: 1,
				})
			}
		}
	}
	return out
}

// write stores the run as its workers, trainer and coordinator would. Rows are not checked: the tests break them.
func (p *plan) write(t *testing.T) store.ObjectStore {
	t.Helper()
	s, err := file.Open(t.TempDir())
	require.NoError(t, err)
	p.writeRows(t, s)
	events := p.events(t, s)
	if p.editEvents != nil {
		events = p.editEvents(events)
	}
	p.writeManifest(t, s, events)
	return s
}

func put[R Row](t *testing.T, s store.ObjectStore, w *Writer[R]) []Ref {
	t.Helper()
	sh, err := w.Close()
	require.NoError(t, err)
	_, err = store.PutObject(t.Context(), s, "run-1", sh.Table.Kind(), sh.Data)
	require.NoError(t, err)
	var refs []Ref
	for _, r := range sh.Refs {
		refs = append(refs, r.Ref)
	}
	return refs
}

func (p *plan) writeRows(t *testing.T, s store.ObjectStore) {
	steps, episodes, verdicts := NewWriter[Step](testMeta), NewWriter[Episode](testMeta), NewWriter[Verdict](testMeta)
	var sealed, judged []*member
	for _, m := range p.members {
		if m.steps != nil {
			for i := range m.steps {
				steps.put(&m.steps[i], m.id())
			}
			sealed = append(sealed, m)
		}
		if m.verdict != nil {
			verdicts.put(m.verdict, m.id())
			judged = append(judged, m)
		}
	}
	for i, ref := range put(t, s, steps) {
		sealed[i].sealed.Steps, sealed[i].row.StepsRef = ref.RowRef(), ref
	}
	for _, m := range sealed {
		episodes.put(&m.row, m.id())
	}
	for i, ref := range put(t, s, episodes) {
		sealed[i].sealed.Episode = ref.RowRef()
	}
	for i, ref := range put(t, s, verdicts) {
		if judged[i].settled != nil && judged[i].settled.VerdictRow == nil {
			judged[i].settled.VerdictRow = ref.RowRef()
		}
	}
}

func (p *plan) events(t *testing.T, s store.ObjectStore) []*raftlog.Event {
	var out []*raftlog.Event
	emit := func(e *raftlog.Event) { out = append(out, e) }
	emit(&raftlog.Event{Event: &raftlog.Event_RunCreated{RunCreated: &raftlog.RunCreated{
		Manifest: string(digest("v0")),
		Config:   &raftlog.RunConfig{LagMax: 1, GroupsPerStep: 2, Steps: 2, Envs: []*raftlog.EnvConfig{{Name: "files", GroupSize: 2}}},
	}}})
	for g := uint64(1); g <= 6; g++ {
		a := &raftlog.GroupAdmitted{Group: g, Size: 2, Pin: -1, Task: &raftlog.TaskRef{Id: "task-1"}}
		if g == 6 {
			a.Suite, a.Pin = "held-out", 0
		}
		emit(&raftlog.Event{Event: &raftlog.Event_GroupAdmitted{GroupAdmitted: a}})
	}
	p.emitMembers(emit, 1, 2)
	p.emitStep(t, s, emit, 0)
	p.emitMembers(emit, 3, 4, 5, 6)
	emit(&raftlog.Event{Event: &raftlog.Event_EvalDone{EvalDone: p.eval}})
	p.emitStep(t, s, emit, 1)
	for _, e := range p.ends {
		emit(&raftlog.Event{Event: &raftlog.Event_GroupEnded{GroupEnded: e}})
	}
	if p.ended != nil {
		emit(&raftlog.Event{Event: &raftlog.Event_RunEnded{RunEnded: p.ended}})
	}
	return out
}

func (p *plan) emitMembers(emit func(*raftlog.Event), groups ...uint64) {
	for _, g := range groups {
		for _, m := range p.members {
			if m.group != g {
				continue
			}
			if m.sealed != nil {
				emit(&raftlog.Event{Event: &raftlog.Event_Sealed{Sealed: &raftlog.EpisodeSealed{Group: g, Index: m.index, Attempt: m.attempt, Sealed: m.sealed}}})
			}
			if m.lost != nil {
				emit(&raftlog.Event{Event: &raftlog.Event_AttemptLost{AttemptLost: m.lost}})
			}
			if m.settled != nil {
				emit(&raftlog.Event{Event: &raftlog.Event_Settled{Settled: m.settled}})
			}
		}
	}
}

func (p *plan) emitStep(t *testing.T, s store.ObjectStore, emit func(*raftlog.Event), step int) {
	w := NewWriter[LedgerRow](testMeta)
	for i := range p.ledgers[step] {
		w.put(&p.ledgers[step][i], p.ledgers[step][i].EpisodeID)
	}
	sh, err := w.Close()
	require.NoError(t, err)
	_, err = store.PutObject(t.Context(), s, "run-1", sh.Table.Kind(), sh.Data)
	require.NoError(t, err)
	weights := []byte{byte(step)}
	if !p.dropFile {
		_, err = store.PutObject(t.Context(), s, "run-1", "blob", weights)
		require.NoError(t, err)
	}
	m := policy.Manifest{Version: policy.Version(step + 1), Lineage: 1, Full: true, Ledger: sh.Digest, Files: []policy.File{{Path: "model.safetensors", Digest: policy.DigestOf(weights), Size: 1}}}
	if p.editPolicy != nil {
		p.editPolicy(&m)
	}
	data, err := m.Encode()
	require.NoError(t, err)
	d, err := store.PutObject(t.Context(), s, "run-1", "blob", data)
	require.NoError(t, err)
	emit(&raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: &raftlog.StepCommitted{
		Step: int64(step), Lineage: 1, Groups: []uint64{uint64(2*step + 1), uint64(2*step + 2)}, Manifest: string(d), Ledger: string(sh.Digest),
	}}})
	emit(&raftlog.Event{Event: &raftlog.Event_VersionChanged{VersionChanged: &raftlog.VersionChanged{Version: int64(step + 1), State: "live"}}})
}

// writeManifest mirrors the events in objects of seven; their numbers have holes, where events of other runs are.
func (p *plan) writeManifest(t *testing.T, s store.ObjectStore, events []*raftlog.Event) {
	var objects []*manifest
	var prev uint64
	for i := 0; i < len(events); i += 7 {
		m := &manifest{Prev: prev}
		for k, e := range events[i:min(i+7, len(events))] {
			e.Run, e.Seq, e.AtNs = "run-1", uint64(3*(i+k)+5), testTime.UnixNano()+int64(i+k)
			raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
			require.NoError(t, err)
			m.Events = append(m.Events, raw)
			if k == 0 {
				m.First = e.Seq
			}
			m.Last = e.Seq
		}
		prev = m.Last
		objects = append(objects, m)
	}
	if p.editManifest != nil {
		objects = p.editManifest(objects)
	}
	for _, m := range objects {
		data, err := json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, s.Put(context.Background(), store.ManifestKey("run-1", m.First), data))
	}
}

// fixedRand is a fixed stream for rows that a test makes by itself.
func fixedRand() *rand.Rand { return rand.New(rand.NewPCG(0, 0)) }

// jsonOf is what the journal writes of an acknowledgement up to its attempt.
func jsonOf(a ack) (string, error) {
	b, err := json.Marshal(a)
	s, _, _ := strings.Cut(string(b), `,"at"`)
	return s, err
}
