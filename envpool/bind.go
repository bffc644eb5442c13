package envpool

import (
	"context"

	"github.com/rlfleet/rlfleet/task"
)

// TaskTemplate is a task's template as the pool takes it.
func TaskTemplate(t task.Template) Template {
	out := Template{Digest: t.Digest, Image: "host", Workdir: t.Workdir, Env: t.Env}
	for _, l := range t.Layers {
		out.Layers = append(out.Layers, Layer(l))
	}
	return out
}

// Over puts a task's own limits over l.
func (l Limits) Over(own task.Limits) Limits {
	if own.CPU > 0 {
		l.CPU = own.CPU
	}
	if own.Memory > 0 {
		l.Memory = own.Memory
	}
	if own.Disk > 0 {
		l.Disk = own.Disk
	}
	return l
}

// Sandbox binds a handle to its host.
type Sandbox struct {
	Host   Host
	Handle Handle
}

// Exec runs a command in the sandbox.
func (s Sandbox) Exec(ctx context.Context, c Command) (Result, error) {
	return s.Host.Exec(ctx, s.Handle, c)
}

// Write creates or replaces a regular file that all users can read.
func (s Sandbox) Write(ctx context.Context, path string, data []byte) error {
	return s.Host.Write(ctx, s.Handle, path, 0o644, data)
}
