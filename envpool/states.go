package envpool

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// state is a file-system state: a template or a snapshot.
type state struct {
	id      SnapshotID
	workdir string
	env     map[string]string

	ready chan struct{} // closed when built or failed
	err   error         // read after ready
	// Guarded by Pool.mu:
	size    int64
	refs    int // sandboxes on it, and builders
	used    int64
	leaving chan struct{} // not nil while the files are being dropped; closed afterwards
}

// Prepare implements Host.
func (p *Pool) Prepare(ctx context.Context, t Template) (SnapshotID, error) {
	id := SnapshotID(t.Digest)
	if err := checkTemplate(t); err != nil {
		return "", fmt.Errorf("envpool: prepare %s: %w", id, err)
	}
	for {
		st, leaving, err := p.building(ctx, id, t)
		if err != nil {
			return "", err
		}
		done := st.ready
		if leaving != nil {
			done = leaving
		}
		select {
		case <-done:
		case <-ctx.Done():
			return "", fmt.Errorf("envpool: prepare %s: %w", id, ctx.Err())
		}
		if leaving != nil {
			continue
		}
		if st.err != nil {
			return "", fmt.Errorf("envpool: prepare %s: %w", id, st.err)
		}
		return id, nil
	}
}

// building returns the template's state, which it begins to build where there
// is none, or, for one that is being dropped, the channel that says when it is.
func (p *Pool) building(ctx context.Context, id SnapshotID, t Template) (st *state, leaving chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, fmt.Errorf("envpool: prepare %s: host is closed: %w", id, ErrNoSlot)
	}
	if st = p.states[id]; st == nil {
		st = &state{id: id, workdir: t.Workdir, env: t.Env, ready: make(chan struct{}), refs: 1}
		if st.workdir == "" {
			st.workdir = "/app"
		}
		p.states[id] = st
		p.kept++
		// One caller's patience must not decide for those who share the work.
		p.wg.Go(func() { p.build(context.WithoutCancel(ctx), st, t) })
	}
	p.touchLocked(st)
	return st, st.leaving, nil
}

func checkTemplate(t Template) error {
	if t.Digest == "" {
		return fmt.Errorf("template has no digest: %w", ErrInvalid)
	}
	if t.Workdir != "" && !path.IsAbs(t.Workdir) {
		return fmt.Errorf("workdir %q is not absolute: %w", t.Workdir, ErrInvalid)
	}
	for k := range t.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fmt.Errorf("variable name %q: %w", k, ErrInvalid)
		}
	}
	return nil
}

func (p *Pool) build(ctx context.Context, st *state, t Template) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.BuildTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	size, err := p.rt.Build(ctx, st.id, t)
	p.settle(st, size, err)
}

// settle records how the making of a state went and makes room.
func (p *Pool) settle(st *state, size int64, err error) {
	p.mu.Lock()
	st.refs--
	st.err = err
	if err != nil {
		delete(p.states, st.id)
		p.kept--
	} else {
		st.size = size
		p.stateBytes += size
	}
	out := p.evictLocked(st)
	p.mu.Unlock()
	defer close(st.ready) // room is made first, so that the bound holds for whoever sees the state
	for _, o := range out {
		if err := p.rt.Drop(o.id); err != nil {
			p.log.Warn("state could not be dropped", "snapshot", o.id, "err", err)
		}
		p.mu.Lock()
		delete(p.states, o.id)
		p.mu.Unlock()
		close(o.leaving)
	}
}

// evictLocked chooses the states that went unused for longest until the rest
// fits. They keep their place until their files are dropped, so that nobody
// builds under the same id meanwhile.
func (p *Pool) evictLocked(keep *state) []*state {
	var out []*state
	for p.kept > p.cfg.MaxTemplates || p.stateBytes > p.cfg.MaxTemplateBytes {
		var oldest *state
		for _, s := range p.states {
			if s != keep && s.refs == 0 && s.leaving == nil && (oldest == nil || s.used < oldest.used) {
				oldest = s
			}
		}
		if oldest == nil {
			break
		}
		oldest.leaving = make(chan struct{})
		p.kept--
		p.stateBytes -= oldest.size
		out = append(out, oldest)
	}
	return out
}

func (p *Pool) touchLocked(s *state) {
	p.uses++
	s.used = p.uses
}

// Snapshot implements Host.
func (p *Pool) Snapshot(ctx context.Context, h Handle) (SnapshotID, error) {
	var id SnapshotID
	err := p.call(ctx, h, "snapshot", func(ctx context.Context, s *sandbox) error {
		p.mu.Lock()
		p.count.sealed++
		id = SnapshotID(fmt.Sprintf("snapshot/%s/%d/%d", s.name, s.fence, p.count.sealed))
		p.mu.Unlock()
		size, err := s.slot.Seal(ctx, id)
		if err != nil {
			return err
		}
		st := &state{id: id, workdir: s.state.workdir, env: s.state.env, ready: make(chan struct{}), refs: 1}
		p.mu.Lock()
		p.states[id] = st
		p.kept++
		p.touchLocked(st)
		p.mu.Unlock()
		p.settle(st, size, nil)
		return nil
	})
	if err != nil {
		return "", err
	}
	return id, nil
}
