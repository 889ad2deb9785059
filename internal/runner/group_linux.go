package runner

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process, from now on, the parent of descendants whose
// own parent has died, so that it can wait for them. Without it awaitStrangers polls.
var adoptOrphans = sync.OnceFunc(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// endWithParent has the kernel kill the command with this process, which renews its lease.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
