package servers

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
)

// Link is a network between clients and a server that can fail: a relay of TCP
// connections. It is safe for concurrent use.
type Link struct {
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	target string
	change *sync.Cond
	cut    bool
	away   bool // a new connection is closed as soon as it is accepted
	turned int  // how many were
	closed bool
	held   [2]bool // by direction
	ends   map[net.Conn]struct{}
}

// Directions of a Link.
const (
	requests = iota
	answers
)

// StartLink makes a network to a server's address, which passes everything on.
func StartLink(target string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Link{listener: listener, target: target, ends: map[net.Conn]struct{}{}}
	l.change = sync.NewCond(&l.mu)
	l.running.Go(l.accept)
	return l, nil
}

// Addr is host:port that clients connect to.
func (l *Link) Addr() string { return l.listener.Addr().String() }

func (l *Link) port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Cut resets all connections, and each new one, until Restore.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.resetLocked()
}

// TurnAway resets all connections, and until Restore accepts each new one and closes it at once, as a
// balancer does that has no server.
func (l *Link) TurnAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away, l.turned = true, 0
	l.resetLocked()
}

// TurnedAway is how many connections were closed at once since TurnAway.
func (l *Link) TurnedAway() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turned
}

// Hold keeps back what is sent in either direction. Connections stay, new ones
// are accepted, and Restore delivers what was kept, however late: as a network
// does that loses packets for a while.
func (l *Link) Hold() { l.hold(true, true) }

// HoldRequests lets answers through and keeps back the requests until Restore.
func (l *Link) HoldRequests() { l.hold(true, false) }

// HoldAnswers lets requests through and keeps back the answers until Restore.
func (l *Link) HoldAnswers() { l.hold(false, true) }

func (l *Link) hold(directions ...bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	copy(l.held[:], directions)
	l.change.Broadcast()
}

// Restore ends every failure.
func (l *Link) Restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.away, l.held = false, false, [2]bool{}
	l.change.Broadcast()
}

// Retarget leads new connections to another server's address. Open ones stay where they are.
func (l *Link) Retarget(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// Close ends the link and its connections. It may be called twice.
func (l *Link) Close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed, l.cut = true, true
	l.resetLocked()
	l.mu.Unlock()
	l.running.Wait()
}

// resetLocked breaks all connections, so that what they still have is lost.
func (l *Link) resetLocked() {
	for end := range l.ends {
		reset(end)
	}
	clear(l.ends)
	l.change.Broadcast()
}

func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err == nil {
			l.running.Go(func() { l.relay(client) })
		}
	}
}

// relay owns the client's connection.
func (l *Link) relay(client net.Conn) {
	if !l.add(client) {
		return
	}
	if l.turns() {
		_ = client.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, client)
		l.remove(client)
		return
	}
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		l.remove(client)
		return
	}
	if !l.add(server) {
		l.remove(client)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pass(server, client, requests) })
	both.Go(func() { l.pass(client, server, answers) })
	both.Wait()
	l.remove(client, server)
}

// add takes a connection under the link's control, or resets it if there is no
// network just now.
func (l *Link) add(end net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		reset(end)
		return false
	}
	l.ends[end] = struct{}{}
	return true
}

func (l *Link) turns() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		l.turned++
	}
	return l.away
}

// remove resets connections that are still open. Both sides have seen the end, or one of
// them is gone.
func (l *Link) remove(ends ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range ends {
		delete(l.ends, end)
		reset(end)
	}
}

// pass copies until one side breaks. An orderly end is passed on too, and what
// is held is delivered before it.
func (l *Link) pass(to, from net.Conn, direction int) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !l.await(direction, to, from) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				_ = from.(*net.TCPConn).CloseRead()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		} else if err != nil {
			l.remove(to, from)
			return
		}
	}
}

// await returns when the direction is open, or false when the connection is not.
func (l *Link) await(direction int, ends ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := func(end net.Conn) bool { _, ok := l.ends[end]; return ok }
	for l.held[direction] && slices.ContainsFunc(ends, open) {
		l.change.Wait()
	}
	return !slices.ContainsFunc(ends, func(end net.Conn) bool { return !open(end) })
}
