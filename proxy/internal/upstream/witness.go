package upstream

import (
	"fmt"
	"time"
)

// Confirm records that a witness has confirmed the server as the leader, in its answer to a
// question that was sent at this time.
func (h *Host) Confirm(sent time.Time) { h.confirmed.Store(&sent) }

// Witnessed reports whether there is a witness.
func (u *Upstream) Witnessed() bool { return u.bound > 0 }

// Confirmed reports whether the witness's last confirmation of the server counts at this time. The
// monotonic clock stops while the machine is suspended, and the wall clock may be set back: the
// one by which more time has passed decides.
func (u *Upstream) Confirmed(h *Host, at time.Time) bool {
	sent := h.confirmed.Load()
	return sent != nil && max(at.Sub(*sent), at.Round(0).Sub(sent.Round(0))) <= u.bound
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
