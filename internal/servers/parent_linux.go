package servers

import "syscall"

// endWithParent has the kernel send the server a signal when the process that started it dies. It is
// tied to the thread that starts the child, which Go may end early only when a locked goroutine
// exits; no caller locks one.
func endWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
