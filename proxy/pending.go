package proxy

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// pending is a connection whose client has not logged in yet. It ends when the
// login has succeeded or failed, or when it gives way to another.
type pending struct {
	// ctx ends with the server's readiness for logins, and when this one gives
	// way: then its cause is the *limitError.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The limits' lock guards what follows.
	address string            // that is bounded; "" for a Unix socket
	origin  *origin           // of those that have this address; set where place is
	place   *list.Element     // in the limits' list; nil once it has logged in, ended or given way
	silent  bool              // the proxy waits for the client: it may have to give way
	counted bool              // it is one of the clients
	user    string            // of a counted one
	giveWay func(*limitError) // ends it; called without the lock
	gave    *limitError       // for which it gave way
}

// origin counts the pending connections of one address.
type origin struct{ pending int }

func newPending(entering context.Context, client net.Conn) *pending {
	p := &pending{address: addressOf(client.RemoteAddr()), silent: true}
	p.ctx, p.cancel = context.WithCancelCause(entering)
	p.giveWay = func(limit *limitError) { p.cancel(limit) }
	return p
}

// addressOf is what connections that a client can open at will have in common: an
// IPv4 address, or the /64 that an IPv6 host has to itself.
func addressOf(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap()
	if prefix, err := ip.Prefix(64); err == nil && ip.Is6() {
		return prefix.String()
	}
	return ip.String()
}

// dismissal is what a client is told whose login was ended from outside; nil if
// it was not.
func dismissal(ctx context.Context) *wire.Error {
	cause := context.Cause(ctx)
	if limit := (*limitError)(nil); errors.As(cause, &limit) {
		return &limit.say
	}
	if errors.Is(cause, errDraining) {
		return &shutdownError
	}
	return nil
}

// arrive adds a connection that was accepted to those that are pending. Where a
// bound is reached, one that keeps the proxy waiting gives way to it, so that
// silence keeps nobody out; if there is none, the new one is refused.
func (l *limits) arrive(o *Options, p *pending) *limitError {
	var ends ending
	defer ends.run() // behind the unlock
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byAddress[p.address]; p.address != "" && of != nil && of.pending >= o.MaxAddressLogins {
		limit := &limitError{"address_limit", o.MaxAddressLogins, wire.Error{
			Code: "53300", Message: "too many connections from one address that have not logged in",
			Hint: "The limit is WIREFENCE_MAX_ADDRESS_LOGINS."}}
		if !l.makeWay(limit, &ends, func(other *pending) bool { return other.address == p.address }) {
			return limit
		}
	}
	if total := o.MaxConnections + loginsBeside; l.pending.Len() >= total {
		limit := &limitError{"arriving", total, wire.Error{
			Code: "53300", Message: "too many connections that have not logged in",
			Hint: "The limit is a hundred more than WIREFENCE_MAX_CONNECTIONS."}}
		if !l.makeWay(limit, &ends, func(*pending) bool { return true }) {
			return limit
		}
	}
	if l.byAddress == nil {
		l.byAddress = map[string]*origin{}
	}
	if p.origin = l.byAddress[p.address]; p.origin == nil {
		p.origin = &origin{}
		l.byAddress[p.address] = p.origin
	}
	p.origin.pending++
	p.place = l.pending.PushBack(p)
	return nil
}

// waits notes whether the proxy waits for the client of a pending connection.
func (l *limits) waits(p *pending, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.silent = silent
}

// handOver says how a pending connection is ended from now on. It returns the
// bound for which the connection has given way already, if it has.
func (l *limits) handOver(p *pending, giveWay func(*limitError)) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.giveWay = giveWay
	return p.gave
}

// loggedIn ends the login of a connection, which goes on to be counted as a client.
// It returns the bound for which the connection has given way, if it has.
func (l *limits) loggedIn(p *pending) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(p)
	return p.gave
}

// gaveWay returns the bound for which a connection has given way, if it has.
func (l *limits) gaveWay(p *pending) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.gave
}

// makeWay ends a pending connection that keeps the proxy waiting, of those that match:
// the oldest of the address that has the most, so that no address crowds out others. It
// reports whether there was one. The caller holds the lock, and lets ends run without it.
func (l *limits) makeWay(limit *limitError, ends *ending, match func(*pending) bool) bool {
	var most *pending
	for e := l.pending.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pending)
		if p.silent && match(p) && (most == nil || p.origin.pending > most.origin.pending) {
			most = p
		}
	}
	if most == nil {
		return false
	}
	most.gave = limit
	l.settle(most)
	l.discount(most)
	giveWay := most.giveWay
	*ends = append(*ends, func() { giveWay(limit) })
	return true
}

// settle takes a connection out of those that are pending, if it is one.
func (l *limits) settle(p *pending) {
	if p.place == nil {
		return
	}
	l.pending.Remove(p.place)
	p.place = nil
	if p.origin.pending--; p.origin.pending == 0 {
		delete(l.byAddress, p.address)
	}
}

// ending ends connections that give way.
type ending []func()

func (e *ending) run() {
	for _, end := range *e {
		end()
	}
}
