package coordinator

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("rlfleet", "coordinator", name), help, labels, nil)
}

// What is counted when it is scraped. The only label without a fixed set of values is run.
var (
	leasesDesc = desc("leases", "What is under lease (held) or waits for a lease (waiting), by kind, in runs that have not ended.", "run", "kind", "state")
	nodesDesc  = desc("nodes", "Registered nodes.", "role", "state")
	alarmsDesc = desc("alarms", "1 for each alarm that stands.", "run", "name")
	lagsDesc   = desc("trained_token_lag", "Steps between the version that sampled a token and the step that trained it, for tokens trained since the start.", "run")
)

// inventory counts what the state of this node holds.
type inventory struct{ fsm *fsm.FSM }

// Describe implements prometheus.Collector.
func (i inventory) Describe(out chan<- *prometheus.Desc) {
	out <- leasesDesc
	out <- nodesDesc
	out <- alarmsDesc
}

// Collect implements prometheus.Collector.
func (i inventory) Collect(out chan<- prometheus.Metric) {
	s, _, _ := i.fsm.View()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	one := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	for _, r := range s.Runs() {
		if r.EndedNs > 0 {
			continue
		}
		l := s.Leases(r.Id)
		gauge(leasesDesc, l.Acting, r.Id, "episode", "held")
		gauge(leasesDesc, l.Queued, r.Id, "episode", "waiting")
		gauge(leasesDesc, l.Judged, r.Id, "verify", "held")
		gauge(leasesDesc, l.ToJudge, r.Id, "verify", "waiting")
		gauge(leasesDesc, one(l.Gang), r.Id, "gang", "held")
		gauge(leasesDesc, one(l.Publish), r.Id, "publish", "held")
		for _, a := range s.Alarms(r.Id) {
			gauge(alarmsDesc, 1, r.Id, a.Name)
		}
	}
	type key struct{ role, state string }
	count := map[key]int{}
	for _, n := range s.Nodes() {
		count[key{n.Role, nodeStates[n.State]}]++
	}
	for k, n := range count {
		gauge(nodesDesc, n, k.role, k.state)
	}
}

var nodeStates = map[raftlog.NodeState]string{
	raftlog.NodeState_NODE_STATE_READY:    "ready",
	raftlog.NodeState_NODE_STATE_DRAINING: "draining",
	raftlog.NodeState_NODE_STATE_FENCED:   "fenced",
}

// lagBounds are the upper bounds of the buckets of the lag histogram.
var lagBounds = []float64{0, 1, 2, 3, 4, 6, 8, 16}

// lagHistogram counts trained tokens by their lag: millions in each step, so that they cannot be observed one by one.
type lagHistogram struct {
	mu   sync.Mutex // guards runs
	runs map[string]*lagCounts
}

type lagCounts struct {
	count   uint64
	sum     float64
	buckets map[float64]uint64 // cumulative
}

func newLagHistogram() *lagHistogram { return &lagHistogram{runs: map[string]*lagCounts{}} }

// add counts the tokens of a step.
func (h *lagHistogram) add(run string, tokens map[int64]int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.runs[run]
	if c == nil {
		c = &lagCounts{buckets: map[float64]uint64{}}
		h.runs[run] = c
	}
	for lag, n := range tokens {
		c.count += uint64(n)
		c.sum += float64(lag) * float64(n)
		for _, b := range lagBounds {
			if float64(lag) <= b {
				c.buckets[b] += uint64(n)
			}
		}
	}
}

// forget drops a run that is no more.
func (h *lagHistogram) forget(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, run)
}

// Describe implements prometheus.Collector.
func (h *lagHistogram) Describe(out chan<- *prometheus.Desc) { out <- lagsDesc }

// Collect implements prometheus.Collector.
func (h *lagHistogram) Collect(out chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for run, c := range h.runs {
		buckets := make(map[float64]uint64, len(lagBounds))
		for _, b := range lagBounds {
			buckets[b] = c.buckets[b]
		}
		out <- prometheus.MustNewConstHistogram(lagsDesc, c.count, c.sum, buckets, run)
	}
}
