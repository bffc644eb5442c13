package coordinator

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// gathered returns the metrics of a node by name.
func gathered(t *testing.T, n *Node) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := n.metrics.registry.Gather()
	require.NoError(t, err)
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[strings.TrimPrefix(f.GetName(), "rlfleet_coordinator_")] = f
	}
	return out
}

// value returns a metric with these labels ("run", "r", …); -1 when there is none.
func value(f *dto.MetricFamily, labels ...string) float64 {
	for _, m := range f.GetMetric() {
		has := map[string]string{}
		for _, l := range m.Label {
			has[l.GetName()] = l.GetValue()
		}
		match := len(has) == len(labels)/2
		for i := 0; i < len(labels); i += 2 {
			match = match && has[labels[i]] == labels[i+1]
		}
		if match {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

// docs/metrics.md has every metric with its type, labels and help, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(rlfleet_coordinator_[a-z_]+)` \\| [a-z]+ \\| ([a-z, ]*) *\\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		require.NotContains(t, documented, row[1], "twice")
		documented[row[1]] = strings.TrimSpace(row[2]) + " | " + row[3]
	}
	n := open(t, testConfig(t.TempDir()))
	descs := make(chan *prometheus.Desc)
	go func() { n.metrics.registry.Describe(descs); close(descs) }()
	parts := regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: {}, variableLabels: {([^}]*)}`)
	have := map[string]string{}
	for d := range descs {
		p := parts.FindStringSubmatch(d.String())
		require.NotNil(t, p, d.String())
		have[p[1]] = strings.ReplaceAll(p[3], ",", ", ") + " | " + p[2]
	}
	require.Greater(t, len(have), 25)
	require.Equal(t, have, documented)
}

// The inventory counts what a run has, and each commit adds its tokens by their lag.
func TestMetricsOfARun(t *testing.T) {
	n := open(t, testConfig(t.TempDir()))
	seq := uint64(0)
	do := func(op *raftlog.Op) *raftlog.Result { seq++; return propose(t, n, "c", seq, op) }
	ref := func(role string) *raftlog.NodeRef { return &raftlog.NodeRef{Role: role, Name: role, Incarnation: 1} }
	register := func(role string) {
		do(&raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref(role), Agents: 8, Verifiers: 8}}})
	}
	for _, role := range []string{state.RoleHost, state.RoleEngine, state.RolePublisher, state.RoleRollout} {
		register(role)
	}
	do(createRun("r"))
	m := gathered(t, n)
	require.Equal(t, 1.0, value(m["alarms"], "run", "r", "name", "no-trainer"))
	require.Equal(t, -1.0, value(m["alarms"], "run", "r", "name", "no-host"))
	require.Equal(t, 1.0, value(m["nodes"], "role", "engine", "state", "ready"))
	register(state.RoleVerifier)
	register(state.RoleTrainer)

	p := do(&raftlog.Op{Op: &raftlog.Op_LeasePublish{LeasePublish: &raftlog.LeasePublish{Node: ref(state.RolePublisher)}}}).GetLeasePublish()
	require.Equal(t, 1.0, value(gathered(t, n)["leases"], "run", "r", "kind", "publish", "state", "held"))
	do(&raftlog.Op{Op: &raftlog.Op_FinishPublish{FinishPublish: &raftlog.FinishPublish{Node: ref(state.RolePublisher), Run: "r", Fence: p.Fence, Accepted: true, Served: []string{"engine"}}}})
	grants := do(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Node: ref(state.RoleRollout), Run: "r", Count: 2}}}).GetLeaseEpisodes().Grants
	require.Len(t, grants, 2)
	require.Equal(t, 2.0, value(gathered(t, n)["leases"], "run", "r", "kind", "episode", "state", "held"))
	seal := &raftlog.SealEpisodes{Node: ref(state.RoleRollout), Run: "r"}
	for _, g := range grants {
		seal.Items = append(seal.Items, &raftlog.SealItem{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: &raftlog.Sealed{
			EndReason: "stop", Tokens: 300, Steps: &raftlog.RowRef{Object: "s"}, Episode: &raftlog.RowRef{Object: "e"},
		}})
	}
	require.Equal(t, []raftlog.Code{0, 0}, do(&raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: seal}}).GetItems().Codes)
	require.Equal(t, 2.0, value(gathered(t, n)["leases"], "run", "r", "kind", "verify", "state", "waiting"))
	jobs := do(&raftlog.Op{Op: &raftlog.Op_LeaseJobs{LeaseJobs: &raftlog.LeaseJobs{Node: ref(state.RoleVerifier), Count: 2}}}).GetLeaseJobs().Grants
	settle := &raftlog.SettleJobs{Node: ref(state.RoleVerifier), Run: "r"}
	reward := 1.0
	for _, j := range jobs {
		settle.Items = append(settle.Items, &raftlog.SettleItem{Group: j.Group, Index: j.Index, Attempt: j.Attempt, Fence: j.Fence, Verdict: "pass", Reward: &reward})
	}
	require.Equal(t, []raftlog.Code{0, 0}, do(&raftlog.Op{Op: &raftlog.Op_SettleJobs{SettleJobs: settle}}).GetItems().Codes)
	gang := do(&raftlog.Op{Op: &raftlog.Op_JoinGang{JoinGang: &raftlog.JoinGang{Node: ref(state.RoleTrainer), Run: "r"}}}).GetJoinGang()
	batch := do(&raftlog.Op{Op: &raftlog.Op_TakeBatch{TakeBatch: &raftlog.TakeBatch{Node: ref(state.RoleTrainer), Run: "r", Epoch: gang.Epoch, Fence: gang.Fence}}}).GetTakeBatch()
	require.True(t, batch.Ready, batch.WaitsFor)
	do(&raftlog.Op{Op: &raftlog.Op_CommitStep{CommitStep: &raftlog.CommitStep{Node: ref(state.RoleTrainer), Run: "r", Epoch: gang.Epoch, Fence: gang.Fence, Step: batch.Step, Manifest: "m", Ledger: "l", Full: true}}})

	require.NoError(t, n.Snapshot())
	m = gathered(t, n)
	require.Equal(t, 600.0, value(m["trained_token_lag"], "run", "r"))
	require.Zero(t, m["trained_token_lag"].Metric[0].Histogram.GetSampleSum(), "version 0 in step 0")
	require.Equal(t, 1.0, value(m["operations_total"], "op", "commit_step"))
	require.Equal(t, 6.0, value(m["operations_total"], "op", "register"))
	require.Equal(t, 1.0, value(m["snapshot_seconds"]))
	require.Greater(t, value(m["snapshot_bytes"]), 1000.0)
	require.Equal(t, value(m["log_index"]), value(m["applied_index"]))
	require.Equal(t, -1.0, value(m["leases"], "run", "r", "kind", "gang", "state", "held"), "the run has ended")
	h := newLagHistogram()
	h.add("x", map[int64]int64{0: 1, 2: 10, 5: 100, 99: 1000})
	require.Equal(t, uint64(1111), h.runs["x"].count)
	require.Equal(t, uint64(11), h.runs["x"].buckets[2])
	require.Equal(t, uint64(111), h.runs["x"].buckets[16])
}
