//go:build !linux

package servers

func AwaitStopped(int) error { return nil }
