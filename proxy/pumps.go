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

// pumps drive a session where there is no loop, with two goroutines: clientPump reads
// the client and writes to the server, serverPump the other way round.
type pumps struct {
	entering
	wake  chan struct{} // asks clientPump to call the core although nothing was read
	ended chan struct{} // closed when serverPump has ended
}

// loops are there on Linux only.
type loops struct{}

func (*loops) start() error { return nil }
func (*loops) stop()        {}

// carry serves the session until either side ends. What the client and the server
// have sent already is in the buffers.
func (c *conn) carry(fromClient, fromServer *buffer) {
	p := &pumps{entering: entering{c}, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	c.withCore(func(*session.Session) { c.driver = p })
	var both sync.WaitGroup
	both.Go(func() { c.guard(func() { p.serverPump(fromServer) }) })
	c.guard(func() { p.clientPump(fromClient) })
	both.Wait()
	c.hangUp()
}

func (p *pumps) nudge() { _ = p.up.SetReadDeadline(past) }

// send makes clientPump call the core, whether it waits for the client's bytes
// or for replies. The order of the two steps matters: the deadline is lifted
// only after the channel was read.
func (p *pumps) send() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	_ = p.client.SetReadDeadline(past)
}

// clientPump carries what the client sends to the server until either ends. It
// is the only one to write to the server.
func (p *pumps) clientPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: p.up}
	for {
		used, held, over, done := p.fromClient(in.bytes(), &out)
		err := to.flush(&out)
		in.used(used)
		switch {
		case over:
			p.nudge() // serverPump says goodbye
			return
		case err != nil:
			return // serverPump finds the same, and perhaps the server's last words
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

// serverPump carries what the server sends to the client until either ends. It
// is the only one to write to the client.
func (p *pumps) serverPump(in *buffer) {
	out := session.Out{}
	to := writer{conn: p.client}
	defer p.goodbye(&to)
	for {
		used, wake, over := p.fromServer(in.bytes(), &out)
		if wake {
			p.send()
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

// goodbye ends the session from the server's side: the client gets the FATAL
// that is due, if any, and both connections are closed.
func (p *pumps) goodbye(to *writer) {
	defer func() {
		close(p.ended)
		p.close()
	}()
	if words := p.lastWords(nil); len(words) > 0 && to.err == nil {
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
