package migrations_test

import (
	"fmt"
	"strings"
	"testing"
)

// The messages of a session under its lock while a takeover waits: transactions in one
// message, each of which finds the takeover waiting.
func (p *heldPlay) transactionsUnderWait(n int, first, ahead string) error {
	p.t.Helper()
	waits := fmt.Sprintf("SELECT public.await_blocked(%d);", p.taker)
	return p.query(first + strings.Repeat("BEGIN;"+ahead+write+waits+"COMMIT;", n))
}

// These rules let a takeover in: the model's STICKY_CHECK and KEEPS_LOCK. Without
// them a session goes on for as long as it likes, since it has the lock already and
// never queues for it.
func TestASessionThatDoesNotGiveBackKeepsTakeoversOut(t *testing.T) {
	t.Parallel()
	const naive = `CREATE FUNCTION public.keep() RETURNS bool LANGUAGE sql SECURITY DEFINER AS
		$$SELECT pg_advisory_lock_shared(wirefence.lock_key('orders')); SELECT last_token = 33 FROM wirefence.resource_locks$$`
	for name, c := range map[string]struct{ ahead, release string }{
		"checks over a hold that doesn't count": {check, ""},
		"taken anew without giving back":        {"SELECT public.keep();", unlock},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				p := newHeldPlay(t, db)
				mustExec(t, p.admin(t), naive)
				p.must(takeHold)
				// The takeover comes while the session is in a transaction, so it isn't idle.
				p.must("BEGIN")
				p.takeOver()
				if err := p.transactionsUnderWait(10, "COMMIT;", c.ahead); err != nil {
					t.Errorf("left out: %v", err)
				}
				if n := p.writes(t, 33); n != 10 || p.hasReturned() {
					t.Errorf("left out: %d transactions, sealed: %v", n, p.sealed)
				}
				// Obeyed: asked anew, the session goes to the queue's end.
				p.must(c.release)
				wantCode(t, p.query(takeHold), "WF001")
				wantCode(t, <-p.taking, "")
			})
		})
	}
}
