//go:build linux

package main

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// forbiddenArch lists calls that only this architecture has.
var forbiddenArch = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM}
