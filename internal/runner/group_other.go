//go:build unix && !linux

package runner

import "syscall"

func adoptOrphans() {}

func endWithParent(*syscall.SysProcAttr) {}

func canFollow() bool { return false }

func signalDescendants(syscall.Signal) {}
