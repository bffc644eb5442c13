//go:build linux

// Command rlguest is the small program inside a sandbox: it makes the files of
// each use, starts commands, moves files, and proves that a reset left nothing.
//
// It is process 1 of the sandbox's namespaces and holds all capabilities in
// them; commands run with none, in a changed root, behind a system call filter.
// What keeps commands off it, although they share its user id: a signal whose
// action is the default one never reaches process 1 from within its namespace,
// so every action is made the default one; it is not dumpable and has
// capabilities its children lack, so it cannot be traced or read; the filter
// refuses limits and priorities of other processes; its descriptors are closed
// on exec.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		hold()
		return
	}
	if len(os.Args) < 3 || os.Args[1] != "serve" {
		usage()
	}
	number := func(a string) int {
		n, err := strconv.Atoi(a)
		if err != nil {
			usage()
		}
		return n
	}
	control, groups := number(os.Args[2]), cgroups{into: -1}
	for _, a := range os.Args[3:] {
		if fd, ok := strings.CutPrefix(a, "join="); ok {
			groups.join = append(groups.join, number(fd))
		} else if fd, ok := strings.CutPrefix(a, "into="); ok {
			groups.into = number(fd)
		} else {
			usage()
		}
	}
	// The first thread owns the process's memory and stays outside of the
	// commands' cgroup; a second one, which does all the work, may enter it.
	runtime.LockOSThread()
	go func() {
		runtime.LockOSThread()
		if err := serve(control, groups); err != nil {
			fmt.Fprintln(os.Stderr, "rlguest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}()
	select {}
}

// cgroups are descriptors of the commands' cgroups: tasks files of version 1,
// or one directory of version 2 (−1: none).
type cgroups struct {
	join []int
	into int
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: rlguest serve CONTROL-FD [join=TASKS-FD …] [into=CGROUP-FD] | rlguest hold")
	os.Exit(2)
}

// hold keeps the process, and with it its user namespace, until standard input ends.
func hold() {
	var b [1]byte
	for {
		n, err := unix.Read(0, b[:])
		if n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}
