// Package kube is what the tests of the manifests and those on a cluster share.
package kube

import (
	"testing"
	"time"
)

// Eventually waits until something is so.
func Eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	const patience = 2 * time.Minute
	for end := time.Now().Add(patience); !so(); {
		if time.Now().After(end) {
			t.Fatalf("not in %s: %s", patience, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test has ended: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
