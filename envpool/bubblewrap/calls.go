package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/guest"
)

// Mount implements envpool.Slot.
func (s *slot) Mount(ctx context.Context, u envpool.Use) error {
	name, err := s.r.state(u.Snapshot)
	if err != nil {
		return fmt.Errorf("bubblewrap: mount: %w", err)
	}
	if err := s.group.limit(u.Limits); err != nil {
		return s.died("mount", fmt.Errorf("set limits: %w", err))
	}
	s.use, s.lower = u, name
	m := guest.Mount{Lower: name, Host: u.HostName, Disk: u.Limits.Disk, Inodes: u.Limits.Inodes}
	_, err = s.ask(ctx, guest.OpMount, m.Encode(), 0, answerTime, nil)
	return err
}

// flood is how much of one stream a command may write before it is killed, at least.
const flood = 64 << 20

// Exec implements envpool.Slot.
func (s *slot) Exec(ctx context.Context, c envpool.Command) (envpool.Result, error) {
	l := s.use.Limits
	x := guest.Exec{
		Argv: c.Argv, Env: environment(c), Dir: c.Dir, Stdin: c.Stdin, Timeout: c.Timeout,
		Output: c.Output, Flood: max(flood, 16*c.Output), FileSize: l.Disk, OpenFiles: int64(l.OpenFiles),
	}
	if !s.r.cgroups.has("memory") {
		x.Memory, x.Watch = l.Memory, true
	}
	if !s.r.cgroups.has("pids") {
		x.Pids, x.Watch = int64(l.Pids), true
	}
	b, err := s.ask(ctx, guest.OpExec, x.Encode(), 2*c.Output, c.Timeout+killGrace, nil)
	if err != nil {
		return envpool.Result{}, err
	}
	var e guest.Exit
	if err := e.Decode(b); err != nil {
		return envpool.Result{}, s.died("exec", err)
	}
	hit := envpool.LimitHit(e.Hit)
	if h := s.group.hit(); h != "" {
		hit = h // the kernel's count comes before what followed from it
	}
	if err := ctx.Err(); err != nil {
		return envpool.Result{}, fmt.Errorf("bubblewrap: exec: %w", err)
	}
	return envpool.Result{
		ExitCode: e.Code, Signal: e.Signal, Stdout: e.Stdout, Stderr: e.Stderr, StdoutTotal: e.StdoutTotal, StderrTotal: e.StderrTotal,
		Hit: hit, Duration: e.Duration, CPU: e.CPU,
	}, nil
}

// Write implements envpool.Slot.
func (s *slot) Write(ctx context.Context, path string, mode fs.FileMode, data []byte) error {
	const most = 128 << 20
	if len(data) > most {
		return fmt.Errorf("bubblewrap: write %s: %d bytes where at most %d are allowed: %w", path, len(data), most, envpool.ErrTooLarge)
	}
	_, err := s.ask(ctx, guest.OpWrite, guest.Write{Path: path, Mode: uint32(mode.Perm()), Data: data}.Encode(), 0, answerTime, nil)
	return err
}

// Read implements envpool.Slot.
func (s *slot) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	const most = 512 << 20
	if limit < 0 || limit > most {
		return nil, fmt.Errorf("bubblewrap: read %s: limit %d is not between 0 and %d: %w", path, limit, most, envpool.ErrInvalid)
	}
	return s.ask(ctx, guest.OpRead, guest.Read{Path: path, Limit: limit}.Encode(), limit, answerTime, nil)
}

// Collect implements envpool.Slot.
func (s *slot) Collect(ctx context.Context, paths []string, limit int64) ([]envpool.File, error) {
	if limit < 0 {
		return nil, fmt.Errorf("bubblewrap: collect: limit %d is negative: %w", limit, envpool.ErrInvalid)
	}
	var files []envpool.File
	var left int64
	total := int64(0)
	each := func(op guest.Op, b []byte) error {
		if op == guest.OpChunk {
			f := &files[len(files)-1]
			if left -= int64(len(b)); left < 0 {
				return fmt.Errorf("bubblewrap: collect %s: it is longer than the guest said: %w", f.Path, envpool.ErrEnvironment)
			}
			f.Data = append(f.Data, b...)
			return nil
		}
		var e guest.Entry
		if err := e.Decode(b); err != nil {
			return err
		}
		if total += e.Size; e.Kind != guest.EntryFile || e.Size < 0 || total > limit {
			return fmt.Errorf("bubblewrap: collect %s: %w", e.Path, envpool.ErrTooLarge)
		}
		left = e.Size
		files = append(files, envpool.File{Path: e.Path, Mode: fs.FileMode(e.Mode).Perm(), Data: make([]byte, 0, e.Size)})
		return nil
	}
	if _, err := s.ask(ctx, guest.OpCollect, guest.Collect{Paths: paths, Limit: limit}.Encode(), 0, answerTime, each); err != nil {
		return nil, err
	}
	return files, nil
}

// Scrub implements envpool.Slot.
func (s *slot) Scrub(ctx context.Context) error {
	wait := answerTime
	if d, ok := ctx.Deadline(); ok {
		wait = time.Until(d)
	}
	b, err := s.ask(ctx, guest.OpScrub, nil, 1<<10, wait, nil)
	if err != nil {
		return err
	}
	var p guest.Proof
	if err := p.Decode(b); err != nil {
		return s.died("scrub", err)
	}
	if p != s.hello.Proof {
		return s.died("scrub", fmt.Errorf("the sandbox is not as it was: found %+v, expected %+v", p, s.hello.Proof))
	}
	if n := s.group.processes(); n > 0 {
		return s.died("scrub", fmt.Errorf("the cgroup still holds %d processes", n))
	}
	_ = s.group.hit() // what the end brought about is nobody's
	return nil
}

// Seal implements envpool.Slot.
func (s *slot) Seal(ctx context.Context, id envpool.SnapshotID) (int64, error) {
	parent := filepath.Join(s.r.dir, "templates", s.lower)
	return s.r.make(id, func(b *builder) error {
		if err := b.clone(parent); err != nil {
			return err
		}
		a := applier{b: b}
		_, err := s.ask(ctx, guest.OpExport, nil, 0, answerTime, a.frame)
		return errors.Join(err, a.finish())
	})
}

// applier changes a clone of the template as the guest's upper layer says.
type applier struct {
	b    *builder
	file *os.File // receives chunks
	last guest.Entry
}

func (a *applier) frame(op guest.Op, b []byte) error {
	if op == guest.OpChunk {
		if a.file == nil {
			return errors.New("content without a file")
		}
		n, err := a.file.Write(b)
		a.b.size += int64(n)
		return err
	}
	if err := a.finish(); err != nil {
		return err
	}
	var e guest.Entry
	if err := e.Decode(b); err != nil {
		return err
	}
	if !filepath.IsLocal(e.Path) || path.Clean(e.Path) != e.Path {
		return fmt.Errorf("entry %q: %w", e.Path, envpool.ErrUnsafe)
	}
	a.last = e
	switch e.Kind {
	case guest.EntryGone:
		return a.b.root.RemoveAll(e.Path)
	case guest.EntryLink:
		return a.b.link(e.Path, e.Target)
	case guest.EntryDir, guest.EntryOpaque:
		st, err := a.b.root.Lstat(e.Path)
		if e.Kind == guest.EntryOpaque || (err == nil && !st.IsDir()) {
			if err := a.b.root.RemoveAll(e.Path); err != nil {
				return err
			}
		}
		return a.b.dir(e.Path, fs.FileMode(e.Mode))
	case guest.EntryFile:
		if err := a.b.root.RemoveAll(e.Path); err != nil {
			return err
		}
		f, err := a.b.root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		a.file = f
		return err
	}
	return fmt.Errorf("entry %q of kind %d", e.Path, e.Kind)
}

// finish closes the file that chunks went to.
func (a *applier) finish() error {
	if a.file == nil {
		return nil
	}
	f := a.file
	a.file = nil
	err := f.Chmod(fs.FileMode(a.last.Mode).Perm() | 0o400)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return a.b.own(a.last.Path)
}
