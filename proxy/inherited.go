package proxy

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// inheritedPrefix begins an address that names sockets which this process has inherited:
// Options.Sockets.
const inheritedPrefix = "fd:"

// inheritedName returns the name in an address of inherited sockets.
func inheritedName(at string) (string, bool) {
	return strings.CutPrefix(strings.TrimSpace(at), inheritedPrefix)
}

// inheritedSockets returns the inherited sockets of a name.
func (o *Options) inheritedSockets(name string) ([]net.Listener, error) {
	if all := o.Sockets[name]; len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("listen %s%s: no socket of that name was passed to this process; systemd passes those of a socket unit with FileDescriptorName=%s",
		inheritedPrefix, name, name)
}

// listenInherited returns listeners for all inherited sockets of a name.
func (o *Options) listenInherited(name string) (all []net.Listener, err error) {
	sockets, err := o.inheritedSockets(name)
	if err != nil {
		return nil, err
	}
	for _, socket := range sockets {
		l, err := o.newInheritedListener(socket)
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// inheritedListener accepts at a socket that another process keeps open. The clients in
// its backlog wait for the next process that gets the socket. So it is no syscall.Conn,
// whose backlog closeListeners would empty and shut down.
type inheritedListener struct {
	net.Listener
	keepalive net.KeepAliveConfig
}

// newInheritedListener sets the options on a socket that listenConfig sets on new ones.
func (o *Options) newInheritedListener(l net.Listener) (*inheritedListener, error) {
	tcp, ok := l.(*net.TCPListener)
	if ok && hasSocketOptions {
		raw, err := tcp.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := o.setInheritedOptions(raw); err != nil {
			return nil, fmt.Errorf("listen at the passed socket %s: %w", l.Addr(), err)
		}
	}
	return &inheritedListener{Listener: l, keepalive: o.keepalive()}, nil
}

// setInheritedOptions also resets an option that an earlier process has set. It leaves
// sockets alone that need no change: one that isn't plain TCP may not know the option.
func (o *Options) setInheritedOptions(raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		if o.TCPUserTimeout > 0 || userTimeout(int(fd)) > 0 {
			failed = setUserTimeout(int(fd), o.TCPUserTimeout)
		}
	})
	return errors.Join(err, failed)
}

func (l *inheritedListener) Accept() (net.Conn, error) {
	client, err := l.Listener.Accept()
	if tcp, ok := client.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetKeepAliveConfig(l.keepalive)
	}
	return client, err
}

// SetDeadline ends a blocked Accept; see net.TCPListener.
func (l *inheritedListener) SetDeadline(t time.Time) error {
	return l.Listener.(interface{ SetDeadline(time.Time) error }).SetDeadline(t)
}

// sharesListeners reports whether another process may accept clients at the same
// addresses.
func (s *Server) sharesListeners() bool {
	if s.options.ReusePort {
		return true
	}
	for _, l := range s.listeners {
		if _, ok := l.(*inheritedListener); ok {
			return true
		}
	}
	return false
}
