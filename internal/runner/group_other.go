//go:build unix && !linux

package runner

import "syscall"

func adoptOrphans() {}

func endWithParent(*syscall.SysProcAttr) {}

func canFollow() bool { return false }

func children() map[int]int { return nil }

func signalDescendants(syscall.Signal, others) {}

func stopDescendants(int, others, map[int]bool) (all bool) { return true }

func anyLiving(others) bool { return false }
