//go:build !linux

package servers

import "syscall"

func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}
