package upstream

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/timelines"
)

// A confirmation counts for the bound, from when its question was sent, by the clock by which more
// time has passed. A primary that isn't confirmed counts as left behind if another one is.
func TestConfirmations(t *testing.T) {
	u, err := New("postgres://one,two/", Options{Dialer: &net.Dialer{}, Bound: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	one, two := u.Hosts[0], u.Hosts[1]
	now := time.Now()
	if u.Confirmed(one, now) {
		t.Error("confirmed before any question")
	}
	one.Confirm(now, netip.Addr{})
	for at, want := range map[time.Time]bool{
		now: true, now.Add(time.Minute): true, now.Add(time.Minute + 1): false,
		now.Add(-time.Hour):                        true,  // a call that began before
		now.Round(0).Add(2 * time.Minute):          false, // the monotonic clock stood still, as in a suspended machine
		now.Add(2 * time.Minute).Add(-time.Hour):   true,
		now.Add(59 * time.Second).Add(time.Second): true,
	} {
		if got := u.Confirmed(one, at); got != want {
			t.Errorf("%v later: %v", at.Sub(now), got)
		}
	}
	for _, h := range u.Hosts {
		h.standing = Standing{Place: timelines.Place{System: "7", Primary: true, Timeline: 1}, Known: true}
	}
	if err := u.Behind(one); err != nil {
		t.Error(err)
	}
	if err := u.Behind(two); err == nil || !strings.Contains(err.Error(), "confirms one:5432") {
		t.Errorf("two isn't confirmed: %v", err)
	}
	two.standing.Primary = false
	if err := u.Behind(two); err != nil {
		t.Errorf("a standby: %v", err)
	}
	two.standing.Primary = true
	one.Confirm(now.Add(-time.Hour), netip.Addr{})
	if err := u.Behind(two); err != nil {
		t.Errorf("nobody is confirmed: %v", err)
	}
	one.Confirm(now, netip.Addr{})
	if one.Withdraw(); !u.Confirmed(one, now) {
		t.Error("Patroni's no counts at once")
	}
	one.Confirm(now, netip.MustParseAddr("10.0.0.1"))
	if one.Withdraw(); u.Confirmed(one, now) {
		t.Error("CloudNativePG's no doesn't count at once")
	}
	leader, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, c := range []struct {
		confirmed, server netip.Addr
		want              bool
	}{{leader, leader, true}, {leader, other, false}, {leader, netip.Addr{}, false}, {netip.Addr{}, other, true}} {
		one.Confirm(now, c.confirmed)
		if got := u.ConfirmedAt(one, now, c.server); got != c.want || u.ConfirmedAt(one, now.Add(time.Hour), c.server) {
			t.Errorf("%v is confirmed, the server is %v: %v", c.confirmed, c.server, got)
		}
	}
}
