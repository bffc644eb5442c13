package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/store"
)

// Mirror makes an object store the coordinator's manifest store.
type Mirror struct{ store.ObjectStore }

// Keys returns the keys below a prefix, in order.
func (m Mirror) Keys(ctx context.Context, prefix string) ([]string, error) {
	var out []string
	for info, err := range m.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		out = append(out, info.Key)
	}
	return out, nil
}

// CoordinatorConfig says how a process runs the coordinator of a file storage.
type CoordinatorConfig struct {
	Storage    string
	Store      store.ObjectStore
	Build      string
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Coordinator is a coordinator with its listeners.
type Coordinator struct {
	*coordinator.Node
	serving chan error
	servers int
	socket  string
}

// OpenCoordinator starts the embedded coordinator of a storage: raft with one
// node, on disk, served on the storage's socket.
func OpenCoordinator(ctx context.Context, c CoordinatorConfig) (*Coordinator, error) {
	cfg := coordinator.DefaultConfig(filepath.Join(c.Storage, CoordinatorDir))
	cfg.Mirror, cfg.Logger, cfg.Version, cfg.Registerer = Mirror{c.Store}, c.Log, c.Build, c.Registerer
	n, err := coordinator.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	out := &Coordinator{Node: n, serving: make(chan error, 1), socket: filepath.Join(c.Storage, socketName)}
	l, err := listenSocket(c.Storage, socketName)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	out.serve(l)
	return out, nil
}

// listenError says in one sentence why an address cannot be had.
func listenError(address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another process: stop it, or name another port", address)
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

func (c *Coordinator) serve(l net.Listener) {
	c.servers++
	go func() { c.serving <- c.Serve(l) }()
}

// Close stops the node and its listeners.
func (c *Coordinator) Close() error {
	err := c.Node.Close()
	for range c.servers {
		err = errors.Join(err, <-c.serving)
	}
	if rerr := os.Remove(c.socket); rerr != nil && !os.IsNotExist(rerr) {
		err = errors.Join(err, rerr)
	}
	return err
}

// RunName finds the run that an experiment continues, among the runs of a
// storage, or names a new one: the experiment's name and a number.
func RunName(experiment string, digest string, runs []RunInfo, fresh bool) (name string, existing *RunInfo) {
	highest := 0
	for i, r := range runs {
		rest, is := strings.CutPrefix(r.ID, experiment+"-")
		var n int
		if _, err := fmt.Sscanf(rest, "%d", &n); !is || err != nil || fmt.Sprint(n) != rest {
			continue
		}
		if n > highest {
			highest = n
		}
		if r.Digest == digest && !fresh {
			existing = &runs[i]
		}
	}
	if existing != nil {
		return existing.ID, existing
	}
	return fmt.Sprintf("%s-%d", experiment, highest+1), nil
}

// RunInfo is what RunName looks at.
type RunInfo struct {
	ID     string
	Digest string // of the experiment
	Ended  bool
}

// CheckLoopback refuses an address that is none, or that others can reach.
func CheckLoopback(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%q is no address: use HOST:PORT such as 127.0.0.1:0", address)
	}
	if !auth.Loopback(address) {
		return fmt.Errorf("%s can be reached by others, and nothing authenticates them: use a loopback address such as 127.0.0.1:0", address)
	}
	return nil
}

// ListenLoopback opens an address of this machine only.
func ListenLoopback(address string) (net.Listener, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, listenError(address, err)
	}
	return l, nil
}
