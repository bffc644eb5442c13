package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of processor times in /proc: USER_HZ is 100 on every Linux port.
const tick = 10 * time.Millisecond

// busy returns the processor time of the whole machine since it booted, from
// /proc/stat: kernel threads and interrupts are in it, and so is whatever else runs.
func busy() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(stat, []byte("\n"))
	return busyOf(string(first))
}

// busyOf adds up user, nice, system, irq and softirq of /proc/stat's first line.
// Guest time is part of user time; what a hypervisor took (steal) did no work here.
func busyOf(cpu string) (time.Duration, error) {
	f := strings.Fields(cpu)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: unexpected first line %q", cpu)
	}
	var sum int64
	for i, s := range f[1:8] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			sum += n
		}
	}
	return time.Duration(sum) * tick, nil
}

// drift returns how many cores the machine uses while nothing is measured.
func drift(ctx context.Context, over time.Duration) (float64, error) {
	before, err := busy()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, over); err != nil {
		return 0, err
	}
	took := time.Since(began)
	after, err := busy()
	return (after - before).Seconds() / took.Seconds(), err
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// load is the load average over one minute.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// own returns the processor time that this process has used.
func own() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// process is one line of the process table.
type process struct {
	pid, parent int
	cpu         time.Duration // its own, and of the children it has waited for
	resident    int64         // bytes
}

// tree is a process with all its descendants.
type tree []process

// treeOf reads a process and its descendants from /proc.
func treeOf(root int) (tree, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	all, children := map[int]process{}, map[int][]int{}
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			b, err := os.ReadFile("/proc/" + n + "/stat")
			if err != nil {
				continue // it has ended
			}
			p, err := processOf(string(b))
			if err != nil {
				return nil, err
			}
			all[pid] = p
			children[p.parent] = append(children[p.parent], pid)
		}
	}
	if _, is := all[root]; !is {
		return nil, fmt.Errorf("process %d: %w", root, os.ErrProcessDone)
	}
	var out tree
	next := []int{root}
	for len(next) > 0 {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		out = append(out, all[pid])
	}
	return out, nil
}

// processOf parses /proc/PID/stat; a program's name may hold anything, so that fields are counted from its end.
func processOf(stat string) (process, error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 1 || end < open {
		return process{}, fmt.Errorf("/proc/PID/stat: unexpected %q", stat)
	}
	f := strings.Fields(stat[end+1:])
	if len(f) < 22 {
		return process{}, fmt.Errorf("/proc/PID/stat: unexpected %q", stat)
	}
	var n [7]int64
	for i, s := range []string{strings.TrimSpace(stat[:open]), f[1], f[11], f[12], f[13], f[14], f[21]} {
		var err error
		if n[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			return process{}, fmt.Errorf("/proc/PID/stat: %w", err)
		}
	}
	return process{
		pid: int(n[0]), parent: int(n[1]), cpu: time.Duration(n[2]+n[3]+n[4]+n[5]) * tick, resident: n[6] * int64(os.Getpagesize()),
	}, nil
}

// cpu is the processor time of the tree so far. What a process used moves to its parent when it is waited for.
func (t tree) cpu() time.Duration {
	var sum time.Duration
	for _, p := range t {
		sum += p.cpu
	}
	return sum
}

// resident is the memory of the tree in bytes; pages that processes share are counted for each of them.
func (t tree) resident() int64 {
	var sum int64
	for _, p := range t {
		sum += p.resident
	}
	return sum
}
