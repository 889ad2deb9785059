package proxy

import (
	"context"
	"fmt"
	"net"
	"testing"
)

func TestAddressOf(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::1": "2001:db8:1:2::/64", "::1": "::/64",
	} {
		if got := addressOf(&net.TCPAddr{IP: net.ParseIP(ip), Port: 5}); got != want {
			t.Errorf("%s: %q, not %q", ip, got, want)
		}
	}
	if got := addressOf(&net.UnixAddr{Name: "/tmp/s", Net: "unix"}); got != "" {
		t.Errorf("a Unix socket: %q", got)
	}
}

// arrivals drive limits without connections.
type arrivals struct {
	*testing.T
	limits
	o   Options
	all map[string]*pending
}

func (a *arrivals) arrives(name, address string) string {
	p := &pending{address: address, awaitsClient: true}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.evict = func(limit *limitError) { p.cancel(limit) }
	a.all[name] = p
	return reasonOf(a.addPending(&a.o, p))
}

func (a *arrivals) enters(name, user string) string {
	return reasonOf(a.countClient(&a.o, a.all[name], user))
}

// gone fails the test unless just these have given way, for which reason.
func (a *arrivals) gone(want map[string]string) {
	a.Helper()
	for name, p := range a.all {
		limit, _ := context.Cause(p.ctx).(*limitError)
		if got := reasonOf(limit); got != want[name] {
			a.Errorf("%s has given way for %q, not %q", name, got, want[name])
		}
	}
}

func reasonOf(e *limitError) string {
	if e == nil {
		return ""
	}
	return e.reason
}

// The oldest silent connection of an address gives way to a new one of it, and the
// oldest of the address that has the most where there are too many; one that the proxy
// works for never does.
func TestSilenceGivesWay(t *testing.T) {
	a := &arrivals{T: t, o: Options{MaxConnections: 5 - extraLogins, MaxAddressLogins: 2}, all: map[string]*pending{}}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, not %q", what, got, want)
		}
	}
	for _, n := range []string{"a1", "a2", "b1", "u1", "u2"} {
		address := n[:1]
		if address == "u" {
			address = ""
		}
		expect(n, a.arrives(n, address), "")
	}
	a.gone(nil)
	expect("a3", a.arrives("a3", "a"), "")
	a.gone(map[string]string{"a1": "address_limit"})
	expect("c1", a.arrives("c1", "c"), "")
	a.gone(map[string]string{"a1": "address_limit", "a2": "arriving"})
	a.setAwaitsClient(a.all["b1"], false)
	expect("c2", a.arrives("c2", "c"), "") // Unix sockets, too, where it is all of them
	a.gone(map[string]string{"a1": "address_limit", "a2": "arriving", "u1": "arriving"})
	a.setAwaitsClient(a.all["c1"], false)
	a.setAwaitsClient(a.all["c2"], false)
	expect("c3, beside two that log in", a.arrives("c3", "c"), "address_limit")
	a.loggedIn(a.all["c1"])
	expect("c3 again", a.arrives("c3", "c"), "")
	for _, p := range a.all {
		a.remove(p)
	}
	if a.pending.Len() != 0 || len(a.byAddress) != 0 || a.clients != 0 || len(a.byUser) != 0 {
		t.Errorf("left over: %d, %v, %d, %v", a.pending.Len(), a.byAddress, a.clients, a.byUser)
	}
}

// However fast one address opens connections, those of others keep their places: it
// only hurts itself.
func TestOneAddressOnlyHurtsItself(t *testing.T) {
	a := &arrivals{T: t, o: Options{MaxConnections: 20 - extraLogins, MaxAddressLogins: 18}, all: map[string]*pending{}}
	a.arrives("first", "a")
	a.arrives("local", "")
	for i := range 50 {
		a.arrives(fmt.Sprint("flood", i), "b")
	}
	a.arrives("second", "a")
	a.arrives("third", "c")
	for i := range 200 {
		a.arrives(fmt.Sprint("again", i), "b")
	}
	for _, name := range []string{"first", "second", "third", "local"} {
		if err := context.Cause(a.all[name].ctx); err != nil {
			t.Errorf("%s gave way: %v", name, err)
		}
	}
	if len(a.byAddress) != 4 || a.pending.Len() != 20 {
		t.Errorf("%d addresses and %d connections are pending", len(a.byAddress), a.pending.Len())
	}
}

// A client that was asked for its password and says nothing gives its place to
// another, its user's place, too. One that has logged in keeps it.
func TestSilenceAtThePasswordGivesWay(t *testing.T) {
	a := &arrivals{T: t, o: Options{MaxConnections: 3, MaxUserConnections: 2, MaxAddressLogins: 100}, all: map[string]*pending{}}
	enter := func(name, user, want string) {
		t.Helper()
		a.arrives(name, "a")
		if got := a.enters(name, user); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	enter("1", "app", "")
	a.loggedIn(a.all["1"])
	enter("2", "app", "")
	enter("3", "app", "user_limit") // the proxy works for the second
	a.setAwaitsClient(a.all["2"], true)
	enter("4", "app", "")
	a.gone(map[string]string{"2": "user_limit"})
	if got := a.enters("2", "app"); got != "user_limit" {
		t.Errorf("one that has given way enters: %q", got)
	}
	enter("5", "b", "")
	a.setAwaitsClient(a.all["5"], true)
	enter("6", "c", "")
	a.gone(map[string]string{"2": "user_limit", "5": "limit"})
	enter("7", "d", "limit")
	if gave := a.setEvict(a.all["5"], nil); gave == nil {
		t.Error("one that has given way becomes a session")
	}
	if a.clients != 3 {
		t.Errorf("%d clients are counted", a.clients)
	}
}
