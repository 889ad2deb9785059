package demo

import "syscall"

// endWithParent has the kernel end a child whose play has died, even one that
// is stopped.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
