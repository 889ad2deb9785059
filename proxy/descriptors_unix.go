//go:build unix

package proxy

import (
	"math"
	"syscall"
)

// maxDescriptors returns how many files the process may open. The Go runtime has raised
// the soft limit to the hard one at the start.
func maxDescriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur)
}
