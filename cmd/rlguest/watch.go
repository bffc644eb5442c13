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
	var tasks int64
	commands := procs[:0]
	for _, p := range procs {
		if p == "1" {
			continue
		}
		commands = append(commands, p)
		var st unix.Stat_t
		if err := unix.Stat(base+"/proc/"+p+"/task", &st); err == nil && st.Nlink > 2 {
			tasks += int64(st.Nlink) - 2
		}
	}
	if r.x.Pids > 0 && tasks >= r.x.Pids {
		r.pids = true
	}
	if r.x.Memory > 0 && !r.killed && overMemory(commands, r.x.Memory) {
		r.kill(hitMemory)
	}
}

// overMemory reports that processes hold more than limit bytes together.
//
// Resident pages count once for each process that maps them, which is cheap and
// never too little; only a sum over the limit is looked at again in shares,
// which count a page once however many processes forked from one another map it.
//
// Shared memory is of three kinds that the kernel's sums do not tell apart:
// anonymous mappings and memory files, which count here; files of the use, which
// lie in memory and count as disk; and System V segments. So shared shares count
// as far as they exceed what the use's files take, and segments count at least,
// mapped or not.
func overMemory(pids []string, limit int64) bool {
	segments := segmentBytes()
	sum := segments
	for _, p := range pids {
		b, err := readAll(base + "/proc/" + p + "/status")
		if err != nil {
			continue // it has ended
		}
		sum += kilobytes(b, "RssAnon:") + kilobytes(b, "RssShmem:")
	}
	if sum <= limit {
		return false
	}
	var own, shared int64
	for _, p := range pids {
		b, err := readAll(base + "/proc/" + p + "/smaps_rollup")
		if err != nil {
			continue
		}
		own += kilobytes(b, "Pss_Anon:")
		shared += kilobytes(b, "Pss_Shmem:")
	}
	return own+max(shared-diskBytes(), segments) > limit
}

// kilobytes reads the value of "name  value kB" out of a file of such lines, in bytes; 0 where it is not.
func kilobytes(b []byte, name string) int64 {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		if f := bytes.Fields(rest); len(f) > 0 {
			v, _ := strconv.ParseInt(string(f[0]), 10, 64)
			return v << 10
		}
	}
	return 0
}

// segmentBytes is what the System V segments of the namespace hold in memory.
func segmentBytes() int64 {
	b, err := readAll(base + "/proc/sysvipc/shm")
	if err != nil {
		return 0
	}
	column, sum := -1, int64(0)
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if column < 0 { // the heading
			if column = fieldIndex(f, "rss"); column < 0 {
				return 0
			}
			continue
		}
		if len(f) > column {
			v, _ := strconv.ParseInt(string(f[column]), 10, 64)
			sum += v
		}
	}
	return sum
}

func fieldIndex(fields [][]byte, name string) int {
	for i, f := range fields {
		if string(f) == name {
			return i
		}
	}
	return -1
}

// diskBytes is what the files of the use take.
func diskBytes() int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(layers, &st); err != nil {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
