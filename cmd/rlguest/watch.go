//go:build linux

package main

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// watch looks at all processes where no cgroup counts them: over the bound on
// memory they are killed, at the bound on processes a refused fork is assumed.
func (r *run) watch() {
	procs, err := processes()
	if err != nil {
		return
	}
	page := int64(unix.Getpagesize())
	var memory, tasks int64
	for _, p := range procs {
		if p == "1" {
			continue
		}
		dir := base + "/proc/" + p
		var st unix.Stat_t
		if err := unix.Stat(dir+"/task", &st); err == nil && st.Nlink > 2 {
			tasks += int64(st.Nlink) - 2
		}
		// Fields: size, resident, shared. Shared pages are files, which the disk's bound covers.
		if b, err := readAll(dir + "/statm"); err == nil {
			if f := bytes.Fields(b); len(f) > 2 {
				resident, _ := strconv.ParseInt(string(f[1]), 10, 64)
				shared, _ := strconv.ParseInt(string(f[2]), 10, 64)
				memory += (resident - shared) * page
			}
		}
	}
	if r.x.Pids > 0 && tasks >= r.x.Pids {
		r.pids = true
	}
	if r.x.Memory > 0 && memory > r.x.Memory && !r.killed {
		r.kill(hitMemory)
	}
}
