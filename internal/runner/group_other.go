//go:build unix && !linux

package runner

import "syscall"

func adoptOrphans() {}

func endWithParent(*syscall.SysProcAttr) {}
