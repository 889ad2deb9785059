package proxy

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"syscall"
	"time"
)

// keepaliveProbes is how many probes a peer may leave unanswered. Their interval is a
// sixth of TCPKeepalive, so a dead peer is noticed after twice TCPKeepalive.
const keepaliveProbes = 6

// keepalive returns the keepalive settings of both sides' connections.
func (o *Options) keepalive() net.KeepAliveConfig {
	if o.TCPKeepalive < 0 {
		return net.KeepAliveConfig{}
	}
	return net.KeepAliveConfig{
		Enable: true, Idle: o.TCPKeepalive, Interval: max(o.TCPKeepalive/keepaliveProbes, time.Second), Count: keepaliveProbes,
	}
}

// dialer returns the dialer for connections to servers.
func (o *Options) dialer() *net.Dialer {
	return &net.Dialer{KeepAlive: -1, KeepAliveConfig: o.keepalive(), Control: o.controlSocket(false)}
}

// listenConfig returns the settings of listening sockets.
func (o *Options) listenConfig() *net.ListenConfig {
	return &net.ListenConfig{KeepAlive: -1, KeepAliveConfig: o.keepalive(), Control: o.controlSocket(true)}
}

// controlSocket returns a function that sets options before a socket is bound or
// connected. Accepted sockets inherit them.
func (o *Options) controlSocket(listens bool) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) {
			if o.TCPUserTimeout > 0 {
				failed = setUserTimeout(int(fd), o.TCPUserTimeout)
			}
			if failed == nil && listens && o.ReusePort {
				failed = setReusePort(int(fd))
			}
		})
		return errors.Join(err, failed)
	}
}

// checkSockets validates the options of sockets and addresses.
func (o *Options) checkSockets() error {
	if !hasSocketOptions && (o.ReusePort || o.TCPUserTimeout != 0) {
		return errors.New("WIREFENCE_REUSE_PORT and WIREFENCE_TCP_USER_TIMEOUT need Linux")
	}
	if o.TCPKeepalive >= 0 && o.TCPKeepalive < time.Second {
		return errors.New("TCP keepalive is less than a second")
	}
	if o.TCPUserTimeout < 0 || o.TCPUserTimeout > 0 && o.TCPUserTimeout < time.Millisecond || o.TCPUserTimeout.Milliseconds() > math.MaxInt32 {
		return errors.New("TCP user timeout is less than a millisecond, or more than a socket can have")
	}
	for _, at := range o.Listen {
		if name, passed := inheritedName(at); passed {
			if _, err := o.inheritedSockets(name); err != nil {
				return err
			}
			continue
		}
		name, isUnix := strings.CutPrefix(strings.TrimSpace(at), "unix:")
		if isUnix && o.ReusePort && abstract(name) {
			return fmt.Errorf("listen %s: an abstract socket can't be taken over by another process; name a path, or don't reuse the port", at)
		}
		if isUnix && (name == "" || name == "@") {
			return fmt.Errorf("listen %q: the socket has no name", at)
		}
	}
	return nil
}

// abstract reports whether a socket has one of Linux' abstract names, which are in no
// file system.
func abstract(name string) bool { return strings.HasPrefix(name, "@") }
