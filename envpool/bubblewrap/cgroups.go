package bubblewrap

import (
	"bufio"
	"bytes"
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

	"github.com/rlfleet/rlfleet/envpool"
)

// controllers are what a sandbox's commands are limited by where the host may
// make version 1 cgroups. The guest's working thread joins them, its first
// thread, which owns the guest's memory, does not: a command at its limits
// leaves the guest alone.
var controllers = []string{"memory", "pids", "cpu"}

// cgroups are the host's directories, by controller.
type cgroups struct {
	dirs map[string]string
}

// newCgroups makes the directories for a data directory, and ends and removes
// what an earlier host of the same data directory left in them.
func newCgroups(dataDir string) (*cgroups, error) {
	own, err := ownCgroups()
	if err != nil {
		return nil, err
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

// removeCgroup removes a directory and its children, ending the processes in them.
func removeCgroup(dir string) error {
	children, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, procs := range children {
		b, err := os.ReadFile(procs)
		if err != nil {
			continue
		}
		for p := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(p); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if err := rmdirSoon(filepath.Dir(procs)); err != nil {
			return err
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
	return errors.Join(errs...)
}

// group is the cgroups of one slot. A nil group limits nothing.
type group struct {
	dirs map[string]string
	set  envpool.Limits // what is in force

	oom, pids   *os.File // counters
	ooms, packs int64    // their last values
	current     *os.File // pids.current
}

// group makes a slot's cgroups and returns the files by which a thread joins them.
func (c *cgroups) group(index int) (*group, []*os.File, error) {
	if c == nil || len(c.dirs) == 0 {
		return nil, nil, nil
	}
	g := &group{dirs: map[string]string{}}
	var join []*os.File
	fail := func(err error) (*group, []*os.File, error) {
		for _, f := range join {
			f.Close()
		}
		return nil, nil, errors.Join(err, g.close())
	}
	for _, name := range controllers {
		if c.dirs[name] == "" {
			continue
		}
		dir := filepath.Join(c.dirs[name], "s"+strconv.Itoa(index))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fail(err)
		}
		g.dirs[name] = dir
		f, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			return fail(err)
		}
		join = append(join, f)
	}
	for _, w := range []struct {
		file             **os.File
		controller, name string
	}{{&g.oom, "memory", "memory.oom_control"}, {&g.pids, "pids", "pids.events"}, {&g.current, "pids", "pids.current"}} {
		if g.dirs[w.controller] == "" {
			continue
		}
		f, err := os.Open(filepath.Join(g.dirs[w.controller], w.name))
		if err != nil {
			return fail(err)
		}
		*w.file = f
	}
	g.ooms, g.packs = counter(g.oom, "oom_kill"), counter(g.pids, "max")
	return g, join, nil
}

// limit puts limits in force; what has not changed costs nothing.
func (g *group) limit(l envpool.Limits) error {
	if g == nil || g.set == l {
		return nil
	}
	const period = 100000 // µs, the kernel's default
	for _, w := range []struct {
		controller, name string
		value            int64
	}{
		{"memory", "memory.limit_in_bytes", l.Memory + l.Disk},
		{"pids", "pids.max", int64(l.Pids) + 1}, // and the guest's thread
		{"cpu", "cpu.cfs_quota_us", max(int64(l.CPU*period), 1000)},
	} {
		if g.dirs[w.controller] == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(g.dirs[w.controller], w.name), strconv.AppendInt(nil, w.value, 10), 0); err != nil {
			return err
		}
	}
	g.set = l
	return nil
}

// hit reports which limit has been run into since the last call, by the kernel's own count.
func (g *group) hit() envpool.LimitHit {
	if g == nil {
		return ""
	}
	var hit envpool.LimitHit
	if n := counter(g.pids, "max"); n > g.packs {
		g.packs, hit = n, envpool.HitPids
	}
	if n := counter(g.oom, "oom_kill"); n > g.ooms {
		g.ooms, hit = n, envpool.HitMemory
	}
	return hit
}

// processes counts the tasks in the group beside the guest's thread; −1 when unknown.
func (g *group) processes() int {
	if g == nil || g.current == nil {
		return -1
	}
	var b [32]byte
	n, _ := g.current.ReadAt(b[:], 0)
	v, err := strconv.Atoi(string(bytes.TrimSpace(b[:n])))
	if err != nil {
		return -1
	}
	return v - 1
}

// counter reads "name value" out of a file of such lines; 0 where it is not.
func counter(f *os.File, name string) int64 {
	if f == nil {
		return 0
	}
	var b [256]byte
	n, _ := f.ReadAt(b[:], 0)
	sc := bufio.NewScanner(bytes.NewReader(b[:n]))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), " "); ok && k == name {
			c, _ := strconv.ParseInt(v, 10, 64)
			return c
		}
	}
	return 0
}

// close removes the slot's cgroups; its processes have ended.
func (g *group) close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{g.oom, g.pids, g.current} {
		if f != nil {
			f.Close()
		}
	}
	for _, d := range g.dirs {
		errs = append(errs, rmdirSoon(d))
	}
	return errors.Join(errs...)
}
