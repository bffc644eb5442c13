package state

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// world is a fleet simulated by discrete events; its time is the entries' log time.
type world struct {
	*machine
	rng     *rand.Rand
	queue   timers
	seq     int
	faults  float64 // probability of each kind of trouble at each occasion
	drops   float64 // probability that an episode's task fails, and its group with it
	lives   map[string]uint64
	pace    map[uint64]float64 // of a group: its members are slow or fast together
	played  map[uint64]float64 // longest member of each group, seconds
	engine  int64              // version that the engine serves
	cap     int                // episodes at once
	playing int
	busy    map[string]bool // trainer, publisher
	gang    *raftlog.JoinGangResult
	train   float64        // seconds of a step
	publish func() float64 // seconds of a publication
}

type timer struct {
	at  int64
	seq int
	do  func()
}

type timers []timer

func (q timers) Len() int { return len(q) }
func (q timers) Less(i, j int) bool {
	return q[i].at < q[j].at || (q[i].at == q[j].at && q[i].seq < q[j].seq)
}
func (q timers) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *timers) Push(x any)   { *q = append(*q, x.(timer)) }
func (q *timers) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func newWorld(t tester, seed uint64, c *raftlog.RunConfig) *world {
	w := &world{
		machine: newMachine(t), rng: rand.New(rand.NewPCG(seed, 1)), lives: map[string]uint64{}, pace: map[uint64]float64{},
		played: map[uint64]float64{}, engine: -1, cap: 1 << 20, busy: map[string]bool{}, train: 10,
	}
	w.publish = func() float64 { return 1 + 2*w.rng.ExpFloat64() }
	w.watch = newOracle(t, w.run)
	for _, role := range []string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher} {
		w.revive(role)
	}
	w.create(c)
	w.every(5, func() { w.beat(w.gone()...) })
	w.every(1, func() {
		if w.s.Due(w.now) {
			w.tick()
		}
	})
	w.every(7, w.mirrorAll)
	return w
}

// gone are the leases that nobody holds any more, at times: a holder that lost its memory.
func (w *world) gone() []string { return nil }

// revive registers a role's node with a new incarnation.
func (w *world) revive(role string) {
	w.lives[role]++
	r := w.register(role, role+"-1", w.lives[role])
	require.Equal(w.t, raftlog.Code_CODE_OK, r.Code, r.Message)
	if role == RoleEngine && w.r() != nil { // it loads what is live before it serves
		w.engine = w.r().Live
		w.ok(&raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: w.ref(role), EngineVersion: w.engine}}})
	}
}

func (w *world) after(secs float64, do func()) {
	w.seq++
	heap.Push(&w.queue, timer{at: w.now + int64(secs*1e9), seq: w.seq, do: do})
}

func (w *world) every(secs float64, do func()) {
	w.after(secs, func() { do(); w.every(secs, do) })
}

func (w *world) trouble() bool { return w.faults > 0 && w.rng.Float64() < w.faults }

// play runs the world until its run has ended.
func (w *world) play(limit int) {
	w.t.Helper()
	for n := 0; !terminal(w.r().State); n++ {
		if n > limit {
			require.Fail(w.t, "the run does not end: "+w.s.Why(w.run))
		}
		w.poll()
		x := heap.Pop(&w.queue).(timer)
		w.now = max(w.now, x.at)
		x.do()
	}
	w.watch.done(w.s)
}

// poll lets every idle role ask for work: it gets some exactly when Work says that there is some.
func (w *world) poll() {
	w.t.Helper()
	x := w.s.Work(w.run)
	if x.Episodes > 0 && w.playing < w.cap {
		w.lease()
		x = w.s.Work(w.run)
	}
	if x.Jobs > 0 {
		jobs := w.leaseJobs(16)
		require.NotEmpty(w.t, jobs)
		for _, j := range jobs {
			w.judgeOne(j)
		}
	}
	if !w.busy[RolePublisher] && x.Publish {
		w.publishOne()
	}
	if !w.busy[RoleTrainer] && x.Batch {
		w.trainOne()
	}
}

func (w *world) lease() {
	w.t.Helper()
	grants := w.leaseResult(min(16, w.cap-w.playing)).Grants
	if w.r().State == raftlog.RunState_RUN_STATE_RUNNING {
		require.NotEmpty(w.t, grants)
	}
	for _, g := range grants {
		w.playOne(g)
	}
}

// playOne takes a log-normal time that the members of a group largely share.
func (w *world) playOne(g *raftlog.EpisodeGrant) {
	if _, found := w.pace[g.Group]; !found {
		w.pace[g.Group] = math.Exp(0.8 * w.rng.NormFloat64())
	}
	secs := 8 * w.pace[g.Group] * math.Exp(0.4*w.rng.NormFloat64())
	began, ref := w.engine, w.ref(RoleRollout)
	w.playing++
	w.after(secs, func() {
		w.playing--
		if w.rng.Float64() < w.faults/10 {
			return // forgotten: only the end of its lease or its deadline ends it
		}
		now := w.nodes[RoleRollout]
		w.nodes[RoleRollout] = ref // a worker of an older incarnation goes on until it is told
		defer func() { w.nodes[RoleRollout] = now }()
		if w.rng.Float64() < w.drops {
			w.failEpisode(g, "unsolvable")
			return
		}
		if w.trouble() {
			code := w.failEpisode(g, []string{"env_crash", "worker_lost", "engine_error", "task_setup_failed", "host_lost"}[w.rng.IntN(5)])
			require.Contains(w.t, []raftlog.Code{raftlog.Code_CODE_OK, raftlog.Code_CODE_FENCED}, code)
			return
		}
		low, high := began, max(began, w.engine)
		if g.Pin >= 0 {
			low, high = g.Pin, g.Pin
		}
		code := w.sealAs(g, sealed([]string{"stop", "max_tokens", "max_turns"}[w.rng.IntN(3)], low, high))
		if ref == now && w.faults == 0 && w.drops == 0 {
			require.Equal(w.t, raftlog.Code_CODE_OK, code)
		}
		w.played[g.Group] = max(w.played[g.Group], secs)
	})
}

func (w *world) judgeOne(j *raftlog.JobGrant) {
	ref := w.ref(RoleVerifier)
	w.after(0.2*w.rng.ExpFloat64(), func() {
		now := w.nodes[RoleVerifier]
		w.nodes[RoleVerifier] = ref
		defer func() { w.nodes[RoleVerifier] = now }()
		if w.trouble() {
			w.failJob(j, []string{"verifier_crash", "verifier_timeout", "host_lost"}[w.rng.IntN(3)])
			return
		}
		reward := float64(w.rng.IntN(2))
		w.settleAs(j, map[float64]string{0: "fail", 1: "pass"}[reward], proto.Float64(reward))
	})
}

func (w *world) publishOne() {
	w.t.Helper()
	p := w.leasePublish()
	require.True(w.t, p.Ready, p.WaitsFor)
	ref := w.ref(RolePublisher)
	w.busy[RolePublisher] = true
	secs := w.publish()
	flip := secs * w.rng.Float64()
	if !w.trouble() { // the engine switches before the publication is finished
		w.after(flip, func() { w.engine = max(w.engine, p.Version) })
	}
	w.after(secs, func() {
		w.busy[RolePublisher] = false
		now := w.nodes[RolePublisher]
		w.nodes[RolePublisher] = ref
		defer func() { w.nodes[RolePublisher] = now }()
		if w.trouble() {
			if w.finishPublish(p, false, "probes").Code == raftlog.Code_CODE_OK {
				w.after(30, func() { w.control("resume", "") })
			}
			return
		}
		w.engine = max(w.engine, p.Version)
		w.finishPublish(p, true, "", "engine-1")
	})
}

func (w *world) trainOne() {
	w.t.Helper()
	if w.gang == nil || w.s.Gang(w.run).GetLease().GetFence() != w.gang.Fence {
		w.gang = w.join()
	}
	g := w.gang
	b := w.take(g)
	require.True(w.t, b.Ready, b.WaitsFor)
	ref := w.ref(RoleTrainer)
	w.busy[RoleTrainer] = true
	w.after(w.train*(0.8+0.4*w.rng.Float64()), func() {
		w.busy[RoleTrainer] = false
		now := w.nodes[RoleTrainer]
		w.nodes[RoleTrainer] = ref
		defer func() { w.nodes[RoleTrainer] = now }()
		code := w.commitAs(g, b.Step, fmt.Sprintf("m%d of epoch %d", b.Step+1, g.Epoch)).Code
		if ref == now && w.faults == 0 {
			require.Equal(w.t, raftlog.Code_CODE_OK, code)
		}
	})
}

func simulated(lag int32, every int32, steps int64) *raftlog.RunConfig {
	return config(func(c *raftlog.RunConfig) {
		c.LagMax, c.PublishEvery, c.Steps, c.GroupsPerStep = lag, every, steps, 3
		c.Envs[0].GroupSize, c.Envs[0].Shuffle = 4, true
		c.BatchDeadlineNs, c.EpisodeDeadlineNs, c.NoProgressNs = 3600*second, 3600*second, 7200*second
	})
}

// In normal operation, with slow groups and late, skipped and withheld
// publications, nothing goes stale, straggles or is dropped, what is trained is
// what was dispatched, and S = 0 is exact on-policy.
func TestNormalOperationLosesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, lag := range []int32{0, 1, 2, 4} {
		for every := int32(1); every <= min(3, lag+1); every++ {
			t.Run(fmt.Sprintf("S=%d,every=%d", lag, every), func(t *testing.T) {
				for i := range uint64(2) {
					w := newWorld(t, seed+i, simulated(lag, every, 12))
					w.watch.normal = true
					w.publish = func() float64 {
						if w.rng.Float64() < 0.2 {
							return 60 * w.rng.Float64() // long enough for newer versions to overtake it
						}
						return 1 + w.rng.ExpFloat64()
					}
					w.play(100_000)
					r := w.r()
					require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, r.State, r.Reason)
					require.EqualValues(t, 36, r.Counters.GroupsAdmitted)
					require.EqualValues(t, 36, r.Counters.GroupsConsumed)
					require.LessOrEqual(t, r.Counters.MaxLag, int64(lag))
					require.Equal(t, dispatched(w), trained(w))
					if lag == 0 {
						for k, s := range w.watch.tokens {
							step := w.watch.consumed[k.group]
							require.Equal(t, [2]int64{step, step}, [2]int64{s.MinVersion, s.MaxVersion})
						}
					}
					w.replay(w.rng.IntN(len(w.log)))
				}
			})
		}
	}
}

// The fit rule holds under drops, too: whatever falls away, nothing goes stale
// or straggles, no step has more groups due than it can train, and the bound
// holds for every token.
func TestFitRuleUnderDrops(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, lag := range []int32{0, 1, 2, 4} {
		for every := int32(1); every <= min(2, lag+1); every++ {
			t.Run(fmt.Sprintf("S=%d,every=%d", lag, every), func(t *testing.T) {
				for i := range uint64(2) {
					c := simulated(lag, every, 12)
					c.Envs[0].ShortGroup, c.Envs[0].MaxAttempts = "drop", 1<<30
					w := newWorld(t, seed+i, c)
					w.watch.fits, w.drops = true, 0.05
					w.publish = func() float64 {
						if w.rng.Float64() < 0.2 {
							return 60 * w.rng.Float64()
						}
						return 1 + w.rng.ExpFloat64()
					}
					w.play(100_000)
					r := w.r()
					require.Equal(t, raftlog.RunState_RUN_STATE_SUCCEEDED, r.State, r.Reason)
					require.EqualValues(t, 36, r.Counters.GroupsConsumed)
					require.Zero(t, r.Counters.Stale+r.Counters.Straggler)
					require.LessOrEqual(t, r.Counters.MaxLag, int64(lag))
				}
			})
		}
	}
}

// dispatched and trained are the durations of groups, sorted.
func dispatched(w *world) []float64 {
	var out []float64
	for id := range w.watch.admitted {
		out = append(out, w.played[id])
	}
	sort.Float64s(out)
	return out
}

func trained(w *world) []float64 {
	var out []float64
	for id := range w.watch.consumed {
		out = append(out, w.played[id])
	}
	sort.Float64s(out)
	return out
}

// Lag is what makes slow groups harmless: in the same world more of it never takes longer by much, and S = 2 is far faster than S = 0.
func TestLagHidesSlowGroups(t *testing.T) {
	took := map[int32]float64{}
	for _, lag := range []int32{0, 1, 2, 4} {
		for seed := range uint64(3) {
			w := newWorld(t, seed, simulated(lag, 1, 20))
			w.check = false
			w.play(100_000)
			took[lag] += float64(w.now-start) / 1e9
		}
	}
	t.Logf("seconds of log time by lag: %v", took)
	require.Less(t, took[2], took[0]/1.5)
	require.Less(t, took[4], took[0]/1.5)
}

// With trouble of every kind the run still ends, and the books are right.
func TestTroubledFleet(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ends := map[string]int{}
	for i := range uint64(24) {
		lag := []int32{0, 1, 2, 4}[i%4]
		c := simulated(lag, 1+int32(i)%(lag+1), 8)
		c.Envs[0].ShortGroup = []string{"replace", "keep", "drop"}[i%3]
		c.Envs[0].KeepMin, c.Envs[0].MaxAttempts = 2, 4
		c.BatchDeadlineNs, c.EpisodeDeadlineNs, c.NoProgressNs, c.PublishDeadlineNs = 120*second, 100*second, 900*second, 60*second
		c.Evals = []*raftlog.EvalConfig{{Suite: "held-out", Tasks: c.Envs[0].Tasks[:3], Samples: 2, Every: 3}}
		c.Concurrency = 20
		w := newWorld(t, seed+i, c)
		w.faults = 0.03
		w.every(20, w.strike)
		w.play(200_000)
		ends[StateName(w.r().State)]++
		w.replay(w.rng.IntN(len(w.log)))
	}
	t.Logf("ends: %v", ends)
	require.NotZero(t, ends["succeeded"])
}

// strike kills a role, restarts the coordinator from its snapshot, or both or neither.
func (w *world) strike() {
	switch w.rng.IntN(3) {
	case 0:
		roles := []string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher}
		role := roles[w.rng.IntN(len(roles))]
		w.revive(role)
		if w.rng.IntN(2) == 0 { // its old self is gone too
			w.busy[role] = false
		}
	case 1:
		w.s = restored(w.t, w.s)
	}
}
