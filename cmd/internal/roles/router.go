package roles

import (
	"context"
	"fmt"
	"sync"

	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// router sends each call to a ready engine of the run. It asks the coordinator
// which engines there are when it has none, and again after one failed.
type router struct {
	p *Process

	mu     sync.Mutex // guards engine
	engine engine.Generator
}

func (p *Process) router() engine.Generator { return &router{p: p} }

// Generate implements engine.Generator. A call that fails is not repeated: its
// random stream may have been read.
func (r *router) Generate(ctx context.Context, req engine.Request) (engine.Response, error) {
	e, err := r.pick(ctx)
	if err != nil {
		return engine.Response{}, err
	}
	resp, err := e.Generate(ctx, req)
	if err != nil && ctx.Err() == nil {
		r.mu.Lock()
		if r.engine == e {
			r.engine = nil
		}
		r.mu.Unlock()
	}
	return resp, err
}

func (r *router) pick(ctx context.Context) (engine.Generator, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.engine != nil {
		return r.engine, nil
	}
	v, err := r.p.Client.View(ctx, "", pb.Kind_KIND_NODE)
	if err != nil {
		return nil, err
	}
	for _, x := range v.Records {
		n := x.GetNode()
		if n == nil || n.Role != "engine" || n.State != raftlog.NodeState_NODE_STATE_READY || n.Version < 0 {
			continue
		}
		if r.engine, err = r.p.engine(n.Name, n.Address); err == nil {
			return r.engine, nil
		}
	}
	return nil, fmt.Errorf("roles: no engine is ready: %w", engine.ErrClosed)
}
