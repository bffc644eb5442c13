package rollout

import "github.com/prometheus/client_golang/prometheus"

// Metrics are a worker's counters.
type Metrics struct {
	active        prometheus.Gauge
	sealed        prometheus.Counter
	failed        *prometheus.CounterVec
	recordSeconds prometheus.Histogram
}

// NewMetrics registers a worker's metrics; a nil registry keeps them to itself.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rlfleet_rollout_episodes_active", Help: "Episodes being played."}),
		sealed: prometheus.NewCounter(prometheus.CounterOpts{Name: "rlfleet_rollout_episodes_sealed_total", Help: "Episodes sealed."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rlfleet_rollout_attempts_lost_total", Help: "Attempts that ended without a result."}, []string{"reason"}),
		recordSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rlfleet_rollout_record_seconds", Help: "Time to encode and store one pair of shards.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	if reg != nil {
		reg.MustRegister(m.active, m.sealed, m.failed, m.recordSeconds)
	}
	return m
}
