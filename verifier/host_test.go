package verifier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
)

// dirHost is a host whose sandboxes are directories: no isolation, but real
// commands, process groups and files. Absolute paths of the layout inside
// scripts are moved below the sandbox's directory.
type dirHost struct {
	base string

	mu        sync.Mutex // guards all below
	templates map[envpool.SnapshotID]envpool.Template
	open      map[string]*dirSandbox
	ended     map[string]lease.Fence
	claims    []envpool.Claim
	released  int

	// Faults, by the number of the claim (1-based), and hooks.
	onExec    func(claim int) error
	onClaim   func(claim int) error
	onRelease func(claim int) error
	plant     string // file that every verifier sandbox has from the start
}

type dirSandbox struct {
	root   string
	number int
	t      envpool.Template
	groups []int // process groups to end
}

func newDirHost(t *testing.T) *dirHost {
	h := &dirHost{base: t.TempDir(), templates: map[envpool.SnapshotID]envpool.Template{}, open: map[string]*dirSandbox{}, ended: map[string]lease.Fence{}}
	t.Cleanup(func() { require.Empty(t, h.open, "every sandbox was released") })
	return h
}

func (h *dirHost) Prepare(_ context.Context, t envpool.Template) (envpool.SnapshotID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := envpool.SnapshotID(t.Digest)
	h.templates[id] = t
	return id, nil
}

func (h *dirHost) Claim(_ context.Context, c envpool.Claim) (envpool.Handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims = append(h.claims, c)
	n := len(h.claims)
	if h.onClaim != nil {
		if err := h.onClaim(n); err != nil {
			return envpool.Handle{}, err
		}
	}
	handle := envpool.Handle{Sandbox: c.Lease.Resource, Fence: c.Lease.Fence}
	if f, was := h.ended[handle.Sandbox]; was && handle.Fence <= f {
		return handle, envpool.ErrUnknown
	}
	if h.open[handle.Sandbox] != nil {
		return handle, nil // the same sandbox, as the contract says
	}
	s := &dirSandbox{root: filepath.Join(h.base, fmt.Sprint(n)), number: n, t: h.templates[c.Snapshot]}
	if err := os.MkdirAll(filepath.Join(s.root, s.t.Workdir), 0o755); err != nil {
		return handle, err
	}
	for _, l := range s.t.Layers {
		if err := s.copy(l); err != nil {
			return handle, err
		}
	}
	if h.plant != "" && c.Quota == envpool.QuotaVerifier {
		if err := s.write(h.plant, 0o644, []byte("1")); err != nil {
			return handle, err
		}
	}
	h.open[handle.Sandbox] = s
	return handle, nil
}

func (s *dirSandbox) copy(l envpool.Layer) error {
	return filepath.WalkDir(l.Source, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(l.Source, p)
		if err != nil {
			return err
		}
		return s.write(filepath.Join(l.Dest, rel), 0o755, data)
	})
}

func (s *dirSandbox) write(path string, mode fs.FileMode, data []byte) error {
	if strings.HasSuffix(path, ".sh") {
		for _, dir := range []string{"/tests/", "/app/", "/logs/"} {
			data = bytes.ReplaceAll(data, []byte(dir), []byte(s.root+dir))
		}
	}
	p := filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, data, mode)
}

func (h *dirHost) get(hd envpool.Handle) (*dirSandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.open[hd.Sandbox]; s != nil {
		return s, nil
	}
	return nil, envpool.ErrUnknown
}

func (h *dirHost) Exec(ctx context.Context, hd envpool.Handle, c envpool.Command) (envpool.Result, error) {
	s, err := h.get(hd)
	if err != nil {
		return envpool.Result{}, err
	}
	if h.onExec != nil {
		if err := h.onExec(s.number); err != nil {
			return envpool.Result{}, err
		}
	}
	argv := append([]string(nil), c.Argv...)
	for i := range argv {
		if filepath.IsAbs(argv[i]) {
			argv[i] = filepath.Join(s.root, argv[i])
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(s.root, s.t.Workdir), []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range c.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 100 * time.Millisecond
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		return envpool.Result{}, fmt.Errorf("%w: %w", envpool.ErrInvalid, err)
	}
	h.mu.Lock()
	s.groups = append(s.groups, cmd.Process.Pid)
	h.mu.Unlock()
	_ = cmd.Wait() // the state says how it ended
	res := envpool.Result{ExitCode: cmd.ProcessState.ExitCode(), StdoutTotal: int64(out.Len()), StderrTotal: int64(errOut.Len())}
	res.Stdout, res.Stderr = head(out.Bytes(), c.Output), head(errOut.Bytes(), c.Output)
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		res.Signal = int(w.Signal())
	}
	if ctx.Err() != nil {
		res.Hit = envpool.HitTime
	}
	return res, nil
}

func head(b []byte, n int64) []byte {
	if int64(len(b)) > n {
		return b[:n]
	}
	return b
}

func (h *dirHost) Write(_ context.Context, hd envpool.Handle, path string, mode fs.FileMode, data []byte) error {
	s, err := h.get(hd)
	if err != nil {
		return err
	}
	return s.write(path, mode, data)
}

func (h *dirHost) Read(_ context.Context, hd envpool.Handle, path string, limit int64) ([]byte, error) {
	s, err := h.get(hd)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(s.root, path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, envpool.ErrNotFound
	case err == nil && int64(len(data)) > limit:
		return nil, envpool.ErrTooLarge
	}
	return data, err
}

func (h *dirHost) Collect(_ context.Context, hd envpool.Handle, paths []string, limit int64) ([]envpool.File, error) {
	s, err := h.get(hd)
	if err != nil {
		return nil, err
	}
	h.end(s)
	var out []envpool.File
	for _, p := range paths {
		info, err := os.Lstat(filepath.Join(s.root, p))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular(): // links are not followed
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.root, p))
		if err != nil {
			return nil, err
		}
		if limit -= int64(len(data)); limit < 0 {
			return nil, envpool.ErrTooLarge
		}
		out = append(out, envpool.File{Path: p, Mode: info.Mode(), Data: data})
	}
	return out, nil
}

// end kills what the sandbox's commands left running.
func (h *dirHost) end(s *dirSandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range s.groups {
		_ = syscall.Kill(-g, syscall.SIGKILL) // gone already is fine
	}
	s.groups = nil
}

func (h *dirHost) Snapshot(context.Context, envpool.Handle) (envpool.SnapshotID, error) {
	return "", envpool.ErrUnsupported
}

func (h *dirHost) Release(_ context.Context, hd envpool.Handle) error {
	s, err := h.get(hd)
	if err != nil {
		return nil
	}
	h.end(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, hd.Sandbox)
	h.ended[hd.Sandbox] = hd.Fence
	h.released++
	if h.onRelease != nil {
		return h.onRelease(s.number)
	}
	return nil
}

func (h *dirHost) Revoke(context.Context, string, lease.Fence) error { return envpool.ErrUnsupported }

func (h *dirHost) Stats(context.Context) (envpool.Stats, error) { return envpool.Stats{}, nil }
