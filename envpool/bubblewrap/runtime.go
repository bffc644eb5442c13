// Package bubblewrap is the sandbox tier of unprivileged Linux namespaces.
//
// A slot is one bwrap with all namespaces unshared and rlguest as their process
// 1. It stays up; each use gets, from rlguest, a mount namespace with a fresh
// overlay over its template, its upper layer in memory, and ends by killing
// every process and dropping that namespace. So nothing of a sandbox is ever on
// the host's disk or in its mount table, and nothing outlives the host.
package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/envpool"
)

// Runtime implements envpool.Runtime.
type Runtime struct {
	cfg     Config
	log     *slog.Logger
	lock    *os.File // held for the runtime's life
	dir     string   // this incarnation's files: templates, etc, rlguest
	spawn   *spawner
	cgroups *cgroups // nil: none
	root    bool

	mu      sync.Mutex // guards all below
	indexes map[int]bool
	states  map[envpool.SnapshotID]string // names of directories under templates
	made    int                           // counts them, so that no name comes twice
	closed  bool
}

var _ envpool.Runtime = (*Runtime)(nil)

// New takes the data directory over and prepares to start slots.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.find()
	if err != nil {
		return nil, err
	}
	r := &Runtime{cfg: cfg, log: cfg.Log, root: os.Geteuid() == 0, indexes: map[int]bool{}, states: map[envpool.SnapshotID]string{}}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("bubblewrap: open %s: %w", cfg.DataDir, err), r.Close())
	}
	return r, nil
}

// open locks the data directory, sweeps it, and makes this incarnation's files.
func (r *Runtime) open() error {
	if err := os.MkdirAll(r.cfg.DataDir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(r.cfg.DataDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	r.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another host has it: %w: %w", envpool.ErrEnvironment, err)
	}
	if err := sweep(r.cfg.DataDir); err != nil {
		return err
	}
	if r.root && !r.cfg.NoCgroups {
		if r.cgroups, err = newCgroups(r.cfg.DataDir); err != nil {
			r.log.Warn("no cgroups", "err", err)
		}
	}
	if r.dir, err = os.MkdirTemp(r.cfg.DataDir, "host-"); err != nil {
		return err
	}
	if err := r.furnish(); err != nil {
		return err
	}
	r.spawn, err = startSpawner(r.root, r.dir, r.cfg.UIDBase)
	return err
}

// sweep removes what earlier incarnations left. Their processes have ended
// with them, and their mounts with the processes.
func sweep(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, "host-*"))
	if err != nil {
		return err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return fmt.Errorf("remove an earlier host's files: %w", err)
		}
	}
	return nil
}

// furnish writes the files that all slots share, read-only.
func (r *Runtime) furnish() error {
	for _, d := range []string{"", "templates", "etc", "etc/alternatives", "etc/ssl", "etc/ssl/certs"} {
		p := filepath.Join(r.dir, d)
		if err := os.MkdirAll(p, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(p, 0o755); err != nil { // whatever the umask
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd":        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"resolv.conf":   "",
		"ld.so.cache":   "",
	} {
		if err := writeFile(filepath.Join(r.dir, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(r.cfg.Guest)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(r.dir, "rlguest"), b, 0o755)
}

// writeFile writes a file with exactly this mode.
func writeFile(path string, b []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, b, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// Tier implements envpool.Runtime.
func (r *Runtime) Tier() string { return "bubblewrap" }

// Start implements envpool.Runtime.
func (r *Runtime) Start(ctx context.Context) (envpool.Slot, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, fmt.Errorf("bubblewrap: start: runtime is closed: %w", envpool.ErrEnvironment)
	}
	i := 0
	for r.indexes[i] {
		i++
	}
	r.indexes[i] = true
	r.mu.Unlock()
	s, err := startSlot(ctx, r, i)
	if err != nil {
		r.free(i)
		return nil, fmt.Errorf("bubblewrap: start: %w", err)
	}
	return s, nil
}

// free gives an index, and with it a user id and cgroups, to the next slot.
func (r *Runtime) free(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.indexes, i)
}

// Close implements envpool.Runtime.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	var errs []error
	if r.spawn != nil {
		r.spawn.close()
	}
	if r.cgroups != nil {
		errs = append(errs, r.cgroups.close())
	}
	if r.dir != "" && strings.HasPrefix(r.dir, r.cfg.DataDir) {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	if r.lock != nil {
		errs = append(errs, r.lock.Close())
	}
	return errors.Join(errs...)
}
