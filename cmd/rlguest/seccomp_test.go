//go:build linux

package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// decide runs the filter the way the kernel does.
func decide(t *testing.T, filter []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	load := func(off uint32) uint32 {
		switch {
		case off == offNr:
			return nr
		case off == offArch:
			return arch
		case off >= offArgs && off%8 == 0:
			if i := int(off-offArgs) / 8; i < len(args) {
				return uint32(args[i])
			}
			return 0
		}
		t.Fatalf("load from %d", off)
		return 0
	}
	var a uint32
	for pc := 0; pc < len(filter); pc++ {
		in := filter[pc]
		branch := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = load(in.K)
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ:
			branch(a == in.K)
		case unix.BPF_JMP | unix.BPF_JGE:
			branch(a >= in.K)
		case unix.BPF_JMP | unix.BPF_JSET:
			branch(a&in.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d: code %#x", pc, in.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func TestFilter(t *testing.T) {
	f := seccompFilter()
	require.Less(t, len(f), 4096, "the kernel's limit")
	const allowed = uint32(unix.SECCOMP_RET_ALLOW)
	no := func(e unix.Errno) uint32 { return uint32(unix.SECCOMP_RET_ERRNO) | uint32(e) }
	ruled := map[uint32]bool{}
	for _, r := range rules() {
		require.False(t, ruled[r.nr], "two rules for call %d", r.nr)
		ruled[r.nr] = true
		if len(r.tests) == 0 {
			require.Equal(t, uint32(unix.SECCOMP_RET_ERRNO)|r.errno, decide(t, f, auditArch, r.nr), "call %d", r.nr)
		}
	}
	for nr := range uint32(600) {
		if !ruled[nr] {
			require.Equal(t, allowed, decide(t, f, auditArch, nr), "call %d", nr)
		}
	}
	for i, c := range []struct {
		nr   uint32
		args []uint64
		want uint32
	}{
		{unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, allowed},
		{unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, no(unix.EPERM)},
		{unix.SYS_CLONE, []uint64{unix.CLONE_NEWNS}, no(unix.EPERM)},
		{unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allowed},
		{unix.SYS_SOCKET, []uint64{unix.AF_NETLINK}, allowed},
		{unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, no(unix.EAFNOSUPPORT)},
		{unix.SYS_SOCKET, []uint64{unix.AF_ALG}, no(unix.EAFNOSUPPORT)},
		{unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, allowed},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, no(unix.EPERM)},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, no(unix.EPERM)},
		{unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, no(unix.EPERM)}, // the kernel takes the low half
		{unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE}, allowed},
		{unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE}, no(unix.EPERM)},
		{unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 0, 5}, allowed},
		{unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 1, 5}, no(unix.EPERM)},
		{unix.SYS_SETPRIORITY, []uint64{unix.PRIO_USER, 0, 5}, no(unix.EPERM)},
		{unix.SYS_IOPRIO_SET, []uint64{1, 0}, allowed},
		{unix.SYS_IOPRIO_SET, []uint64{3, 0}, no(unix.EPERM)},
		{unix.SYS_CLONE3, nil, no(unix.ENOSYS)},
	} {
		require.Equal(t, c.want, decide(t, f, auditArch, c.nr, c.args...), "case %d", i)
	}
	require.Equal(t, no(unix.EPERM), decide(t, f, auditArch^1, 0), "another architecture")
	require.Equal(t, no(unix.EPERM), decide(t, f, auditArch, 0x40000000), "x32")
}

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		program string
		env     []string
		want    []string
	}{
		{"./x", nil, []string{"./x"}},
		{"/bin/x", []string{"PATH=/a"}, []string{"/bin/x"}},
		{"x", nil, []string{"/usr/bin/x", "/bin/x"}},
		{"x", []string{"A=b", "PATH=/a::/b"}, []string{"/a/x", "./x", "/b/x"}},
	} {
		got, err := candidates(c.program, c.env)
		require.NoError(t, err)
		var paths []string
		for _, p := range got {
			paths = append(paths, unix.BytePtrToString(p))
		}
		require.Equal(t, c.want, paths, fmt.Sprint(c))
	}
	_, err := candidates("a\x00b", nil)
	require.Error(t, err)
}
