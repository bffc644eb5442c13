package roles

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	engineremote "github.com/rlfleet/rlfleet/policy/engine/remote"
	tinyengine "github.com/rlfleet/rlfleet/policy/engine/tiny"
)

// RunEngine registers an inference engine and serves it until ctx ends. An
// engine that joins a run whose policy is live loads that version first.
func (p *Process) RunEngine(ctx context.Context) error {
	e, err := tinyengine.New(tinyengine.DefaultConfig(), p.load, p.resolve)
	if err != nil {
		return err
	}
	name := p.Name + "-engine"
	p.mu.Lock()
	p.engines[name] = e
	p.mu.Unlock()
	address, stop, err := p.serve(name, func(s *grpc.Server) { engineremote.Register(s, e) })
	if err != nil {
		return errors.Join(err, e.Close())
	}
	defer stop()
	s, err := p.Client.NewSession(ctx, client.SessionConfig{Role: "engine", Name: name, Address: address, Run: p.Run, Logger: p.Log, Version: func() int64 {
		v, ok, err := e.Serving(ctx)
		if err != nil || !ok {
			return -1
		}
		return int64(v)
	}})
	if err != nil {
		return errors.Join(err, e.Close())
	}
	err = p.keepLive(ctx, s, e)
	stop()
	return errors.Join(err, closeSession(ctx, s), e.Close())
}

// keepLive brings an engine that missed a publication, or that registered again,
// up to the live version. Publications reach it by the publisher.
func (p *Process) keepLive(ctx context.Context, s *client.Session, e engine.Engine) error {
	for {
		behind, err := p.catchUp(ctx, e)
		if err != nil && ctx.Err() == nil {
			p.Log.Warn("engine is behind the live version", "err", err)
		}
		if behind {
			s.Renew() // tells the coordinator what is served now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.Fenced():
		case <-time.After(lookEvery):
		}
	}
}

// lookEvery is how often an engine compares what it serves with what is live.
const lookEvery = 2 * time.Second

// catchUp stages and flips to the live version; behind tells that it had to, or tried.
func (p *Process) catchUp(ctx context.Context, e engine.Engine) (behind bool, err error) {
	run, err := Run(ctx, p.Client, p.Run)
	if err != nil {
		return false, err
	}
	v, ok, err := e.Serving(ctx)
	if err != nil {
		return false, err
	}
	if run.Live < 0 || (ok && int64(v) >= run.Live) {
		return false, nil
	}
	rec, err := Version(ctx, p.Client, p.Run, run.Live)
	if err != nil {
		return false, err
	}
	if err := e.Stage(ctx, policy.Version(run.Live), policy.Digest(rec.Manifest)); err != nil {
		return true, fmt.Errorf("roles: stage version %d: %w", run.Live, err)
	}
	return true, e.Flip(ctx, policy.Version(run.Live))
}

// closeSession gives a registration back, also when ctx has ended.
func closeSession(ctx context.Context, s *client.Session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil && !errors.Is(err, client.ErrUnavailable) {
		return err
	}
	return nil // a coordinator that is gone too ends the leases when the node comes back
}
