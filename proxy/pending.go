package proxy

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// pending is a connection whose client has not logged in yet. It ends with its login, or
// when it is evicted for another connection.
type pending struct {
	// ctx ends with Server.loginCtx, and with the cause *limitError by an eviction.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The limits' lock guards the fields below.
	address      string            // see addressOf; "" for a Unix socket
	sameAddress  *addressLogins    // counts this address; set where element is
	element      *list.Element     // in limits.pending; nil once it has logged in, ended or was evicted
	awaitsClient bool              // the proxy waits for the client, so it may be evicted
	counted      bool              // limits.clients counts it
	user         string            // of a counted client
	evict        func(*limitError) // ends the connection; called without the lock
	evictedBy    *limitError       // the limit for which it was evicted
}

// addressLogins counts the pending connections of one address.
type addressLogins struct{ pending int }

func newPending(entering context.Context, client net.Conn) *pending {
	p := &pending{address: addressOf(client.RemoteAddr()), awaitsClient: true}
	p.ctx, p.cancel = context.WithCancelCause(entering)
	p.evict = func(limit *limitError) { p.cancel(limit) }
	return p
}

// addressOf returns the unit by which connections are limited: an IPv4 address, or the
// /64 of an IPv6 address, since one host may have all of it.
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

// loginEndError returns the FATAL for a login that an eviction or a drain has ended, nil
// if neither has.
func loginEndError(ctx context.Context) *wire.Error {
	cause := context.Cause(ctx)
	if limit := (*limitError)(nil); errors.As(cause, &limit) {
		return &limit.response
	}
	if errors.Is(cause, errDraining) {
		return &shutdownError
	}
	return nil
}

// addPending adds an accepted connection. At a limit it evicts one for which the proxy
// waits, so that silent connections keep nobody out; if there is none, it returns the
// limit.
func (l *limits) addPending(o *Options, p *pending) *limitError {
	var ends evictions
	defer ends.run() // behind the unlock
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byAddress[p.address]; p.address != "" && of != nil && of.pending >= o.MaxAddressLogins {
		limit := &limitError{"address_limit", o.MaxAddressLogins, wire.Error{
			Code: "53300", Message: "too many connections from one address that have not logged in",
			Hint: "The limit is WIREFENCE_MAX_ADDRESS_LOGINS."}}
		if !l.evictOldest(limit, &ends, func(other *pending) bool { return other.address == p.address }) {
			return limit
		}
	}
	if total := o.MaxConnections + extraLogins; l.pending.Len() >= total {
		limit := &limitError{"arriving", total, wire.Error{
			Code: "53300", Message: "too many connections that have not logged in",
			Hint: "The limit is a hundred more than WIREFENCE_MAX_CONNECTIONS."}}
		if !l.evictOldest(limit, &ends, func(*pending) bool { return true }) {
			return limit
		}
	}
	if l.byAddress == nil {
		l.byAddress = map[string]*addressLogins{}
	}
	if p.sameAddress = l.byAddress[p.address]; p.sameAddress == nil {
		p.sameAddress = &addressLogins{}
		l.byAddress[p.address] = p.sameAddress
	}
	p.sameAddress.pending++
	p.element = l.pending.PushBack(p)
	return nil
}

// setAwaitsClient sets whether the proxy waits for the client of a pending connection.
func (l *limits) setAwaitsClient(p *pending, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.awaitsClient = silent
}

// setEvict replaces the function that ends a pending connection. It returns the limit for
// which the connection was evicted before, if it was.
func (l *limits) setEvict(p *pending, giveWay func(*limitError)) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.evict = giveWay
	return p.evictedBy
}

// loggedIn ends the login of a connection, which still counts as a client. It returns the
// limit for which the connection was evicted, if it was.
func (l *limits) loggedIn(p *pending) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removePending(p)
	return p.evictedBy
}

// evictedBy returns the limit for which a connection was evicted, nil if it wasn't.
func (l *limits) evictedBy(p *pending) *limitError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.evictedBy
}

// evictOldest evicts a pending connection that matches and for which the proxy waits: the
// oldest one of the address that has the most, so that no address crowds out others. It
// reports whether there was one. The caller holds the lock, and runs ends after it.
func (l *limits) evictOldest(limit *limitError, ends *evictions, match func(*pending) bool) bool {
	var most *pending
	for e := l.pending.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pending)
		if p.awaitsClient && match(p) && (most == nil || p.sameAddress.pending > most.sameAddress.pending) {
			most = p
		}
	}
	if most == nil {
		return false
	}
	most.evictedBy = limit
	l.removePending(most)
	l.uncountClient(most)
	giveWay := most.evict
	*ends = append(*ends, func() { giveWay(limit) })
	return true
}

// removePending removes a connection from the pending ones. The caller holds the lock.
func (l *limits) removePending(p *pending) {
	if p.element == nil {
		return
	}
	l.pending.Remove(p.element)
	p.element = nil
	if p.sameAddress.pending--; p.sameAddress.pending == 0 {
		delete(l.byAddress, p.address)
	}
}

// evictions are the functions that end evicted connections.
type evictions []func()

func (e *evictions) run() {
	for _, end := range *e {
		end()
	}
}
