//go:build !linux

package servers

import "syscall"

func endWithParent(*syscall.SysProcAttr) {}

func dieWithParent(*syscall.SysProcAttr) {}
