//go:build !linux

package connstring

import "syscall"

// userTimeout has no effect here, as in libpq.
func userTimeout(_ int, control func(string, string, syscall.RawConn) error) func(string, string, syscall.RawConn) error {
	return control
}
