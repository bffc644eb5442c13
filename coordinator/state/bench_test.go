package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// loaded is a run at full size: 48 outstanding groups of 16, a client for each worker.
func loaded(b testing.TB) *machine {
	m := newMachine(b)
	m.check = false
	for _, role := range []string{RoleHost, RoleEngine, RoleRollout, RoleVerifier, RoleTrainer, RolePublisher} {
		ref := &raftlog.NodeRef{Role: role, Name: role + "-1", Incarnation: 1}
		m.nodes[role] = ref
		m.bare(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref, Agents: 2000, Verifiers: 2000}}})
	}
	m.bare(&raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{Id: m.run, SpecDigest: "d", Manifest: "m0", Config: config(func(c *raftlog.RunConfig) {
		c.LagMax, c.GroupsPerStep, c.Steps, c.Concurrency = 2, 16, 1<<30, 2000
		c.Envs[0].GroupSize, c.Envs[0].Shuffle = 16, true
		for i := range 500 {
			c.Envs[0].Tasks = append(c.Envs[0].Tasks, &raftlog.TaskRef{Id: fmt.Sprint("t", i), Digest: "sha256:x"})
		}
	})}}})
	m.publishNow()
	return m
}

// bare applies an operation and checks nothing.
func (m *machine) bare(op *raftlog.Op) *raftlog.Result {
	r := m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: m.term, Proposals: []*raftlog.Proposal{{Op: op}}})[0]
	if refused(r) {
		require.Fail(m.t, r.Message)
	}
	if m.forked {
		m.s.Fork()
	}
	return r
}

func (m *machine) leaseBare(n int32) []*raftlog.EpisodeGrant {
	return m.bare(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: m.ref(RoleRollout), Run: m.run, Count: n}}}).GetLeaseEpisodes().Grants
}

func (m *machine) sealBare(grants []*raftlog.EpisodeGrant) {
	op := &raftlog.SealEpisodes{Node: m.ref(RoleRollout), Run: m.run}
	for _, g := range grants {
		op.Items = append(op.Items, &raftlog.SealItem{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: sealed("stop", g.Live, g.Live)})
	}
	m.bare(&raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: op}})
}

func (m *machine) leaseJobsBare(n int32) []*raftlog.JobGrant {
	return m.bare(&raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: m.ref(RoleVerifier), Count: n}}}).GetLeaseJobs().Grants
}

func (m *machine) settleBare(jobs []*raftlog.JobGrant) {
	op := &raftlog.SettleJobs{Node: m.ref(RoleVerifier), Run: m.run}
	for _, j := range jobs {
		op.Items = append(op.Items, &raftlog.SettleItem{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: "pass", Reward: proto.Float64(1)})
	}
	m.bare(&raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: op}})
}

// BenchmarkEpisodes reports the time of Apply for one episode from lease to
// step, in entries of 16 with 48 groups of 16 outstanding, and of each part;
// alone, and with a reader that forks the state after every entry.
func BenchmarkEpisodes(b *testing.B) {
	b.Run("alone", func(b *testing.B) { benchmarkEpisodes(b, false) })
	b.Run("forked", func(b *testing.B) { benchmarkEpisodes(b, true) })
}

func benchmarkEpisodes(b *testing.B, forked bool) {
	m := loaded(b)
	m.forked = forked
	gang := m.join()
	spent := map[string]float64{}
	timed := func(name string, do func()) {
		from := b.Elapsed()
		do()
		spent[name] += float64(b.Elapsed()-from) / 1e3
	}
	fill := func() (grants []*raftlog.EpisodeGrant) {
		for {
			g := m.leaseBare(16)
			if len(g) == 0 {
				return grants
			}
			grants = append(grants, g...)
		}
	}
	out := fill()
	b.ResetTimer()
	n := 0
	for b.Loop() {
		batch := out[:16]
		out = out[16:]
		timed("seal-µs/item", func() { m.sealBare(batch) })
		var jobs []*raftlog.JobGrant
		timed("leasejob-µs/item", func() { jobs = m.leaseJobsBare(16) })
		timed("settle-µs/item", func() { m.settleBare(jobs) })
		n += 16
		if m.s.Work(m.run).Batch {
			timed("step-µs/item", func() {
				t := m.bare(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: m.ref(RoleTrainer), Run: m.run, Epoch: gang.Epoch, Fence: gang.Fence}}}).GetTakeBatch()
				m.bare(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{Node: m.ref(RoleTrainer), Run: m.run, Epoch: gang.Epoch, Fence: gang.Fence, Step: t.Step, Manifest: "m", Ledger: "l"}}})
				p := m.bare(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: m.ref(RolePublisher), Run: m.run}}}).GetLeasePublish()
				m.bare(&raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{Node: m.ref(RolePublisher), Run: m.run, Version: p.Version, Fence: p.Fence, Accepted: true, Served: []string{"engine-1"}}}})
				m.bare(&raftlog.Op{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 1 << 60}}})
			})
			timed("lease-µs/item", func() { out = append(out, fill()...) })
		}
	}
	for name, us := range spent {
		b.ReportMetric(us/float64(n), name)
	}
}

// BenchmarkCommands is Apply of one command an entry, on a state with 768 episodes under lease.
func BenchmarkCommands(b *testing.B) {
	for name, op := range map[string]func(*machine, []*raftlog.EpisodeGrant, int) *raftlog.Op{
		"heartbeat": func(m *machine, _ []*raftlog.EpisodeGrant, _ int) *raftlog.Op {
			return &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: m.ref(RoleTrainer)}}}
		},
		"fail": func(m *machine, g []*raftlog.EpisodeGrant, i int) *raftlog.Op {
			x := g[i]
			return &raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: m.ref(RoleRollout), Run: m.run, Items: []*raftlog.FailItem{
				{Group: x.Group, Index: x.Index, Attempt: x.Attempt, Fence: x.Fence, Reason: "worker_lost"},
			}}}}
		},
		"seal": func(m *machine, g []*raftlog.EpisodeGrant, i int) *raftlog.Op {
			x := g[i]
			return &raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: m.ref(RoleRollout), Run: m.run, Items: []*raftlog.SealItem{
				{Group: x.Group, Index: x.Index, Attempt: x.Attempt, Fence: x.Fence, Sealed: sealed("stop", 0, 0)},
			}}}}
		},
		"refused": func(m *machine, g []*raftlog.EpisodeGrant, i int) *raftlog.Op {
			return &raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: m.ref(RoleRollout), Run: m.run, Items: []*raftlog.FailItem{{Group: g[i].Group, Fence: 1, Reason: "worker_lost"}}}}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			m := loaded(b)
			grants := m.leaseBare(768)
			full := m.s.Fork()
			i := 0
			for b.Loop() {
				m.s.Apply(&raftlog.Entry{NowNs: m.now, Term: 1, Proposals: []*raftlog.Proposal{{Client: "c", Seq: uint64(i), Op: op(m, grants, i%768)}}})
				if i++; i%768 == 0 {
					m.s = full.Fork()
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// BenchmarkReads is what is asked after every applied entry and at every tick.
func BenchmarkReads(b *testing.B) {
	m := loaded(b)
	for {
		g := m.leaseBare(64)
		if len(g) == 0 {
			break
		}
		if g[0].Group < 40 {
			m.sealBare(g)
			m.settleBare(m.leaseJobsBare(64))
		}
	}
	for name, do := range map[string]func(){
		"Work":    func() { m.s.Work(m.run) },
		"Due":     func() { m.s.Due(m.now) },
		"Why":     func() { m.s.Why(m.run) },
		"Fork":    func() { m.s.Fork() },
		"Records": func() { m.s.Records(func(*raftlog.Record) bool { return true }) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				do()
			}
		})
	}
}
