package envpool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/rlfleet/rlfleet/coordinator/lease"
)

// call runs f with the sandbox's slot, one call at a time.
func (p *Pool) call(ctx context.Context, h Handle, op string, f func(context.Context, *sandbox) error) error {
	if err := p.guard.Check(h.Sandbox, h.Fence); err != nil {
		return fmt.Errorf("envpool: %s: %w", op, err)
	}
	p.mu.Lock()
	s := p.sandboxes[h.Sandbox]
	p.mu.Unlock()
	if s == nil || s.fence != h.Fence {
		return fmt.Errorf("envpool: %s %s: %w", op, h.Sandbox, ErrUnknown)
	}
	ctx, stop := s.bind(ctx)
	defer stop()
	select {
	case <-s.ready:
	case <-ctx.Done():
		return failed(s, op, context.Cause(ctx))
	}
	if s.err != nil {
		return fmt.Errorf("envpool: %s %s: %w", op, h.Sandbox, ErrUnknown)
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return failed(s, op, context.Cause(ctx))
	}
	defer func() { s.turn <- struct{}{} }()
	if ctx.Err() != nil {
		return failed(s, op, context.Cause(ctx))
	}
	if err := f(ctx, s); err != nil {
		return failed(s, op, err)
	}
	return nil
}

// failed says why a call failed; the sandbox's own end comes before what it caused.
func failed(s *sandbox, op string, err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("envpool: %s %s: %w", op, s.name, err)
}

// Exec implements Host.
func (p *Pool) Exec(ctx context.Context, h Handle, c Command) (Result, error) {
	var r Result
	err := p.call(ctx, h, "exec", func(ctx context.Context, s *sandbox) (err error) {
		if c, err = s.complete(c); err == nil {
			r, err = s.slot.Exec(ctx, c)
		}
		return err
	})
	return r, err
}

// complete fills a command's defaults from the sandbox's limits and template.
func (s *sandbox) complete(c Command) (Command, error) {
	if len(c.Argv) == 0 {
		return c, fmt.Errorf("empty command: %w", ErrInvalid)
	}
	if c.Timeout < 0 || c.Output < 0 || c.Output > maxOutput {
		return c, fmt.Errorf("timeout %s or output %d out of range: %w", c.Timeout, c.Output, ErrInvalid)
	}
	if c.Timeout == 0 {
		c.Timeout = s.limits.Wall
	}
	if c.Output == 0 {
		c.Output = s.limits.Output
	}
	switch {
	case c.Dir == "":
		c.Dir = s.state.workdir
	case !path.IsAbs(c.Dir):
		c.Dir = path.Join(s.state.workdir, c.Dir)
	}
	env := make(map[string]string, len(s.state.env)+len(c.Env))
	for _, m := range []map[string]string{s.state.env, c.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	c.Env = env
	return c, nil
}

// Write implements Host.
func (p *Pool) Write(ctx context.Context, h Handle, path string, mode fs.FileMode, data []byte) error {
	return p.call(ctx, h, "write", func(ctx context.Context, s *sandbox) error {
		return s.slot.Write(ctx, path, mode, data)
	})
}

// Read implements Host.
func (p *Pool) Read(ctx context.Context, h Handle, path string, limit int64) ([]byte, error) {
	var b []byte
	err := p.call(ctx, h, "read", func(ctx context.Context, s *sandbox) (err error) {
		b, err = s.slot.Read(ctx, path, limit)
		return err
	})
	return b, err
}

// Collect implements Host.
func (p *Pool) Collect(ctx context.Context, h Handle, paths []string, limit int64) ([]File, error) {
	var files []File
	err := p.call(ctx, h, "collect", func(ctx context.Context, s *sandbox) (err error) {
		files, err = s.slot.Collect(ctx, paths, limit)
		return err
	})
	return files, err
}

// Release implements Host.
func (p *Pool) Release(ctx context.Context, h Handle) error {
	if err := p.guard.Check(h.Sandbox, h.Fence); err != nil {
		return fmt.Errorf("envpool: release: %w", err)
	}
	return p.endUpTo(ctx, h.Sandbox, h.Fence, ErrUnknown)
}

// Revoke implements Host.
func (p *Pool) Revoke(ctx context.Context, resource string, f lease.Fence) error {
	// A newer holder may be at work already; then there is nothing to refuse.
	if err := p.guard.Check(resource, f+1); err != nil && !errors.Is(err, lease.ErrFenced) {
		return fmt.Errorf("envpool: revoke: %w", err)
	}
	return p.endUpTo(ctx, resource, f, lease.ErrFenced)
}

// endUpTo ends the resource's sandbox unless its fence is above f, and remembers f.
func (p *Pool) endUpTo(ctx context.Context, resource string, f lease.Fence, cause error) error {
	p.mu.Lock()
	s := p.sandboxes[resource]
	if s == nil {
		for _, r := range p.ended.add(resource, f) {
			if p.sandboxes[r] == nil {
				p.guard.Forget(r)
			}
		}
	}
	p.mu.Unlock()
	if s == nil || s.fence > f {
		return nil
	}
	p.end(ctx, s, cause)
	return s.wait(ctx)
}
