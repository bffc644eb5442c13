package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/state"
)

// ManifestStore is where the mirror writes; an ObjectStore with a small adapter
// is one. All methods must be safe for concurrent use.
type ManifestStore interface {
	// Put creates an object durably, or fails when it exists with other content.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns a whole object, or fails when there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Keys returns the keys below a prefix, in order.
	Keys(ctx context.Context, prefix string) ([]string, error)
}

// Config says how a node runs. Start from DefaultConfig.
type Config struct {
	Dir     string // data directory; made when missing, locked while the node runs
	Node    string // id of this node; the directory remembers it
	Version string // of the binary, for version.json and Status

	Mirror     ManifestStore         // nil: events stay in the replicated state
	Logger     *slog.Logger          // never nil
	Registerer prometheus.Registerer // nil: metrics are kept but not exposed

	Queue         int           // proposals that may wait; more are refused with QUEUE_FULL
	BatchCount    int           // most proposals of one log entry
	BatchBytes    int           // size at which a log entry takes no more
	BatchWork     int           // records changed at which a log entry takes no more: Apply holds up everything else
	InFlight      int           // log entries on their way at a time
	Patience      time.Duration // a heartbeat without news waits at most this long for an entry to go with; 0: not at all
	MaxMessage    int           // bytes of an RPC message
	Tick          time.Duration // how often overdue things are looked for
	MirrorEvery   time.Duration // least time between two manifest objects of a run
	StartTimeout  time.Duration // Open fails when the node does not lead by then
	SegmentBytes  int           // of the write-ahead log
	SnapshotAfter uint64        // log entries between two snapshots
	SnapshotEvery time.Duration // how often that is looked at
	TrailingLogs  uint64        // log entries kept behind a snapshot
	LogBytes      int64         // of the log's files, above which a snapshot is taken whatever the number of entries

	// Transport connects the nodes of a cluster; nil is the in-memory one of a
	// single node. Servers is the first configuration of a new directory; nil is
	// this node alone. Election is the heartbeat and election timeout.
	Transport raft.Transport
	Servers   []raft.Server
	Election  time.Duration

	// Cluster marks one of several nodes: a new directory waits until Init makes
	// it the first of a cluster or Join adds it to one, and Open does not wait
	// for a leader. Address is where the others and clients reach its RPCs, Dial
	// how it reaches theirs.
	Cluster bool
	Belongs string // id of the cluster that the directory must belong to, if to any; empty: whichever
	Address string
	Dial    []grpc.DialOption

	// Authenticate returns what lets callers of the RPCs in; nil is nothing, and
	// then the node serves Unix sockets and loopback addresses only.
	Authenticate func(*Node) ([]grpc.ServerOption, error)

	level  int32                             // of the commands it knows; a test's older node
	faults func(raft.LogStore) raft.LogStore // a test's bad disk
	memory func() logStore                   // a test's log, in place of the write-ahead log
}

// DefaultConfig is a single node: with nobody to disturb, it elects itself in
// tens of milliseconds. A cluster wants an Election of a second.
func DefaultConfig(dir string) Config {
	return Config{
		Dir: dir, Node: "n1", Version: "dev", Logger: slog.New(slog.DiscardHandler),
		Queue: 4096, BatchCount: 512, BatchBytes: 1 << 20, BatchWork: 2048, InFlight: 2, MaxMessage: 16 << 20, Patience: mostPatience,
		Tick: 250 * time.Millisecond, MirrorEvery: 250 * time.Millisecond, StartTimeout: time.Minute,
		SegmentBytes: 16 << 20, SnapshotAfter: 8192, SnapshotEvery: 30 * time.Second, TrailingLogs: 10240, LogBytes: 128 << 20,
		Election: 50 * time.Millisecond, level: state.Level,
	}
}

// Validate returns one error that names every field that is wrong.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.Dir != "", "Dir is empty")
	need(c.Node != "", "Node is empty")
	need(c.Logger != nil, "Logger is nil")
	need(c.Queue > 0 && c.BatchCount > 0 && c.BatchWork > 0 && c.InFlight > 0, "Queue, BatchCount, BatchWork and InFlight must be at least 1")
	need(c.BatchBytes > 0 && c.BatchBytes <= 32<<20, "BatchBytes must be between 1 and 32 MiB")
	need(c.MaxMessage > 0 && c.MaxMessage <= 32<<20, "MaxMessage must be between 1 and 32 MiB") // a log entry holds at most 64 MiB
	need(c.Patience >= 0 && c.Patience <= mostPatience, fmt.Sprintf("Patience must be between 0 and %s, an eighth of a lease", mostPatience))
	need(c.Tick > 0 && c.MirrorEvery > 0 && c.StartTimeout > 0 && c.SnapshotEvery > 0, "durations must be positive")
	need(c.SegmentBytes >= 64<<10, "SegmentBytes must be at least 64 KiB")
	need(c.SnapshotAfter > 0, "SnapshotAfter must be at least 1")
	need(c.LogBytes >= 4*int64(c.SegmentBytes), "LogBytes must be at least four times SegmentBytes")
	need(c.Election >= 10*time.Millisecond, "Election must be at least 10 ms")
	need(!c.Cluster || c.Address != "" && c.Transport != nil, "a node of a cluster needs an Address and a Transport")
	need(c.Transport != nil || len(c.Servers) <= 1, "several Servers need a Transport")
	if len(errs) > 0 {
		return fmt.Errorf("coordinator: config: %w", errors.Join(errs...))
	}
	return nil
}

func (c Config) raft(notify chan<- bool) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(c.Node)
	r.HeartbeatTimeout, r.ElectionTimeout = c.Election, c.Election
	r.LeaderLeaseTimeout = c.Election // how often a leader wakes to look at its lease, also when nothing happens
	r.CommitTimeout = min(r.CommitTimeout, c.Election/2)
	r.MaxAppendEntries = 256
	r.SnapshotThreshold, r.SnapshotInterval, r.TrailingLogs = c.SnapshotAfter, c.SnapshotEvery, c.TrailingLogs
	r.NoSnapshotRestoreOnStart = true // Open restores first, to say clearly what is wrong
	r.NoLegacyTelemetry = true
	r.NotifyCh = notify
	return r
}
