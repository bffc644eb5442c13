//go:build linux

package main

import (
	"slices"

	"golang.org/x/sys/unix"
)

// rule is what the filter does with one system call. With no test it always
// refuses; otherwise the test decides.
type rule struct {
	nr    uint32
	errno uint32
	tests []test
}

// test allows a call. All tests of a rule must hold, each for one argument.
type test struct {
	arg   uint32
	clear uint32   // bits that must be 0; used when values is empty
	any   []uint32 // values the low half may have
	not   []uint32 // values it may not have
}

// The filter takes from commands what the namespaces leave them: ways to new
// namespaces and mounts, kernel interfaces with a record of escapes, stores
// that outlive a use (keys), the host's vsock, and reaching for limits or
// priorities of another process, which by user id would include the guest's.
func rules() []rule {
	var out []rule
	for _, nr := range append(forbidden, forbiddenArch...) {
		out = append(out, rule{nr: nr, errno: uint32(unix.EPERM)})
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
		unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME
	self := test{arg: 0, any: []uint32{0}}
	return append(out,
		// The flags of clone3 lie in memory, out of a filter's sight; the C library falls back to clone.
		rule{nr: unix.SYS_CLONE3, errno: uint32(unix.ENOSYS)},
		rule{unix.SYS_CLONE, uint32(unix.EPERM), []test{{arg: 0, clear: namespaces &^ 0xff}}},
		rule{unix.SYS_SOCKET, uint32(unix.EAFNOSUPPORT), []test{{arg: 0, any: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}}}},
		rule{unix.SYS_IOCTL, uint32(unix.EPERM), []test{{arg: 1, not: []uint32{unix.TIOCSTI, unix.TIOCLINUX}}}},
		rule{unix.SYS_PRLIMIT64, uint32(unix.EPERM), []test{self}},
		rule{unix.SYS_SCHED_SETSCHEDULER, uint32(unix.EPERM), []test{self}},
		rule{unix.SYS_SCHED_SETPARAM, uint32(unix.EPERM), []test{self}},
		rule{unix.SYS_SCHED_SETATTR, uint32(unix.EPERM), []test{self}},
		rule{unix.SYS_SETPRIORITY, uint32(unix.EPERM), []test{{arg: 0, any: []uint32{unix.PRIO_PROCESS}}, {arg: 1, any: []uint32{0}}}},
		rule{unix.SYS_IOPRIO_SET, uint32(unix.EPERM), []test{{arg: 0, any: []uint32{1}}, {arg: 1, any: []uint32{0}}}},
	)
}

var forbidden = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_CHROOT,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE,
	unix.SYS_DELETE_MODULE, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_QUOTACTL,
	unix.SYS_QUOTACTL_FD, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_VHANGUP, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
}

// Offsets in struct seccomp_data; arguments are 8 bytes, low half first on the architectures below.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(code uint16, k uint32, t, f uint8) unix.SockFilter {
	return unix.SockFilter{Code: code | unix.BPF_JMP, Jt: t, Jf: f, K: k}
}

func allow() unix.SockFilter { return stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW) }

func refuse(errno uint32) unix.SockFilter {
	return stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|errno)
}

// seccompFilter assembles the rules into a binary tree over the call's number:
// the kernel runs every number through a new filter once, for each command.
func seccompFilter() []unix.SockFilter {
	r := rules()
	slices.SortFunc(r, func(a, b rule) int { return int(a.nr) - int(b.nr) })
	out := []unix.SockFilter{
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offArch),
		jump(unix.BPF_JEQ, auditArch, 1, 0),
		refuse(uint32(unix.EPERM)), // another instruction set, such as 32-bit calls
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offNr),
		jump(unix.BPF_JGE, 0x40000000, 0, 1), // the x32 numbers
		refuse(uint32(unix.EPERM)),
	}
	return append(out, tree(r)...)
}

func tree(r []rule) []unix.SockFilter {
	if len(r) == 1 {
		return append([]unix.SockFilter{jump(unix.BPF_JEQ, r[0].nr, 1, 0), allow()}, r[0].code()...)
	}
	low, high := tree(r[:len(r)/2]), tree(r[len(r)/2:])
	out := []unix.SockFilter{
		jump(unix.BPF_JGE, r[len(r)/2].nr, 0, 1),
		stmt(unix.BPF_JMP|unix.BPF_JA, uint32(len(low))),
	}
	return append(append(out, low...), high...)
}

// code decides a call whose number has matched.
func (r rule) code() []unix.SockFilter {
	if len(r.tests) == 0 {
		return []unix.SockFilter{refuse(r.errno)}
	}
	var out []unix.SockFilter
	for _, t := range r.tests {
		out = append(out, stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offArgs+8*t.arg))
		switch {
		case len(t.any) > 0:
			for i, v := range t.any {
				out = append(out, jump(unix.BPF_JEQ, v, uint8(len(t.any)-i), 0))
			}
			out = append(out, refuse(r.errno))
		case len(t.not) > 0:
			for i, v := range t.not {
				last := uint8(0)
				if i == len(t.not)-1 {
					last = 1
				}
				out = append(out, jump(unix.BPF_JEQ, v, uint8(len(t.not)-1-i), last))
			}
			out = append(out, refuse(r.errno))
		default:
			out = append(out, jump(unix.BPF_JSET, t.clear, 0, 1), refuse(r.errno))
		}
	}
	return append(out, allow())
}
