package servers

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// Ports for servers are below those that Linux gives to outgoing connections:
// one of these could take the port of a server that is down for a moment, which
// then couldn't start again.
const firstPort, lastPort = 10000, 32767

// given are the ports that this process has for its servers.
var given sync.Map

// FreePort returns a TCP port of the loopback that was free a moment ago. It
// returns none twice.
func FreePort() (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		free, err := isFree(port)
		if free || err != nil {
			return port, err
		}
	}
	return 0, errors.New("no free port was found")
}

func isFree(port int) (bool, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, l.Close()
}
