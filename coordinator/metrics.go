package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the node's counters; every name begins with rlfleet_coordinator_.
// They live in a registry of their own, which the caller's holds while the node
// runs: a node that is opened again in one process registers again.
type metrics struct {
	registry  *prometheus.Registry
	entries   prometheus.Counter
	proposals prometheus.Counter
	refused   prometheus.Counter
	leaders   prometheus.Counter
	applied   prometheus.Counter
	apply     prometheus.Histogram
	commit    prometheus.Histogram
	fsync     prometheus.Histogram
	mirrored  prometheus.Counter
	mirrorBad prometheus.Counter
	verified  *prometheus.CounterVec
	watchers  prometheus.Gauge
	resyncs   prometheus.Counter
}

func newMetrics() *metrics {
	reg := prometheus.NewRegistry()
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "rlfleet", Subsystem: "coordinator", Name: name, Help: help}
	}
	times := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Namespace: "rlfleet", Subsystem: "coordinator", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16), // 50 µs to 1.6 s
		}
	}
	return &metrics{
		registry:  reg,
		entries:   f.NewCounter(opts("entries_total", "Log entries proposed by this node.")),
		proposals: f.NewCounter(opts("proposals_total", "Proposals put into log entries.")),
		refused:   f.NewCounter(opts("queue_full_total", "Proposals refused because the queue was full.")),
		leaders:   f.NewCounter(opts("leader_changes_total", "Times this node gained or lost leadership.")),
		applied:   f.NewCounter(opts("applied_total", "Proposals applied to the state machine.")),
		apply:     f.NewHistogram(times("apply_seconds", "Time to apply a batch of entries.")),
		commit:    f.NewHistogram(times("commit_seconds", "Time from appending an entry to its result.")),
		fsync:     f.NewHistogram(times("fsync_seconds", "Time to append to the write-ahead log durably.")),
		mirrored:  f.NewCounter(opts("mirrored_total", "Events written to the store.")),
		mirrorBad: f.NewCounter(opts("mirror_failures_total", "Failed writes to the store.")),
		watchers:  f.NewGauge(prometheus.GaugeOpts{Namespace: "rlfleet", Subsystem: "coordinator", Name: "watchers", Help: "Watch streams that are open."}),
		resyncs:   f.NewCounter(opts("resyncs_total", "Watch streams that were told to begin again: too slow, or too late.")),
		verified:  f.NewCounterVec(opts("log_ranges_verified_total", "Ranges of the log read back and compared."), []string{"result"}),
	}
}

// gauges registers what is read when it is scraped.
func (n *Node) gauges() {
	f := promauto.With(n.metrics.registry)
	gauge := func(name, help string, read func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "rlfleet", Subsystem: "coordinator", Name: name, Help: help}, read)
	}
	gauge("queue_depth", "Proposals waiting for a log entry.", func() float64 { return float64(len(n.queue.in)) })
	gauge("is_leader", "1 while this node leads.", func() float64 {
		if _, err := n.currentReign(); err == nil {
			return 1
		}
		return 0
	})
	gauge("mirror_waiting", "Events not yet in the store.", func() float64 {
		lag := n.MirrorLag()
		return float64(lag.Waiting)
	})
}

func (m *metrics) observeApply(_, proposals int, took time.Duration) {
	m.applied.Add(float64(proposals))
	m.apply.Observe(took.Seconds())
}
