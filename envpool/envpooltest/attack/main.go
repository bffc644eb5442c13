//go:build linux

// Command attack tries, from inside a sandbox, what commands must not be able
// to do. It prints one line a try; "allowed" in it means the sandbox failed.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	for _, a := range attacks {
		err := a.try()
		if err == nil {
			fmt.Printf("%s: allowed\n", a.name)
			continue
		}
		fmt.Printf("%s: %v\n", a.name, err)
	}
}

// raw makes a system call and returns its errno as an error.
func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

func ptr(s string) uintptr {
	p, err := unix.BytePtrFromString(s)
	if err != nil {
		return 0
	}
	return uintptr(unsafe.Pointer(p))
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

var limit = unix.Rlimit{Cur: 1, Max: 1}

var attacks = []struct {
	name string
	try  func() error
}{
	{"ptrace attach to process 1", func() error { return unix.PtraceAttach(1) }},
	{"ptrace seize process 1", func() error { return unix.PtraceSeize(1) }},
	{"read memory of process 1", func() error { return open("/proc/1/mem", unix.O_RDWR) }},
	{"read environment of process 1", func() error { return open("/proc/1/environ", unix.O_RDONLY) }},
	{"enter root of process 1", func() error { return open("/proc/1/root/rlguest", unix.O_RDONLY) }},
	{"list descriptors of process 1", func() error { return open("/proc/1/fd", unix.O_RDONLY|unix.O_DIRECTORY) }},
	{"take a descriptor of process 1", takeDescriptor},
	{"process_vm_readv of process 1", readMemory},
	{"limit process 1", func() error { return unix.Prlimit(1, unix.RLIMIT_NOFILE, &limit, nil) }},
	{"nice process 1", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 1, 19) }},
	{"nice all of the user", func() error { return unix.Setpriority(unix.PRIO_USER, 0, 19) }},
	{"schedule process 1 as idle", func() error { return raw(unix.SYS_SCHED_SETSCHEDULER, 1, 5, uintptr(unsafe.Pointer(new(int32)))) }},
	{"mount a tmpfs", func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") }},
	{"remount the root writable", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }},
	{"unmount", func() error { return unix.Unmount("/app", unix.MNT_DETACH) }},
	{"new mount API", func() error { return raw(unix.SYS_FSOPEN, ptr("tmpfs"), 0) }},
	{"open_tree", func() error { return raw(unix.SYS_OPEN_TREE, 0, ptr("/usr"), 1) }},
	{"change root", func() error { return unix.Chroot("/tmp") }},
	{"pivot root", func() error { return unix.PivotRoot("/tmp", "/tmp") }},
	{"unshare users", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"unshare mounts", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"clone into new users", func() error { return clone(unix.CLONE_NEWUSER) }},
	{"clone into new network", func() error { return clone(unix.CLONE_NEWNET) }},
	{"clone3", func() error { return raw(unix.SYS_CLONE3, 0, 0) }},
	{"join the mounts of process 1", func() error { return join("/proc/1/ns/mnt") }},
	{"join own network", func() error { return join("/proc/self/ns/net") }},
	{"add a key", func() error {
		return raw(unix.SYS_ADD_KEY, ptr("user"), ptr("k"), ptr("v"), 1, ^uintptr(3))
	}},
	{"keyctl", func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true); return err }},
	{"bpf", func() error { return raw(unix.SYS_BPF, 0, 0, 0) }},
	{"perf events", func() error { return raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0) }},
	{"userfaultfd", func() error { return raw(unix.SYS_USERFAULTFD, 1) }},
	{"io_uring", func() error { return raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&[256]byte{}))) }},
	{"vsock", func() error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM) }},
	{"packet socket", func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW) }},
	{"raw socket", func() error { return socket(unix.AF_INET, unix.SOCK_RAW) }},
	{"kernel crypto socket", func() error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET) }},
	{"make a block device", func() error { return unix.Mknod("/tmp/sda", unix.S_IFBLK|0o666, 8<<8) }},
	{"make a memory device", func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, 1<<8|1) }},
	{"open /dev/kvm", func() error { return open("/dev/kvm", unix.O_RDWR) }},
	{"open /dev/fuse", func() error { return open("/dev/fuse", unix.O_RDWR) }},
	{"write core_pattern", func() error { return open("/proc/sys/kernel/core_pattern", unix.O_WRONLY) }},
	{"write a network sysctl", func() error { return open("/proc/sys/net/ipv4/ip_forward", unix.O_WRONLY) }},
	{"sysrq", func() error { return open("/proc/sysrq-trigger", unix.O_WRONLY) }},
	{"kernel log", func() error { _, err := unix.Klogctl(3, make([]byte, 64)); return err }},
	{"load a module", func() error { return raw(unix.SYS_INIT_MODULE, 0, 0, ptr("")) }},
	{"kexec", func() error { return raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) }},
	{"reboot", func() error { return raw(unix.SYS_REBOOT, 0xfee1dead, 672274793, 0) }},
	{"set the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) }},
	{"set the host name", func() error { return unix.Sethostname([]byte("mine")) }},
	{"open by handle", func() error {
		return raw(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0), uintptr(unsafe.Pointer(&[64]byte{})), 0)
	}},
	{"become root", func() error { return unix.Setuid(0) }},
	{"raise the file limit", func() error {
		big := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &big)
	}},
	{"drop the filter", func() error { return unix.Prctl(unix.PR_SET_SECCOMP, 0, 0, 0, 0) }},
	{"drop no_new_privs", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) }},
	{"message queue", func() error {
		return raw(unix.SYS_MQ_OPEN, ptr("q"), unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	}},
	{"32-bit system call number", func() error { return raw(0x40000000 + 39) }},
	{"another process's freedom", freeze},
}

func clone(flag uintptr) error {
	pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flag|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	return nil
}

func join(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, 0)
}

func socket(family, kind int) error {
	fd, err := unix.Socket(family, kind, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func takeDescriptor() error {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	for i := range 8 {
		if _, err = unix.PidfdGetfd(fd, i, 0); err == nil {
			return nil
		}
	}
	return err
}

func readMemory() error {
	var b [8]byte
	local := []unix.Iovec{{Base: &b[0], Len: 8}}
	_, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

// freeze sends process 1, and each of its threads, every signal there is. It
// always returns an error: what counts is that the sandbox answers afterwards.
func freeze() error {
	tids := []int{1}
	entries, err := os.ReadDir("/proc/1/task")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, n)
		}
	}
	sent := 0
	for sig := 1; sig <= 64; sig++ {
		if err := unix.Kill(1, syscall.Signal(sig)); err == nil {
			sent++
		}
		for _, tid := range tids {
			if err := unix.Tgkill(1, tid, syscall.Signal(sig)); err == nil {
				sent++
			}
		}
	}
	return fmt.Errorf("sent %d signals to process 1 and its %d threads", sent, len(tids)-1)
}
