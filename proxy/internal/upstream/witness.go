package upstream

import (
	"fmt"
	"net/netip"
	"time"
)

// confirmation is the last one of a witness.
type confirmation struct {
	sent    time.Time  // when the question was sent
	address netip.Addr // of the leader behind the host; zero if that is the host's own
}

// Confirm records that a witness has confirmed the server as the leader, in its answer to a
// question that was sent at this time. Where several servers share the host's address, only the one
// is confirmed that has this address itself.
func (h *Host) Confirm(sent time.Time, address netip.Addr) {
	h.confirmed.Store(&confirmation{sent, address})
}

// Withdraw forgets the last confirmation where the leader is told by its address: the witness says that
// there is none, as CloudNativePG does while it promotes, without waiting for the bound. Patroni waits,
// and says no for a moment after its own restart, so there the bound decides.
func (h *Host) Withdraw() {
	if c := h.confirmed.Load(); c != nil && c.address.IsValid() {
		h.confirmed.Store(nil)
	}
}

// Witnessed reports whether there is a witness.
func (u *Upstream) Witnessed() bool { return u.bound > 0 }

// Confirmed reports whether the witness's last confirmation of the server counts at this time. The
// monotonic clock stops while the machine is suspended, and the wall clock may be set back: the
// one by which more time has passed decides.
func (u *Upstream) Confirmed(h *Host, at time.Time) bool {
	_, confirmed := u.Leader(h, at)
	return confirmed
}

// Leader is Confirmed, and returns the leader's own address where several servers share the host's.
func (u *Upstream) Leader(h *Host, at time.Time) (address netip.Addr, confirmed bool) {
	c := h.confirmed.Load()
	if c == nil || max(at.Sub(c.sent), at.Round(0).Sub(c.sent.Round(0))) > u.bound {
		return address, false
	}
	return c.address, true
}

// ConfirmedAt is Confirmed for a connection to the host at whose end the server has this address.
func (u *Upstream) ConfirmedAt(h *Host, at time.Time, address netip.Addr) bool {
	leader, confirmed := u.Leader(h, at)
	return confirmed && (!leader.IsValid() || leader == address)
}

// superseded returns an error for a primary that the witness doesn't confirm, while it confirms
// another one.
func (u *Upstream) superseded(h *Host) error {
	now := time.Now()
	if !u.Witnessed() || !h.Standing().Primary || u.Confirmed(h, now) {
		return nil
	}
	for _, other := range u.Hosts {
		if other != h && u.Confirmed(other, now) {
			return fmt.Errorf("%s: the server is a primary, but the witness confirms %s as the leader", h, other)
		}
	}
	return nil
}
