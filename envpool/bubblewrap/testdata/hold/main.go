//go:build linux

// Command hold takes memory of one kind, holds it for a second and says so:
//
//	hold anonymous|memfd|segment|file MIB PROCESSES
//
// Anonymous mappings are shared ones. With several processes all map the same memory.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	size, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = hold(os.Args[1], size<<20, os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("held")
}

func hold(kind string, size int, processes string) error {
	f, err := file(kind, size)
	if err != nil {
		return err
	}
	var m []byte
	switch kind {
	case "anonymous":
		m, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	case "segment":
		var id int
		if id, err = unix.SysvShmGet(unix.IPC_PRIVATE, size, 0o600); err == nil {
			m, err = unix.SysvShmAttach(id, 0, 0)
		}
	default:
		m, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	for i := 0; i < size; i += 4096 {
		m[i] = 1
	}
	if kind == "segment" { // it stays without anybody who maps it
		if err := unix.SysvShmDetach(m); err != nil {
			return err
		}
	}
	var child *exec.Cmd
	if n, err := strconv.Atoi(processes); err != nil {
		return err
	} else if n > 1 {
		child = exec.Command("/proc/self/exe", "inherited", os.Args[2], strconv.Itoa(n-1))
		child.ExtraFiles, child.Stderr = []*os.File{f}, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
	}
	time.Sleep(time.Second)
	if child != nil {
		return child.Wait()
	}
	return nil
}

func file(kind string, size int) (*os.File, error) {
	var f *os.File
	switch kind {
	case "memfd":
		fd, err := unix.MemfdCreate("hold", 0)
		if err != nil {
			return nil, err
		}
		f = os.NewFile(uintptr(fd), "memfd")
	case "file":
		var err error
		if f, err = os.OpenFile("/app/held", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return nil, err
		}
	case "inherited":
		return os.NewFile(3, "inherited"), nil
	default:
		return nil, nil
	}
	return f, f.Truncate(int64(size))
}
