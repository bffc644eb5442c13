package bubblewrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// controllers are what a sandbox's commands are limited by where the host may
// make cgroups. The guest stays outside of its commands' limits: in version 1
// its working thread joins, but not its first thread, which owns its memory;
// in version 2 commands are cloned right into a group beside the guest's.
var controllers = []string{"memory", "pids", "cpu"}

// cgroups are the host's directories.
type cgroups struct {
	dirs    map[string]string // by controller; in version 2 all are one
	unified string            // that one; empty in version 1
}

// newCgroups makes the directories for a data directory, and ends and removes
// what an earlier host of the same data directory left in them.
func newCgroups(dataDir string) (*cgroups, error) {
	own, err := ownCgroups()
	if err != nil {
		return nil, err
	}
	if len(own) == 0 {
		return newUnified(dataDir)
	}
	c := &cgroups{dirs: map[string]string{}}
	var errs []error
	for _, name := range controllers {
		if own[name] == "" {
			continue
		}
		dir := filepath.Join(own[name], CgroupName(dataDir))
		if err := removeCgroup(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		c.dirs[name] = dir
	}
	return c, errors.Join(errs...)
}

// CgroupName is what the cgroups of a data directory's host are called.
func CgroupName(dataDir string) string {
	key := sha256.Sum256([]byte(dataDir))
	return "rlfleet-" + hex.EncodeToString(key[:6])
}

// ownCgroups finds this process's directory in each version 1 hierarchy.
func ownCgroups() (map[string]string, error) {
	paths, err := os.ReadFile("/proc/self/cgroup") // 4:memory:/path
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo") // … root mountpoint … - cgroup source options
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(paths)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if !slices.Contains(controllers, name) {
				continue
			}
			root, at := cgroupMount(string(mounts), name)
			if at == "" {
				continue
			}
			rel, err := filepath.Rel(root, f[2])
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = "" // in a container that shows only its own part
			}
			out[name] = filepath.Join(at, rel)
		}
	}
	return out, nil
}

// cgroupMount finds where a controller's version 1 hierarchy is mounted.
func cgroupMount(mountinfo, controller string) (root, at string) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if ok && len(f) > 4 && len(g) > 2 && g[0] == "cgroup" && slices.Contains(strings.Split(g[2], ","), controller) {
			return f[3], f[4]
		}
	}
	return "", ""
}

// removeCgroup removes a directory and those below it, ending the processes in them.
func removeCgroup(dir string) error {
	children, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, procs := range children {
		if err := removeCgroup(filepath.Dir(procs)); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err == nil {
		for p := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(p); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	return rmdirSoon(dir)
}

// rmdirSoon removes a cgroup; a process that was killed stays in its until the kernel is done with it.
func rmdirSoon(dir string) error {
	var err error
	for range 200 {
		if err = unix.Rmdir(dir); err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			break
		}
		_, _ = unix.Poll(nil, 5)
	}
	return fmt.Errorf("remove cgroup %s: %w", dir, err)
}

func (c *cgroups) has(controller string) bool { return c != nil && c.dirs[controller] != "" }

func (c *cgroups) close() error {
	var errs []error
	for _, d := range c.dirs {
		errs = append(errs, removeCgroup(d))
	}
	if c.unified != "" {
		errs = append(errs, removeCgroup(c.unified))
	}
	return errors.Join(errs...)
}
