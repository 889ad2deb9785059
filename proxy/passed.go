package proxy

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// passedPrefix begins an address that names passed sockets.
const passedPrefix = "fd:"

// passedName returns the name of the sockets that an address means, if it means passed
// ones.
func passedName(at string) (string, bool) {
	return strings.CutPrefix(strings.TrimSpace(at), passedPrefix)
}

// passedSockets returns the sockets of a name.
func (o *Options) passedSockets(name string) ([]net.Listener, error) {
	if all := o.Sockets[name]; len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("listen %s%s: no socket of that name was passed to this process; systemd passes those of a socket unit with FileDescriptorName=%s",
		passedPrefix, name, name)
}

// listenPassed accepts at all sockets of a name.
func (o *Options) listenPassed(name string) (all []net.Listener, err error) {
	sockets, err := o.passedSockets(name)
	if err != nil {
		return nil, err
	}
	for _, socket := range sockets {
		l, err := o.newPassed(socket)
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// passedListener accepts at a socket that another process keeps open. When this one is
// closed, clients that wait there are left to the next process that gets the socket: it
// must not be shut down, nor is its queue emptied.
type passedListener struct {
	net.Listener
	keepalive net.KeepAliveConfig
}

// newPassed sets on a socket what listenConfig sets on those that are opened here.
func (o *Options) newPassed(l net.Listener) (*passedListener, error) {
	tcp, ok := l.(*net.TCPListener)
	if ok && hasSocketOptions {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := o.controlPassed(raw); err != nil {
			return nil, fmt.Errorf("listen at the passed socket %s: %w", l.Addr(), err)
		}
	}
	return &passedListener{Listener: l, keepalive: o.keepalive()}, nil
}

// controlPassed also takes back what an earlier process has set. A socket that isn't of
// plain TCP may not know the option.
func (o *Options) controlPassed(raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		if o.TCPUserTimeout > 0 || userTimeout(int(fd)) > 0 {
			failed = setUserTimeout(int(fd), o.TCPUserTimeout)
		}
	})
	return errors.Join(err, failed)
}

func (l *passedListener) Accept() (net.Conn, error) {
	client, err := l.Listener.Accept()
	if tcp, ok := client.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetKeepAliveConfig(l.keepalive)
	}
	return client, err
}

// SetDeadline ends an Accept that waits.
func (l *passedListener) SetDeadline(t time.Time) error {
	return l.Listener.(interface{ SetDeadline(time.Time) error }).SetDeadline(t)
}

// sharesListeners reports whether another process may accept clients at the addresses
// once this one doesn't.
func (s *Server) sharesListeners() bool {
	if s.options.ReusePort {
		return true
	}
	for _, l := range s.listeners {
		if _, ok := l.(*passedListener); ok {
			return true
		}
	}
	return false
}
