//go:build !linux || portable

package proxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// pumps is the driver without epoll, with two goroutines: clientPump reads the client and
// writes to the server, serverPump reads the server and writes to the client.
type pumps struct {
	loginDriver
	wake  chan struct{} // has clientPump call the core without new bytes
	ended chan struct{} // closed when serverPump has ended
}

// loops is empty here: without epoll, pumps carry every session.
type loops struct{}

func (*loops) start() error { return nil }
func (*loops) stop()        {}

// drive carries the session until either side ends. The buffers hold bytes that the
// client and the server have sent already.
func (c *conn) drive(fromClient, fromServer *buffer) {
	p := &pumps{loginDriver: loginDriver{c}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	c.withCore(func(*session.Session) { c.driver = p })
	var both sync.WaitGroup
	both.Go(func() { c.guard(func() { p.serverPump(fromServer) }) })
	c.guard(func() { p.clientPump(fromClient) })
	both.Wait()
	c.hangUp()
}

func (p *pumps) wakeServerSide() { _ = p.up.SetReadDeadline(past) }

// wakeClientSide makes clientPump call the core, whether it waits for the client's bytes
// or for replies. The order of the two steps matters: clientPump resets the deadline only
// after it has read the channel.
func (p *pumps) wakeClientSide() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	_ = p.client.SetReadDeadline(past)
}

// clientPump carries the client's bytes to the server until either ends. No other
// goroutine writes to the server.
func (p *pumps) clientPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: p.up}
	for {
		used, held, over, done := p.fromClient(in.bytes(), &out)
		err := to.flush(&out)
		in.used(used)
		switch {
		case over:
			p.wakeServerSide() // serverPump sends the FATAL
			return
		case err != nil:
			return // serverPump fails, too, after it has read the server's last error
		case done:
			closeWrite(p.up)
			return
		case held:
			select {
			case <-p.wake:
			case <-p.ended:
				return
			}
			continue
		}
		if _, err := in.read(p.client); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				select {
				case <-p.ended:
					return
				case <-p.wake:
				default:
				}
				_ = p.client.SetReadDeadline(never)
				continue
			}
			closeWrite(p.up)
			return
		}
	}
}

// serverPump carries the server's bytes to the client until either ends. No other
// goroutine writes to the client.
func (p *pumps) serverPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: p.client}
	defer p.end(&to)
	for {
		used, wake, over := p.fromServer(in.bytes(), &out)
		if wake {
			p.wakeClientSide()
		}
		if err := to.flush(&out); err != nil {
			return
		}
		in.used(used)
		if over {
			return
		}
		if _, err := in.read(p.up); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		_ = p.up.SetReadDeadline(never)
	}
}

// end sends the client the FATAL, if there is one, and closes both connections.
func (p *pumps) end(to *writer) {
	defer func() {
		close(p.ended)
		p.close()
	}()
	if words := p.appendFatal(nil); len(words) > 0 && to.err == nil {
		_ = p.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = p.client.Write(words)
	}
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
}
