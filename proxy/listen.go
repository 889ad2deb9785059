package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Listen opens the addresses of Options.Listen. It must be called once, before Serve.
func (s *Server) Listen() error {
	s.warnOfDescriptors()
	for _, at := range s.options.Listen {
		opened, err := s.options.open(strings.TrimSpace(at))
		s.listeners = append(s.listeners, opened...)
		if err != nil {
			s.closeListeners()
			return err
		}
	}
	return nil
}

// ListenAdmin opens another address, host:port or fd:NAME, with the same options, so that
// a process that takes over from this one can open it, too. The caller serves and closes
// it; with ReusePort the server closes it when it drains. It must not be called after
// Serve.
func (s *Server) ListenAdmin(at string) (net.Listener, error) {
	return s.listenHTTP(at, s.options.listenTCP)
}

// ListenAPI is ListenAdmin for an address that may be a Unix socket, too.
func (s *Server) ListenAPI(at string) (net.Listener, error) {
	return s.listenHTTP(strings.TrimSpace(at), s.options.listen)
}

// listenHTTP opens an address by listen, or returns the inherited socket that it names.
func (s *Server) listenHTTP(at string, listen func(string) (net.Listener, error)) (net.Listener, error) {
	if name, passed := inheritedName(at); passed {
		all, err := s.options.inheritedSockets(name)
		if err == nil && len(all) > 1 {
			err = fmt.Errorf("listen %s: %d sockets of that name were passed; HTTP is served at one", at, len(all))
		}
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	l, err := listen(at)
	if err == nil {
		s.httpListeners = append(s.httpListeners, l)
	}
	return l, err
}

// open opens the listeners of an address: one, or all inherited ones of a name. On an
// error the caller closes the listeners that it returns.
func (o *Options) open(at string) ([]net.Listener, error) {
	if name, passed := inheritedName(at); passed {
		return o.listenInherited(name)
	}
	l, err := o.listen(at)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

func (o *Options) listen(at string) (net.Listener, error) {
	name, isUnix := strings.CutPrefix(at, "unix:")
	switch {
	case !isUnix:
		return o.listenTCP(at)
	case abstract(name):
		return net.Listen("unix", name)
	}
	return o.listenUnix(name)
}

func (o *Options) listenTCP(at string) (net.Listener, error) {
	l, err := o.listenConfig().Listen(context.Background(), "tcp", at)
	if errors.Is(err, syscall.EADDRINUSE) && o.ReusePort {
		return nil, fmt.Errorf("%w (by a process that was started without WIREFENCE_REUSE_PORT=true, or by another user)", err)
	}
	return l, err
}

// unixListener remembers its socket's file, which another process may replace.
type unixListener struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// socketMode lets every user connect, as PostgreSQL's unix_socket_permissions does. The
// folder's permissions restrict access.
const socketMode = 0o777

// listenUnix opens a socket in the file system. It replaces the socket of a process that
// has ended; with ReusePort also that of a running process, by an atomic rename.
func (o *Options) listenUnix(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		if !o.ReusePort {
			return nil, fmt.Errorf("listen unix:%s: another process accepts connections there", path)
		}
	}
	if file, err := os.Lstat(path); err == nil && file.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("listen unix:%s: the file is no socket", path)
	}
	// In the same folder, for the rename, and short: the path of a socket is limited.
	temporary := filepath.Join(filepath.Dir(path), fmt.Sprintf(".wf-%d", os.Getpid()))
	_ = os.Remove(temporary)
	bound, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, err
	}
	bound.SetUnlinkOnClose(false)
	l := &unixListener{UnixListener: bound, path: path}
	err = os.Chmod(temporary, socketMode)
	if err == nil {
		l.file, err = os.Stat(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		_ = bound.Close()
		return nil, err
	}
	return l, nil
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close closes the socket, and removes its file unless another process has replaced it.
func (l *unixListener) Close() error {
	if file, err := os.Stat(l.path); err == nil && os.SameFile(file, l.file) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// Addrs are the addresses at which the server listens.
func (s *Server) Addrs() []net.Addr {
	var all []net.Addr
	for _, l := range s.listeners {
		all = append(all, l.Addr())
	}
	return all
}

// closeListeners serves the clients in the backlogs, and closes the listeners. Clients in
// the backlog of an inherited socket wait for the next process. It may be called twice.
func (s *Server) closeListeners() {
	s.closingListeners.Store(true)
	for _, l := range s.listeners {
		if quiet, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
			_ = quiet.SetDeadline(past)
		}
	}
	s.accepting.Wait()
	for _, l := range s.listeners {
		if waiting, ok := l.(syscall.Conn); ok {
			_ = takeBacklog(waiting, func(client net.Conn) {
				if tcp, ok := client.(*net.TCPConn); ok {
					_ = tcp.SetKeepAliveConfig(s.options.keepalive())
				}
				s.startHandling(client)
			})
		}
		_ = l.Close()
	}
}
