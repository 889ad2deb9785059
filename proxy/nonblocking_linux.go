//go:build !portable

package proxy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Non-blocking system calls return at once, so they are raw: without telling the
// scheduler, which would otherwise hand the loop's P to another thread. That hand-over is
// most of such a call's cost outside the kernel. recvfrom and sendto are a little cheaper
// than read and write.

func readNow(fd int, into []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(into))), uintptr(len(into)), unix.MSG_DONTWAIT, 0, 0)
	return result(n, errno)
}

func writeNow(fd int, from []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(len(from)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return result(n, errno)
}

// maxVectors is how many buffers one writev takes (IOV_MAX).
const maxVectors = 1024

// writevNow writes many buffers, at most maxVectors of them. vectors is scratch memory.
func writevNow(fd int, from [][]byte, vectors *[]unix.Iovec) (int, error) {
	all := (*vectors)[:0]
	for _, b := range from[:min(len(from), maxVectors)] {
		if len(b) == 0 {
			continue
		}
		v := unix.Iovec{Base: unsafe.SliceData(b)}
		v.SetLen(len(b))
		all = append(all, v)
	}
	n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(all))), uintptr(len(all)))
	clear(all) // so that it keeps no buffer alive
	*vectors = all
	return result(n, errno)
}

func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
