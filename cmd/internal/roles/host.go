package roles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
	envremote "github.com/rlfleet/rlfleet/envpool/remote"
)

// CheckHost says what this machine lacks for sandboxes, before anything is made. guest is rlguest where it is named.
func CheckHost(guest string) error {
	if err := bubblewrap.Check(); err != nil {
		return err
	}
	b := bubblewrap.DefaultConfig("/")
	b.Guest = cmp.Or(guest, os.Getenv(guestVariable))
	return b.CheckPrograms()
}

// OpenHost makes the environment host that the experiment asks for. dir is its own data directory.
func OpenHost(ctx context.Context, cfg Config, dir string) (*envpool.Pool, error) {
	if err := bubblewrap.Check(); err != nil {
		return nil, err
	}
	c := envpool.DefaultConfig()
	c.Log = cfg.Log
	c.WarmLow, c.MaxAgents = 0, 0
	for i := range cfg.Plan.Envs {
		pool := cfg.Plan.Envs[i].Spec.Environment.Pool
		c.WarmLow, c.MaxAgents = max(c.WarmLow, pool.Warm), c.MaxAgents+pool.Max
	}
	c.MaxVerifiers = min(max(4, c.MaxAgents), maxVerifiers)
	c.WarmHigh = max(c.WarmHigh, c.MaxAgents+c.MaxVerifiers)
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("roles: host directory: %w", err)
	}
	b := bubblewrap.DefaultConfig(abs)
	b.Guest, b.Log = cmp.Or(cfg.Guest, os.Getenv(guestVariable)), cfg.Log
	rt, err := bubblewrap.New(b)
	if err != nil {
		return nil, err
	}
	h, err := envpool.NewHost(ctx, c, rt)
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	return h, nil
}

// guestVariable names rlguest where no flag does and it does not lie beside the program.
const guestVariable = "RLFLEET_GUEST"

// maxVerifiers bounds the verifiers of one machine: they do not wait for anything
// but its cores, and further claims stand in line.
const maxVerifiers = 16

// advisoryLabel is the label of a host's node that names the limits it cannot enforce, a line each.
const advisoryLabel = "advisory"

// Advisory returns what a registered host says it cannot enforce.
func Advisory(labels map[string]string) []string {
	if labels[advisoryLabel] == "" {
		return nil
	}
	return strings.Split(labels[advisoryLabel], "\n")
}

// RunHost registers an environment host and serves it until ctx ends.
func (p *Process) RunHost(ctx context.Context) error {
	h, err := OpenHost(ctx, p.Config, hostDir(p.Storage, p.Name))
	if err != nil {
		return err
	}
	name := p.Name + "-host"
	p.mu.Lock()
	p.hosts[name] = h
	p.mu.Unlock()
	address, stop, err := p.serve(name, func(s *grpc.Server) { envremote.Register(s, h) }, envremote.ServerOptions()...)
	if err != nil {
		return errors.Join(err, h.Close(context.WithoutCancel(ctx)))
	}
	defer stop()
	st, err := h.Stats(ctx)
	if err != nil {
		return errors.Join(err, h.Close(context.WithoutCancel(ctx)))
	}
	for _, a := range st.Advisory {
		p.Log.Warn("a limit is not enforced on this machine", "what", a)
	}
	var revokes sync.WaitGroup
	defer revokes.Wait()
	// A reservation lets an episode stand in the host's line; the host's own quota decides who runs.
	s, err := p.Client.NewSession(ctx, client.SessionConfig{
		Role: "host", Name: name, Address: address, Run: p.Run, Logger: p.Log,
		Agents: max(st.MaxAgents, p.Plan.Experiment.Spec.Rollout.Concurrency), Verifiers: 4 * st.MaxVerifiers,
		Serves: h.Held,
		// A sandbox that ends slowly must not hold up the heartbeat.
		Ended: func(resource string, fence lease.Fence) {
			revokes.Go(func() {
				rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				defer cancel()
				if err := h.Revoke(rctx, resource, fence); err != nil {
					p.Log.Warn("revoke sandbox", "sandbox", resource, "err", err)
				}
			})
		},
		Labels: map[string]string{advisoryLabel: strings.Join(st.Advisory, "\n")},
	})
	if err != nil {
		return errors.Join(err, h.Close(context.WithoutCancel(ctx)))
	}
	<-ctx.Done()
	stop()
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return errors.Join(s.Close(cctx), h.Close(cctx))
}

// serve opens a server for the run's other processes, as a socket below the
// storage that only this user reaches, or does nothing when everything is in this one.
func (p *Process) serve(node string, register func(*grpc.Server), options ...grpc.ServerOption) (address string, stop func(), err error) {
	if !p.Apart {
		return "", func() {}, nil
	}
	name := node + ".sock"
	l, err := listenSocket(p.Storage, name)
	if err != nil {
		return "", nil, err
	}
	s := grpc.NewServer(append([]grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage)}, options...)...)
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			p.Log.Error("serve", "address", name, "err", err)
		}
	}()
	return socketScheme + name, sync.OnceFunc(func() {
		s.Stop()
		<-done
		_ = os.Remove(filepath.Join(p.Storage, name)) // the next one replaces it anyway
	}), nil
}
