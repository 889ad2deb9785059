//go:build unix

package proxy

import (
	"math"
	"syscall"
)

// maxDescriptors is how many files the process may open. At start Go has raised
// the soft limit to the hard one.
func maxDescriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur)
}
