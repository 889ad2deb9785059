//go:build !linux

package main

// eventCounter counts nothing: only Linux tells.
type eventCounter struct{}

func countInstructions(int) *eventCounter { return &eventCounter{} }

func (*eventCounter) count() float64 { return 0 }
func (*eventCounter) close()         {}
