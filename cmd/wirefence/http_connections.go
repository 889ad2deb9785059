package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// httpConnections are the connections of a listener, up to a limit. At the limit a new one
// takes the place of the one that has been without a request for longest: neither clients
// that keep connections for later nor those that send nothing keep a probe waiting. A
// connection is in a request from the time at which a handler serves it until its answer was
// written, but not while its client owes a part of the body.
type httpConnections struct {
	net.Listener
	most int

	mu      sync.Mutex
	changed *sync.Cond // a connection has ended or its last request has, or the listener is closed
	open    map[*httpConnection]bool
	closed  bool
}

// httpConnection is one of them. The fields behind the owner are guarded by its mutex.
type httpConnection struct {
	net.Conn
	owner     *httpConnections
	inRequest bool
	since     time.Time // when it was accepted, or its last request ended
}

func limitHTTP(l net.Listener, most int) *httpConnections {
	all := &httpConnections{Listener: l, most: most, open: map[*httpConnection]bool{}}
	all.changed = sync.NewCond(&all.mu)
	return all
}

// Accept waits for room while all connections are in a request.
func (all *httpConnections) Accept() (net.Conn, error) {
	conn, err := all.Listener.Accept()
	if err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for len(all.open) >= all.most && !all.closed {
		if idle := all.longestIdle(); idle != nil {
			delete(all.open, idle)
			_ = idle.Conn.Close()
			continue
		}
		all.changed.Wait()
	}
	if all.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c := &httpConnection{Conn: conn, owner: all, since: time.Now()}
	all.open[c] = true
	return c, nil
}

func (all *httpConnections) longestIdle() (longest *httpConnection) {
	for c := range all.open {
		if !c.inRequest && (longest == nil || c.since.Before(longest.since)) {
			longest = c
		}
	}
	return longest
}

func (all *httpConnections) Close() error {
	all.mu.Lock()
	all.closed = true
	all.changed.Broadcast()
	all.mu.Unlock()
	return all.Listener.Close()
}

func (c *httpConnection) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.changed.Broadcast()
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

func (c *httpConnection) enter(request bool) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	if c.inRequest = request; !request {
		c.since = time.Now()
		c.owner.changed.Broadcast()
	}
}

type httpConnectionKey struct{}

// serve has a server note which of the connections are in a request.
func (all *httpConnections) serve(s *http.Server) {
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(httpConnectionKey{}).(*httpConnection)
		c.enter(true)
		if r.ContentLength == 0 || r.ProtoMajor > 1 { // HTTP/2 waits for no body
			next.ServeHTTP(w, r)
			return
		}
		body, own := &httpBody{ReadCloser: r.Body, of: c}, *r // the server needs its own, with its own body
		own.Body = body
		next.ServeHTTP(w, &own)
		if !body.read { // the server waits for it, before the answer or behind one that closes the connection
			c.enter(false)
		}
	})
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, httpConnectionKey{}, httpConnectionOf(conn))
	}
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateIdle {
			httpConnectionOf(conn).enter(false)
		}
	}
}

// httpBody is the body of a request. Its reads wait for the client.
type httpBody struct {
	io.ReadCloser
	of   *httpConnection
	read bool // to its end
}

func (b *httpBody) Read(p []byte) (n int, err error) {
	b.of.enter(false)
	defer b.of.enter(true)
	n, err = b.ReadCloser.Read(p)
	b.read = b.read || errors.Is(err, io.EOF)
	return n, err
}

func httpConnectionOf(conn net.Conn) *httpConnection {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return conn.(*httpConnection)
}
