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
	if err != nil { // whatever it was: an engine that hangs must not stay chosen
		r.use(e, nil)
	}
	return resp, err
}

// use replaces the chosen engine, if it still is the old one, and returns the chosen one.
func (r *router) use(old, chosen engine.Generator) engine.Generator {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.engine == old {
		r.engine = chosen
	}
	return r.engine
}

func (r *router) pick(ctx context.Context) (engine.Generator, error) {
	if e := r.use(nil, nil); e != nil {
		return e, nil
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
		e, err := r.p.engine(n.Name, n.Address)
		if err != nil {
			continue
		}
		if chosen := r.use(nil, e); chosen != nil {
			return chosen, nil
		}
	}
	return nil, fmt.Errorf("roles: no engine is ready: %w", engine.ErrClosed)
}
