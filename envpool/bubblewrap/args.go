package bubblewrap

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/envpool/guest"
)

// inside is the user and group id of everything in a sandbox. It is not 0, so
// that executing a program never brings capabilities back.
const inside = 1000

// The descriptors that a slot's process inherits.
const (
	fdControl = 3
	fdInfo    = 4
	fdJoin    = 5 // and up: one for each version 1 cgroup, or the version 2 one
)

// bwrapArgs describes a slot: the guest at the root, what commands see below
// /base. shared is where the shared files are.
func bwrapArgs(shared string, joins int, into bool) []string {
	a := []string{
		"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
		"--uid", strconv.Itoa(inside), "--gid", strconv.Itoa(inside),
		"--as-pid-1", "--die-with-parent", "--new-session", "--info-fd", strconv.Itoa(fdInfo),
		"--clearenv", "--setenv", "GODEBUG", "asyncpreemptoff=1", "--setenv", "GOMAXPROCS", "1",
	}
	if !into { // from within a cgroup namespace the guest could not reach the group beside its own
		a = append(a, "--unshare-cgroup-try")
	}
	for _, c := range []string{
		"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_KILL", "CAP_IPC_OWNER",
	} {
		a = append(a, "--cap-add", c)
	}
	a = append(a,
		"--ro-bind", filepath.Join(shared, "rlguest"), "/rlguest",
		"--ro-bind", filepath.Join(shared, "templates"), "/templates",
		"--dir", "/use",
		"--ro-bind", filepath.Join(shared, "etc"), "/base/etc",
		"--proc", "/base/proc", "--tmpfs", "/base/dev",
	)
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		st, err := os.Lstat(d)
		if err != nil {
			continue
		}
		if st.Mode()&os.ModeSymlink == 0 {
			a = append(a, "--ro-bind", d, "/base"+d)
		} else if target, err := os.Readlink(d); err == nil {
			a = append(a, "--symlink", target, "/base"+d)
		}
	}
	for _, f := range []string{"/etc/alternatives", "/etc/ssl/certs", "/etc/ld.so.cache"} {
		a = append(a, "--ro-bind-try", f, "/base"+f)
	}
	for _, d := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		a = append(a, "--dev-bind-try", "/dev/"+d, "/base/dev/"+d)
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		a = append(a, "--symlink", "/proc/self/fd"+target, "/base/dev/"+name)
	}
	for _, r := range guest.Roots {
		a = append(a, "--dir", "/base"+r.Path)
	}
	a = append(a, "--remount-ro", "/base/dev", "--remount-ro", "/", "--chdir", "/", "--", "/rlguest", "serve", strconv.Itoa(fdControl))
	for i := range joins {
		a = append(a, "join="+strconv.Itoa(fdJoin+i))
	}
	if into {
		a = append(a, "into="+strconv.Itoa(fdJoin))
	}
	return a
}

// environment is what every command starts from; its own values come last.
func environment(c envpool.Command) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/home/agent", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
	}
	for k, v := range c.Env {
		env[k] = v
	}
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}
