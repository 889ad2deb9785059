package servers

import (
	"net"
	"testing"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	given := map[int]bool{}
	for range 500 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if given[port] {
			t.Fatalf("port %d was given before", port)
		}
		given[port] = true
	}
}

func TestAPortInUseIsNotFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if free, err := isFree(port); free || err != nil {
		t.Errorf("port %d is in use and free: %v, %v", port, free, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if free, err := isFree(port); !free || err != nil {
		t.Errorf("port %d is free: %v, %v", port, free, err)
	}
}
