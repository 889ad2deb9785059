package runner

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process, from now on, the parent of descendants whose
// own parent has died, so that it can wait for them and knows when they have
// gone. Without it awaitStrangers serves.
var adoptOrphans = sync.OnceFunc(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// endWithParent lets no command go on whose lease nobody renews.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
