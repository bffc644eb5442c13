package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/store/file"
)

// NodeConfig is the file of rlfleetd coordinator --config: one node of a cluster.
type NodeConfig struct {
	Node      string         `yaml:"node"`      // its id
	Cluster   string         `yaml:"cluster"`   // id that its data must have, when it has one; empty: any
	Dir       string         `yaml:"dir"`       // its data directory; a disk that fsync reaches
	Listen    string         `yaml:"listen"`    // RPCs, host:port
	Raft      string         `yaml:"raft"`      // log entries of the other nodes, host:port
	Advertise NodeAdvertised `yaml:"advertise"` // where others reach these two; default: the same
	Storage   string         `yaml:"storage"`   // of the runs' events: file://DIR; empty: they stay in the state
	TLS       NodeTLS        `yaml:"tls"`
	Insecure  bool           `yaml:"insecure"` // no TLS and no tokens; loopback addresses only
	Metrics   string         `yaml:"metrics"`  // Prometheus, loopback address; empty: none
	Election  string         `yaml:"election"` // heartbeat and election timeout, a Go duration
	Log       NodeLog        `yaml:"log"`      // how much of it is kept; what is 0 is the default
}

// NodeAdvertised are a node's addresses as others see them.
type NodeAdvertised struct {
	Listen string `yaml:"listen"`
	Raft   string `yaml:"raft"`
}

// NodeLog says when the log is replaced by a snapshot.
type NodeLog struct {
	SegmentBytes  int    `yaml:"segmentBytes"`  // size of its files
	SnapshotAfter uint64 `yaml:"snapshotAfter"` // entries between two snapshots
	SnapshotEvery string `yaml:"snapshotEvery"` // how often that is looked at, a Go duration
	Trailing      uint64 `yaml:"trailing"`      // entries kept behind a snapshot, for nodes that lag
}

// into overwrites the defaults.
func (l NodeLog) into(cfg *coordinator.Config) {
	if l.SegmentBytes > 0 {
		cfg.SegmentBytes = l.SegmentBytes
	}
	if l.SnapshotAfter > 0 {
		cfg.SnapshotAfter = l.SnapshotAfter
	}
	if l.Trailing > 0 {
		cfg.TrailingLogs = l.Trailing
	}
	if l.SnapshotEvery != "" {
		cfg.SnapshotEvery, _ = time.ParseDuration(l.SnapshotEvery) // Validate has
	}
}

// NodeTLS names PEM files, as rlctl cluster certs makes them.
type NodeTLS struct {
	CA   string `yaml:"ca"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// election is the shipped heartbeat and election timeout of a cluster: a dead
// leader is noticed after once to twice of it.
const election = 500 * time.Millisecond

// LoadNode reads a node's file; relative paths in it are of its folder.
func LoadNode(path string) (NodeConfig, error) {
	c := NodeConfig{Election: election.String()}
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read the node's configuration: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(b, &c, yaml.Strict()); err != nil {
		where, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
		return c, fmt.Errorf("%s: %s", path, where)
	}
	for _, p := range []*string{&c.Dir, &c.TLS.CA, &c.TLS.Cert, &c.TLS.Key} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(filepath.Dir(path), *p)
		}
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Validate returns the first thing that is wrong.
func (c NodeConfig) Validate() error {
	d, err := time.ParseDuration(c.Election)
	_, every := time.ParseDuration(cmp.Or(c.Log.SnapshotEvery, "1s"))
	secure := c.TLS != NodeTLS{}
	switch {
	case c.Node == "" || c.Dir == "" || c.Listen == "" || c.Raft == "":
		return errors.New("node, dir, listen and raft are needed")
	case err != nil || d < 10*time.Millisecond:
		return fmt.Errorf("election: %q is no duration of at least 10ms", c.Election)
	case every != nil:
		return fmt.Errorf("log: snapshotEvery: %q is no duration", c.Log.SnapshotEvery)
	case secure == c.Insecure:
		return errors.New("give either tls: {ca, cert, key} (rlctl cluster certs makes them) or insecure: true on loopback addresses")
	case secure && (c.TLS.CA == "" || c.TLS.Cert == "" || c.TLS.Key == ""):
		return errors.New("tls: ca, cert and key are needed")
	}
	for _, a := range []string{c.Listen, c.Raft} {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("%q is no address: use HOST:PORT", a)
		}
		if c.Insecure && !auth.Loopback(a) {
			return fmt.Errorf("%s can be reached by others, and nothing authenticates them: give tls, or use a loopback address", a)
		}
	}
	if c.Metrics != "" {
		return CheckLoopback(c.Metrics)
	}
	return nil
}

func (c NodeConfig) credentials(log *slog.Logger) (*auth.Credentials, error) {
	if c.Insecure {
		return nil, nil //nolint:nilnil // no credentials are none
	}
	return auth.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}.Load(log)
}

// config brings a node's file into the form of the coordinator.
func (c NodeConfig) config(ctx context.Context, build string, log *slog.Logger, reg prometheus.Registerer) (coordinator.Config, error) {
	cfg := coordinator.DefaultConfig(c.Dir)
	cfg.Node, cfg.Cluster, cfg.Belongs, cfg.Version, cfg.Logger, cfg.Registerer = c.Node, true, c.Cluster, build, log, reg
	cfg.Election, _ = time.ParseDuration(c.Election) // Validate has
	c.Log.into(&cfg)
	cfg.Address = c.Listen
	if c.Advertise.Listen != "" {
		cfg.Address = c.Advertise.Listen
	}
	if c.Storage != "" {
		dir, is := strings.CutPrefix(c.Storage, "file://")
		if !is {
			return cfg, fmt.Errorf("storage %s is not in this build; it has: file://DIR", c.Storage)
		}
		objects, err := file.Open(dir)
		if err != nil {
			return cfg, err
		}
		cfg.Mirror = Mirror{objects}
	}
	creds, err := c.credentials(log)
	if err != nil {
		return cfg, err
	}
	t := coordinator.TransportConfig{Node: c.Node, Listen: c.Raft, Advertise: c.Advertise.Raft, Timeout: 10 * time.Second, Logger: log}
	if creds != nil {
		t.TLS, t.Explain = creds.PeerTLS, creds.Explained
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rlfleet", Name: "certificate_expires_seconds", Help: "When the node's certificate or its authority ends, in seconds since 1970.",
		}, func() float64 { return float64(creds.Expires().Unix()) }))
		dial, err := auth.DialOptions(creds, "")
		if err != nil {
			return cfg, err
		}
		cfg.Dial = append(client.DialOptions(), dial...)
	} else {
		cfg.Dial = client.DialOptions()
	}
	cfg.Authenticate = func(n *coordinator.Node) ([]grpc.ServerOption, error) {
		g, err := auth.NewGuard(auth.Config{Insecure: c.Insecure, Token: n.Token, Now: n.LogTime})
		if err != nil {
			return nil, err
		}
		return auth.ServerOptions(creds, g)
	}
	transport, err := coordinator.NewTransport(ctx, t)
	if err != nil {
		return cfg, listenError(c.Raft, err)
	}
	cfg.Transport = transport
	return cfg, nil
}

// collectEvery is garbage that may gather before the collector runs. It runs when
// the heap has doubled, and that of a node with a small state does many times a
// second: a sixth of the processor time of a grant.
const collectEvery = 64 << 20

// RunNode runs one node of a cluster until ctx ends or it cannot go on.
func RunNode(ctx context.Context, c NodeConfig, build string, log *slog.Logger) (err error) {
	ballast := make([]byte, collectEvery) // never touched, so that it is no memory
	defer runtime.KeepAlive(ballast)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return listenError(c.Listen, err)
	}
	cfg, err := c.config(ctx, build, log, reg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	n, err := coordinator.Open(ctx, cfg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	serving := make(chan error, 1)
	go func() { serving <- n.Serve(l) }()
	var metrics net.Listener
	if c.Metrics != "" {
		metrics, err = ListenLoopback(c.Metrics)
	}
	if err == nil {
		stop := ServeMetrics(metrics, reg, log)
		log.Info("serving", "rpc", cfg.Address, "raft", string(cfg.Transport.LocalAddr()), "cluster", n.Status().Cluster)
		select {
		case <-ctx.Done():
		case <-n.Done():
		case err = <-serving:
			serving <- nil
		}
		stop()
	}
	closed := n.Close()
	return errors.Join(n.Err(), err, closed, <-serving)
}
