package servers

import "syscall"

// endWithParent has the kernel end the server when the process that started it dies. The
// signal is tied to the thread that starts the child, which Go may end early
// only when a locked goroutine exits; no caller locks one.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// dieWithParent does the same for a server that goes on at SIGQUIT, as a Java
// machine does.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
