//go:build !linux

package servers

func awaitStopped(int) error { return nil }
