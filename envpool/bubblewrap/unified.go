package bubblewrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unifiedNames gives version 1 names of limits their version 2 names.
var unifiedNames = map[string]string{"memory.limit_in_bytes": "memory.max", "cpu.cfs_quota_us": "cpu.max"}

// newUnified makes the host's directory where only version 2 is mounted. It
// lies at the top, because a group with processes in it, such as the host's
// own, can have no limited children.
func newUnified(dataDir string) (*cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	top := ""
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		if f := strings.Fields(before); ok && len(f) > 4 && strings.HasPrefix(after, "cgroup2 ") {
			top = f[4]
		}
	}
	if top == "" {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	c := &cgroups{dirs: map[string]string{}, unified: filepath.Join(top, CgroupName(dataDir))}
	if err := removeCgroup(c.unified); err != nil {
		return nil, err
	}
	if err := os.Mkdir(c.unified, 0o755); err != nil {
		return nil, err
	}
	enable(top)
	enable(c.unified)
	b, err := os.ReadFile(filepath.Join(c.unified, "cgroup.subtree_control"))
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	for _, name := range strings.Fields(string(b)) {
		if slices.Contains(controllers, name) {
			c.dirs[name] = c.unified
		}
	}
	return c, nil
}

// enable gives a group's children the controllers that it has; which ones it had, its file says afterwards.
func enable(dir string) {
	for _, name := range controllers {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
	}
}

// enterUnified makes a slot's directory with one child for the guest and one,
// limited, for its commands. To clone into the latter the slot's user needs to
// write to it and to their common parent.
func (g *group) enterUnified(c *cgroups, name string, uid int) error {
	top := filepath.Join(c.unified, name)
	commands, guest := filepath.Join(top, "commands"), filepath.Join(top, "guest")
	for _, dir := range []string{top, commands, guest} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		g.remove = append([]string{dir}, g.remove...)
		if dir == top {
			enable(top)
		}
		if dir != guest {
			if err := os.Chown(filepath.Join(dir, "cgroup.procs"), uid, uid); err != nil {
				return err
			}
		}
	}
	for controller := range c.dirs {
		g.dirs[controller] = commands
	}
	if c.has("memory") {
		// Swap would be memory beyond the limit; a kernel without it has no such file.
		if err := os.WriteFile(filepath.Join(commands, "memory.swap.max"), []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	var err error
	if g.into, err = os.Open(commands); err != nil {
		return err
	}
	if g.guest, err = os.Open(guest); err != nil {
		return fmt.Errorf("open the guest's cgroup: %w", err)
	}
	return nil
}
