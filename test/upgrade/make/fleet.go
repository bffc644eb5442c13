package main

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// fleet is one node of each role that plays, judges and trains by hand.
type fleet struct {
	*driver
	gang *raftlog.JoinGangResult
}

func ref(role string) *raftlog.NodeRef {
	return &raftlog.NodeRef{Role: role, Name: role + "-1", Incarnation: 1}
}

var hour = int64(3600e9)

func config() *raftlog.RunConfig {
	tasks := func(names ...string) (out []*raftlog.TaskRef) {
		for _, n := range names {
			out = append(out, &raftlog.TaskRef{Id: n, Digest: "sha256:" + n})
		}
		return out
	}
	env := func(name string, weight float64, names ...string) *raftlog.EnvConfig {
		return &raftlog.EnvConfig{
			Name: name, Weight: weight, GroupSize: 2, Tasks: tasks(names...), Shuffle: true, MaxAttempts: 3, ShortGroup: "replace",
			VerifyRetries: 1, LimitsOn: map[string]string{"max_tokens": "mask"}, MaxMasked: 0.5,
		}
	}
	return &raftlog.RunConfig{
		Seed: 7, Steps: 40, LagMax: 4, GroupsPerStep: 2, PublishEvery: 1,
		Envs:        []*raftlog.EnvConfig{env("files", 1, "t1", "t2", "t3"), env("words", 0.5, "w1", "w2")},
		Evals:       []*raftlog.EvalConfig{{Suite: "held-out", Tasks: tasks("e1", "e2"), Samples: 1, Every: 1}},
		Concurrency: 64, BatchDeadlineNs: 24 * hour, NoProgressNs: 24 * hour, PublishDeadlineNs: 24 * hour, EpisodeDeadlineNs: 24 * hour,
		TtlNs: 24 * hour, MaxRequeues: 2, StopEvalReward: proto.Float64(99), RequeueStale: true,
	}
}

// do proposes for a role's own client.
func (f *fleet) do(role string, op *raftlog.Op) (*raftlog.Result, error) { return f.propose(role, op) }

func (f *fleet) create(id string, c *raftlog.RunConfig) error {
	_, err := f.do("admin", &raftlog.Op{Op: &raftlog.Op_CreateRun{CreateRun: &raftlog.CreateRun{
		Id: id, SpecDigest: "sha256:" + id, Spec: []byte("kind: Experiment\n"), Config: c, Manifest: "sha256:v0",
	}}})
	return err
}

func (f *fleet) control(id, action string) error {
	_, err := f.do("admin", &raftlog.Op{Op: &raftlog.Op_ControlRun{ControlRun: &raftlog.ControlRun{Id: id, Action: action, Reason: "as asked"}}})
	return err
}

func (f *fleet) register(n *raftlog.NodeRef) error {
	_, err := f.do(n.Role, &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
		Node: n, Address: "127.0.0.1:1", Agents: 64, Verifiers: 64, Labels: map[string]string{"zone": strings.Repeat("a", 6000)},
	}}})
	return err
}

// begin registers the fleet, creates the runs and publishes version 0.
func (f *fleet) begin() error {
	for _, role := range []string{"host", "engine", "rollout", "verifier", "trainer", "publisher"} {
		if err := f.register(ref(role)); err != nil {
			return err
		}
	}
	gone := &raftlog.NodeRef{Role: "host", Name: "host-2", Incarnation: 4}
	if err := f.register(gone); err != nil {
		return err
	}
	if _, err := f.do("host", &raftlog.Op{Op: &raftlog.Op_Deregister{Deregister: &raftlog.Deregister{Node: gone}}}); err != nil {
		return err
	}
	draining := &raftlog.NodeRef{Role: "rollout", Name: "rollout-2", Incarnation: 2}
	if err := f.register(draining); err != nil {
		return err
	}
	for _, h := range []*raftlog.Heartbeat{
		{Node: draining, Draining: true, EngineVersion: -1},
		{Node: ref("engine"), EngineVersion: 0},
	} {
		if _, err := f.do(h.Node.Role, &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}}); err != nil {
			return err
		}
	}
	for _, id := range []string{"paused", "cancelled", "dropped", "ahead", "main"} {
		c := config()
		if id == "dropped" {
			c.Evals = nil
			for _, e := range c.Envs {
				e.ShortGroup = "drop"
			}
		}
		if err := f.create(id, c); err != nil {
			return err
		}
		if id == "paused" {
			if err := f.control(id, "pause"); err != nil {
				return err
			}
		}
	}
	if err := f.control("cancelled", "cancel"); err != nil {
		return err
	}
	if err := f.publish("dropped", true); err != nil {
		return err
	}
	if err := f.short(); err != nil {
		return err
	}
	if err := f.publish("main", true); err != nil {
		return err
	}
	r, err := f.do("trainer", &raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: ref("trainer"), Run: "main"}}})
	f.gang = r.GetJoinGang()
	return err
}

// short fails a member until its group is dropped, so that its task has a record of that.
func (f *fleet) short() error {
	for range 3 {
		grants, err := f.lease("dropped", 1)
		if err != nil {
			return err
		}
		if err := f.play(grants); err != nil {
			return err
		}
	}
	return nil
}

// publish claims what is due in a run, and ends it.
func (f *fleet) publish(run string, finish bool) error {
	r, err := f.do("publisher", &raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: ref("publisher"), Run: run}}})
	if err != nil || !finish {
		return err
	}
	p := r.GetLeasePublish()
	if !p.Ready {
		return errors.New("nothing to publish: " + p.WaitsFor)
	}
	_, err = f.do("publisher", &raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{
		Node: ref("publisher"), Run: run, Version: p.Version, Fence: p.Fence, Accepted: true, Served: []string{"engine-1"},
	}}})
	return err
}

func (f *fleet) lease(run string, count int32) ([]*raftlog.EpisodeGrant, error) {
	r, err := f.do("rollout", &raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: ref("rollout"), Run: run, Count: count}}})
	return r.GetLeaseEpisodes().GetGrants(), err
}

// play seals what was granted; the first attempt of all fails and comes back.
func (f *fleet) play(grants []*raftlog.EpisodeGrant) error {
	for i, g := range grants {
		v := g.Live
		if g.Pin >= 0 {
			v = g.Pin
		}
		op := &raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: ref("rollout"), Run: g.Run, Items: []*raftlog.SealItem{{
			Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: &raftlog.Sealed{
				EndReason: "stop", MinVersion: v, MaxVersion: v, Tokens: 12, Artifacts: "sha256:art", DurationNs: 5e9, Turns: 3,
				Steps: &raftlog.RowRef{Object: "sha256:steps", Batch: 1, Row: int32(i), Rows: 3}, Episode: &raftlog.RowRef{Object: "sha256:episodes", Rows: 1},
			},
		}}}}}
		if i == 0 && (g.Attempt == 1 || g.Run == "dropped") {
			op = &raftlog.Op{Op: &raftlog.Op_FailEpisodes{FailEpisodes: &raftlog.FailEpisodes{Node: ref("rollout"), Run: g.Run, Items: []*raftlog.FailItem{{
				Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Reason: "env_crash", Message: "it died",
			}}}}}
		}
		if _, err := f.do("rollout", op); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) leaseJobs(count int32) ([]*raftlog.JobGrant, error) {
	r, err := f.do("verifier", &raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: ref("verifier"), Count: count}}})
	return r.GetLeaseJobs().GetGrants(), err
}

// judge settles jobs; the first is tried twice.
func (f *fleet) judge(jobs []*raftlog.JobGrant) error {
	for i, j := range jobs {
		op := &raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: &raftlog.SettleJobs{Node: ref("verifier"), Run: j.Run, Items: []*raftlog.SettleItem{{
			Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: "pass", Reward: proto.Float64(float64(i%2) / 2),
			VerdictRow: &raftlog.RowRef{Object: "sha256:verdicts", Row: int32(i), Rows: 1},
		}}}}}
		if i == 0 && j.Tries == 0 {
			op = &raftlog.Op{Op: &raftlog.Op_FailJobs{FailJobs: &raftlog.FailJobs{Node: ref("verifier"), Run: j.Run, Items: []*raftlog.FailItem{{
				Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Reason: "verifier_crash", Message: "it died",
			}}}}}
		}
		if _, err := f.do("verifier", op); err != nil {
			return err
		}
	}
	return nil
}

// take asks for a batch until the groups that are being played make one.
func (f *fleet) take() (*raftlog.TakeBatchResult, error) {
	for range 20 {
		grants, err := f.lease("main", 6)
		if err != nil {
			return nil, err
		}
		if err := f.play(grants); err != nil {
			return nil, err
		}
		jobs, err := f.leaseJobs(16)
		if err != nil {
			return nil, err
		}
		if err := f.judge(jobs); err != nil {
			return nil, err
		}
		r, err := f.do("trainer", &raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{
			Node: ref("trainer"), Run: "main", Epoch: f.gang.Epoch, Fence: f.gang.Fence,
		}}})
		if err != nil || r.GetTakeBatch().Ready {
			return r.GetTakeBatch(), err
		}
	}
	return nil, errors.New("no batch became ready")
}

// step trains once and publishes, or not.
func (f *fleet) step(publish bool) error {
	b, err := f.take()
	if err != nil {
		return err
	}
	_, err = f.do("trainer", &raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{
		Node: ref("trainer"), Run: "main", Epoch: f.gang.Epoch, Fence: f.gang.Fence, Step: b.Step,
		Manifest: fmt.Sprint("sha256:v", b.Step+1), Ledger: "sha256:ledger", Full: true, Metrics: map[string]float64{"loss": 0.25},
	}}})
	if err != nil || !publish {
		return err
	}
	return f.publish("main", true)
}

// leave has work of every kind in flight, and events on both sides of the mirror.
func (f *fleet) leave() error {
	r, err := f.do("trainer", &raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: ref("trainer"), Run: "main"}}})
	if err != nil {
		return err
	}
	f.gang = r.GetJoinGang()
	s, _, err := f.node.Read(f.ctx)
	if err != nil {
		return err
	}
	if m := s.Run("main"); m.Head == m.Live { // rolled back: there is nothing to publish
		if err := f.step(false); err != nil {
			return err
		}
	}
	if _, err := f.take(); err != nil { // assigned, and not committed
		return err
	}
	if err := f.publish("main", false); err != nil { // claimed, and not finished
		return err
	}
	grants, err := f.lease("main", 6)
	if err != nil {
		return err
	}
	if err := f.play(grants[:len(grants)/2]); err != nil { // some under lease, some to be judged
		return err
	}
	if _, err := f.leaseJobs(1); err != nil {
		return err
	}
	for _, op := range []*raftlog.Op{
		{Op: &raftlog.Op_Mirrored{Mirrored: &raftlog.Mirrored{UpTo: 20}}},
		{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}},
	} {
		if _, err := f.propose("", op); err != nil {
			return err
		}
	}
	return nil
}

// after is what only the log holds.
func (f *fleet) after() error {
	if err := f.create("late", config()); err != nil {
		return err
	}
	for i := range 12 {
		if err := f.register(&raftlog.NodeRef{Role: "host", Name: fmt.Sprint("late-", i), Incarnation: 1}); err != nil {
			return err
		}
	}
	return f.control("paused", "resume")
}
