package coordinator

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// metrics are the node's counters; every name begins with rlfleet_coordinator_,
// and docs/metrics.md has them all. They live in a registry of their own, which
// the caller's holds while the node runs: a node that is opened again in one
// process registers again.
type metrics struct {
	registry   *prometheus.Registry
	entries    prometheus.Counter
	shared     prometheus.Counter
	proposals  prometheus.Counter
	operations map[string]prometheus.Counter // by the name of the operation
	refused    prometheus.Counter
	calm       prometheus.Gauge
	leaders    prometheus.Counter
	applied    prometheus.Counter
	apply      prometheus.Histogram
	commit     prometheus.Histogram
	fsync      prometheus.Histogram
	snapshot   prometheus.Histogram
	bytes      prometheus.Gauge
	lags       *lagHistogram
	mirrored   prometheus.Counter
	mirrorBad  prometheus.Counter
	verified   *prometheus.CounterVec
	watchers   prometheus.Gauge
	resyncs    prometheus.Counter
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
	long := times("snapshot_seconds", "Time to write a snapshot, taken here or received.")
	long.Buckets = prometheus.ExponentialBuckets(1e-3, 4, 10) // 1 ms to 4 min
	gauge := func(name, help string) prometheus.Gauge { return f.NewGauge(prometheus.GaugeOpts(opts(name, help))) }
	m := &metrics{
		registry:   reg,
		entries:    f.NewCounter(opts("entries_total", "Log entries proposed by this node.")),
		shared:     f.NewCounter(opts("renewal_entries_total", "Log entries of renewals alone, which had waited for each other.")),
		proposals:  f.NewCounter(opts("proposals_total", "Proposals put into log entries.")),
		operations: map[string]prometheus.Counter{},
		refused:    f.NewCounter(opts("queue_full_total", "Proposals refused because the queue was full.")),
		calm:       gauge("queue_patient", "Renewals waiting for an entry to go with."),
		leaders:    f.NewCounter(opts("leader_changes_total", "Times this node gained or lost leadership.")),
		applied:    f.NewCounter(opts("applied_total", "Proposals applied to the state machine.")),
		apply:      f.NewHistogram(times("apply_seconds", "Time to apply a batch of entries.")),
		commit:     f.NewHistogram(times("commit_seconds", "Time from appending an entry to its result.")),
		fsync:      f.NewHistogram(times("fsync_seconds", "Time to append to the write-ahead log durably.")),
		snapshot:   f.NewHistogram(long),
		bytes:      gauge("snapshot_bytes", "Size of the newest snapshot written since the start."),
		lags:       newLagHistogram(),
		mirrored:   f.NewCounter(opts("mirrored_total", "Events written to the store.")),
		mirrorBad:  f.NewCounter(opts("mirror_failures_total", "Failed writes to the store.")),
		watchers:   gauge("watchers", "Watch streams that are open."),
		resyncs:    f.NewCounter(opts("resyncs_total", "Watch streams that were told to begin again: too slow, or too late.")),
		verified:   f.NewCounterVec(opts("log_ranges_verified_total", "Ranges of the log read back and compared."), []string{"result"}),
	}
	operations := f.NewCounterVec(opts("operations_total", "Proposals put into log entries, by operation."), []string{"op"})
	fields := operationsOf(&raftlog.Op{}).Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		m.operations[name] = operations.WithLabelValues(name)
	}
	reg.MustRegister(m.lags)
	return m
}

func operationsOf(op *raftlog.Op) protoreflect.OneofDescriptor {
	return op.ProtoReflect().Descriptor().Oneofs().Get(0)
}

// entry counts an entry that leaves.
func (m *metrics) entry(group []*pending) {
	m.entries.Inc()
	m.proposals.Add(float64(len(group)))
	alone := true
	for _, p := range group {
		alone = alone && !p.since.IsZero()
		op := p.proposal.GetOp().ProtoReflect()
		if f := op.WhichOneof(operationsOf(p.proposal.GetOp())); f != nil {
			m.operations[string(f.Name())].Inc()
		}
	}
	if alone {
		m.shared.Inc()
	}
}

// notice follows what the state machine applies.
func (m *metrics) notice(s *state.State, c state.Change) {
	switch st := c.Record.GetStep(); {
	case st.GetState() == raftlog.StepState_STEP_STATE_COMMITTED && st.CommittedNs == s.Clock().NowNs: // and not an older one that changed
		m.lags.add(st.Run, s.Lags(st))
	case c.Kind == state.KindRun && c.Record == nil:
		m.lags.forget(c.Key)
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
	gauge("term", "Raft's term.", func() float64 { return float64(n.raft.CurrentTerm()) })
	gauge("log_index", "Index of the last log entry of this node.", func() float64 { return float64(n.raft.LastIndex()) })
	gauge("commit_index", "Index of the last log entry that is known to be committed.", func() float64 { return float64(n.raft.CommitIndex()) })
	gauge("applied_index", "Index of the last log entry applied; the nodes' differences are how far they lag.", func() float64 {
		_, index, _ := n.fsm.Progress()
		return float64(n.applied(index))
	})
	gauge("leader_silence_seconds", "Time since a follower heard of the leader; 0 on the leader.", func() float64 {
		if last := n.raft.LastContact(); n.raft.State() != raft.Leader && !last.IsZero() {
			return time.Since(last).Seconds()
		}
		return 0
	})
	n.metrics.registry.MustRegister(inventory{n.fsm})
}

func (m *metrics) observeApply(_, proposals int, took time.Duration) {
	m.applied.Add(float64(proposals))
	m.apply.Observe(took.Seconds())
}

// measured is a snapshot store that is timed.
type measured struct {
	raft.SnapshotStore
	metrics *metrics
}

// Create implements raft.SnapshotStore.
func (s measured) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, ci, t)
	if err != nil {
		return nil, err
	}
	return &measuredSink{SnapshotSink: sink, metrics: s.metrics, began: time.Now()}, nil
}

type measuredSink struct {
	raft.SnapshotSink
	metrics *metrics
	began   time.Time
	bytes   int
	done    bool // raft closes twice
}

// Write implements io.Writer.
func (s *measuredSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	s.bytes += n
	return n, err
}

// Close implements io.Closer: the snapshot is complete.
func (s *measuredSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.done {
		s.done = true
		s.metrics.snapshot.Observe(time.Since(s.began).Seconds())
		s.metrics.bytes.Set(float64(s.bytes))
	}
	return err
}
