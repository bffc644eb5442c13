package bubblewrap

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rlfleet/rlfleet/envpool"
)

// group is the cgroups of one slot. A nil group limits nothing.
type group struct {
	dirs   map[string]string // where limits are set, by controller
	remove []string          // what close removes, in this order
	set    envpool.Limits    // what is in force
	own    int               // tasks in the group that are the guest's

	oom, pids   *os.File // counters
	ooms, packs int64    // their last values
	current     *os.File // pids.current

	// For the start of the slot only:
	join  []*os.File // version 1: the files by which the guest's thread joins
	into  *os.File   // version 2: the directory that commands are cloned into
	guest *os.File   // version 2: the directory that the slot starts in
}

// group makes the cgroups of a slot whose user is uid.
func (c *cgroups) group(index, uid int) (g *group, err error) {
	if c == nil || (len(c.dirs) == 0 && c.unified == "") {
		return nil, nil
	}
	g = &group{dirs: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
			g = nil
		}
	}()
	name := "s" + strconv.Itoa(index)
	if c.unified != "" {
		err = g.enterUnified(c, name, uid)
	} else {
		err = g.enter(c, name)
	}
	if err != nil {
		return g, err
	}
	oom := "memory.oom_control"
	if c.unified != "" {
		oom = "memory.events"
	}
	for _, w := range []struct {
		file             **os.File
		controller, name string
	}{{&g.oom, "memory", oom}, {&g.pids, "pids", "pids.events"}, {&g.current, "pids", "pids.current"}} {
		if g.dirs[w.controller] == "" {
			continue
		}
		if *w.file, err = os.Open(filepath.Join(g.dirs[w.controller], w.name)); err != nil {
			return g, err
		}
	}
	g.ooms, g.packs = counter(g.oom, "oom_kill"), counter(g.pids, "max")
	return g, nil
}

// enter makes version 1 directories.
func (g *group) enter(c *cgroups, name string) error {
	g.own = 1
	for _, controller := range controllers {
		if c.dirs[controller] == "" {
			continue
		}
		dir := filepath.Join(c.dirs[controller], name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		g.dirs[controller] = dir
		g.remove = append(g.remove, dir)
		f, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		g.join = append(g.join, f)
	}
	return nil
}

// started closes what only the start of the slot needed.
func (g *group) started() {
	if g == nil {
		return
	}
	for _, f := range append(g.join, g.into, g.guest) {
		if f != nil {
			f.Close()
		}
	}
	g.join, g.into, g.guest = nil, nil, nil
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
		{"pids", "pids.max", int64(l.Pids + g.own)},
		{"cpu", "cpu.cfs_quota_us", max(int64(l.CPU*period), 1000)},
	} {
		if g.dirs[w.controller] == "" {
			continue
		}
		if name, ok := unifiedNames[w.name]; ok && g.own == 0 {
			w.name = name
		}
		// "cpu.max" takes a quota and leaves the period as it is.
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

// processes counts the tasks in the group that are not the guest's; −1 when unknown.
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
	return v - g.own
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
	g.started()
	var errs []error
	for _, f := range []*os.File{g.oom, g.pids, g.current} {
		if f != nil {
			f.Close()
		}
	}
	g.oom, g.pids, g.current = nil, nil, nil
	for _, d := range g.remove {
		errs = append(errs, rmdirSoon(d))
	}
	return errors.Join(errs...)
}
