package bubblewrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Advisory says what a host with this configuration could not enforce on this
// machine, one sentence each, in the words of envpool.Stats. It starts no
// sandbox, and a host may be running on DataDir: the runtime that it asks is
// opened in a directory of its own and closed. As the answer depends on the file
// system, that directory lies in DataDir or, until there is one, in the nearest
// directory above. The error is that of New.
func Advisory(cfg Config) (_ []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dataDir := cfg.DataDir
	if cfg.DataDir, err = os.MkdirTemp(existing(dataDir), ".advisory-"); err != nil {
		return nil, fmt.Errorf("bubblewrap: advisory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cfg.DataDir)) }()
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return r.advisory(dataDir), r.Close()
}

// existing is the nearest directory at or above a path.
func existing(path string) string {
	for {
		if st, err := os.Stat(path); err == nil && st.IsDir() || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// Advisory implements envpool.Runtime.
func (r *Runtime) Advisory() []string { return r.advisory(r.cfg.DataDir) }

func (r *Runtime) advisory(dataDir string) []string {
	out := []string{
		"open files: enforced for each process, which sees the refusal; results do not name this limit",
		"pseudo-terminals: there are none in a sandbox of this tier",
	}
	if r.root && !r.spawn.idmap {
		out = append(out, fmt.Sprintf("user ids: all sandboxes share user id %d, because the file system of %s has no id-mapped mounts", r.cfg.UIDBase, dataDir))
	}
	if old := kernelBefore(6, 6); old != "" {
		out = append(out, "directories: kernel "+old+" keeps no marks on files in memory, so a template's directory that was removed cannot be made again under its name (from 6.6 on it can)")
	}
	var missing []string
	for _, c := range controllers {
		if !r.cgroups.has(c) {
			missing = append(missing, c)
		}
	}
	for _, c := range missing {
		switch c {
		case "memory":
			out = append(out, "memory: private memory is bounded for each process; the sum of a sandbox, shared memory included, is looked at every 100 ms while a command runs: what is taken between two looks, what runs on between commands and memory files that no process maps are not bounded, and a process that is refused memory sees the refusal, where the result may not name the limit")
		case "pids":
			out = append(out, "pids: enforced; the result names the limit only where a look at the processes saw them at it")
		case "cpu":
			out = append(out, "cpu: not enforced")
		}
	}
	if r.cgroups.has("memory") {
		out = append(out, "memory: files lie in memory, so one bound of memory + disk holds for processes and files together; disk alone is exact")
	}
	return out
}

// kernelBefore returns the kernel's release if it is older than a version.
func kernelBefore(major, minor int) string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	release := unix.ByteSliceToString(u.Release[:])
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n == 2 && (a < major || a == major && b < minor) {
		return release
	}
	return ""
}
