//go:build unix && !linux

package runner

import "syscall"

func adoptOrphans() {}

func endWithParent(*syscall.SysProcAttr) {}

func canFollow() bool { return false }

func children() map[int]int { return nil }

func signalDescendants(syscall.Signal, map[int]int) {}

func stopDescendants(int, map[int]int, map[int]bool) (all bool) { return true }

func anyLiving(map[int]int) bool { return false }
