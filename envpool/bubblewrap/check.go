package bubblewrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/rlfleet/rlfleet/envpool"
)

// lack is what the machine lacks. Its sentence ends with the command that mends it, so the kind is not printed.
type lack struct{ sentence string }

func (l *lack) Error() string { return l.sentence }
func (l *lack) Unwrap() error { return envpool.ErrEnvironment }

var errNoBwrap = missing("bubblewrap is not installed", "apt-get install -y bubblewrap")

// Check reports whether this machine can run the tier. Its error is one
// sentence that names what is missing and the one command that mends it.
func Check() error {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return errNoBwrap
	}
	if old := kernelBefore(5, 11); old != "" {
		return missing("kernel "+old+" mounts no overlays for unprivileged users, 5.11 and newer do", "apt-get install -y linux-image-$(dpkg --print-architecture) && reboot")
	}
	if b, err := os.ReadFile("/proc/filesystems"); err == nil && !bytes.Contains(b, []byte("\toverlay\n")) {
		return missing("the kernel has no overlay file system", "modprobe overlay")
	}
	cmd := exec.Command(bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true")
	var said bytes.Buffer
	cmd.Stderr = &said
	if os.Geteuid() == 0 { // sandboxes never run as root
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
	}
	if err := cmd.Run(); err != nil {
		return explain(errors.New(strings.Join(strings.Fields(said.String()+" "+err.Error()), " ")))
	}
	return nil
}

// explain finds the setting that keeps user namespaces off.
func explain(err error) error {
	for _, s := range []struct{ file, off, fix string }{
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=65536"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if b, rerr := os.ReadFile(s.file); rerr == nil && strings.TrimSpace(string(b)) == s.off {
			return missing("unprivileged user namespaces are switched off", s.fix)
		}
	}
	return missing(fmt.Sprintf("bwrap cannot make namespaces here (%v); in a container, give it the right to", err), "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined …")
}

func missing(what, command string) error {
	return &lack{what + "; run: " + command}
}
