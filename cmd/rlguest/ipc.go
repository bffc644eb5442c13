//go:build linux

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ipcKind is one kind of System V object; they outlive the processes that made
// them. POSIX queues need no care here: RLIMIT_MSGQUEUE is 0.
type ipcKind struct {
	name   string
	remove uintptr // the system call that takes IPC_RMID
	cmdArg int     // which argument the command is
}

var ipcKinds = []ipcKind{
	{"shm", unix.SYS_SHMCTL, 1},
	{"sem", unix.SYS_SEMCTL, 2},
	{"msg", unix.SYS_MSGCTL, 1},
}

// ids lists the objects. A kernel without System V IPC has none.
func (k ipcKind) ids() ([]int, error) {
	b, err := readAll(base + "/proc/sysvipc/" + k.name)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []int
	lines := strings.Split(string(b), "\n")
	for _, l := range lines[1:] {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		id, err := strconv.Atoi(f[1])
		if err != nil {
			return nil, fmt.Errorf("parse /proc/sysvipc/%s: %w", k.name, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// dropIPC removes all System V objects of the namespace.
func dropIPC() error {
	for _, k := range ipcKinds {
		ids, err := k.ids()
		if err != nil {
			return err
		}
		for _, id := range ids {
			args := [3]uintptr{uintptr(id)}
			args[k.cmdArg] = unix.IPC_RMID
			if _, _, e := unix.RawSyscall(k.remove, args[0], args[1], args[2]); e != 0 && e != unix.EINVAL && e != unix.EIDRM {
				return fmt.Errorf("remove %s object %d: %w", k.name, id, e)
			}
		}
	}
	return nil
}
