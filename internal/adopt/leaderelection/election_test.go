package leaderelection

import (
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/stack"
)

// The lease begins with the application's election, and ends with each end of it.
func TestALeaseFollowsTheElection(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	a, b := s.Candidate("orders", own), s.Candidate("orders", other)
	b.Lead(t)
	a.Lead(t)
	first := a.Token(t)
	w.holds(t, first)
	if l := w.lease(); l.From != "kubernetes:shop/orders" || l.Holder != own || l.Source != Source || time.Until(l.Until) > 15*time.Second {
		t.Errorf("lease %+v", l)
	}
	w.db.Becomes(t, own+" "+string(Source), "SELECT holder || ' ' || source FROM wirefence.resource_locks WHERE resource_id = 'orders'")

	until := w.lease().Until
	a.Lead(t)
	stack.Eventually(t, "the lease is renewed", func() bool { return w.lease().Until.After(until) })
	if token := a.Token(t); token != first {
		t.Errorf("token %d behind a renewal", token)
	}
	b.Lead(t)
	w.ended(t, "the Lease is another holder's")
	a.Lead(t)
	w.holds(t, first+2)
	a.Release(t)
	w.ended(t, "the Lease was released")
	a.Lead(t)
	w.holds(t, first+3)
	a.Delete(t)
	w.ended(t, "the Lease was deleted")
	stack.Eventually(t, "a later second", func() bool { return time.Now().Unix()<<20 > first })
	s.Candidate("orders", later).Lead(t)
	token := a.Token(t)
	if token <= first+3 {
		t.Errorf("token %d of the Lease that was made anew", token)
	}
	w.holds(t, token)
}

// A process that was elected again while the watch was cut off has another token, and one that stayed
// the leader has the same.
func TestAWatchThatIsCutOff(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	a, b := s.Candidate("orders", own), s.Candidate("orders", other)
	a.Lead(t)
	first := a.Token(t)
	w.holds(t, first)
	until := w.lease().Until
	s.Cut()
	a.Lead(t)
	stack.Eventually(t, "the lease is renewed", func() bool { return w.lease().Until.After(until) })
	w.holds(t, first)

	s.Forbid(true)
	s.Cut()
	w.log.Await(t, "needs the verbs list and watch")
	s.Forbid(false)
	b.Lead(t)
	a.Lead(t)
	w.holds(t, first+2)

	// A connection that is dead brings nothing, and is left.
	a.Duration = 2 * time.Second
	a.Lead(t)
	s.Hold(true)
	b.Lead(t)
	w.ended(t, "the Lease is another holder's")
	s.Hold(false)
	s.Compact()
	s.Cut()
	a.Lead(t)
	w.holds(t, first+4)
}

// A holder that doesn't renew has no lease from its duration on, by this process' clock, however far
// the holder's is ahead or behind. One that renews later has it again, with its token: nobody else had
// it.
func TestATimeThatPasses(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		s := apiservertest.Start(t)
		w := start(t, s, suite.Database(t, 0))
		a := s.Candidate("orders", own)
		a.Duration, a.Ahead = 2*time.Second, ahead
		began := time.Now()
		a.Lead(t)
		token := a.Token(t)
		w.holds(t, token)
		w.ended(t, adopt.Expired)
		if held := time.Since(began); held < 2*time.Second {
			t.Errorf("held for %v", held)
		}
		a.Lead(t)
		w.holds(t, token)
	}
}

// A sidecar that stood still has no lease, since the book reads the clock. What it then reads of the
// past doesn't begin one.
func TestASidecarThatStoodStill(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := &world{Server: s, db: suite.Database(t, 0), book: &adopt.Book{}, log: &stack.Log{}}
	f := prepare(t, w)
	e := f.elections[0]
	t.Cleanup(func() { e.close(); e.terms.Wait() })
	sees := func() (read func()) {
		seen, err := e.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return func() { e.observe(seen.Lease, seen.Exists, time.Now()) }
	}
	a, b := s.Candidate("orders", own), s.Candidate("orders", other)
	a.Duration = time.Second
	sees()()
	a.Lead(t)
	sees()()
	w.holds(t, a.Token(t))
	a.Lead(t)
	renewal := sees()
	w.ended(t, adopt.Expired)
	b.Lead(t)
	renewal()
	w.log.Await(t, errLost.Error())
	if w.book.Fence() != "" {
		t.Errorf("fence %q", w.book.Fence())
	}
	sees()()
	if e.term != nil {
		t.Error("the term lasts")
	}
}

// What stood there before the sidecar saw it may be an earlier process'.
func TestAHolderFromBefore(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	a := s.Candidate("orders", own)
	a.Lead(t)
	first := a.Token(t)
	w := start(t, s, suite.Database(t, 0))
	a.Lead(t)
	w.ended(t, "it was held before this sidecar saw it, maybe by an earlier process: the next election counts")
	s.Candidate("orders", later).Lead(t)
	w.holds(t, first+1)
}

// An identity that is the next process', too, is refused.
func TestIdentities(t *testing.T) {
	t.Parallel()
	for identity, want := range map[string]string{
		own:                              "own new",
		"web-1_0011223344556677":         "own new",
		"web-1":                          "own",
		"web-1_":                         "own",
		"web-1_controller":               "own",
		"web-1_4711":                     "own",
		"web-1_2_" + own[len("web-1_"):]: "own",
		"web-10_" + own[len("web-1_"):]:  "",
		"web-1-" + own[len("web-1_"):]:   "",
		own[len("web-1_"):]:              "",
		"":                               "",
	} {
		var got []string
		isOwn, isNew := isOwn(identity, "web-1")
		if isOwn {
			got = append(got, "own")
		}
		if isNew {
			got = append(got, "new")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q is %q, want %q", identity, got, want)
		}
	}
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	s.Candidate("orders", "web-1").Lead(t)
	w.log.Await(t, "the identity must be web-1_UUID")
	if l := w.lease(); w.book.Fence() != "" || !strings.Contains(l.Ended, "web-1_UUID") {
		t.Errorf("lease %+v", l)
	}
	s.Candidate("orders", other).Lead(t)
	w.ended(t, "the Lease is another holder's")
	s.Candidate("orders", own).Lead(t)
	w.holds(t, s.Candidate("orders", own).Token(t))
}

// A failed seal is no lease, and is tried again while the holder stays.
func TestASealThatFails(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	w.db.Exec(t, "ALTER FUNCTION wirefence.seal(text, bigint, text, text) RENAME TO unsealed")
	a, b := s.Candidate("orders", own), s.Candidate("orders", other)
	a.Lead(t)
	w.log.Await(t, "cannot begin the lease, retrying while the holder stays")
	if w.book.Fence() != "" || !strings.Contains(w.lease().Ended, "hasn't begun yet") {
		t.Errorf("lease %+v", w.lease())
	}
	w.db.Exec(t, "ALTER FUNCTION wirefence.unsealed(text, bigint, text, text) RENAME TO seal")
	w.holds(t, a.Token(t))

	// A seal waits for transactions of the former holder. The Lease passes to another meanwhile.
	b.Lead(t)
	w.ended(t, "the Lease is another holder's")
	conn := w.db.Direct(t)
	stack.MustExec(t, conn, "BEGIN")
	stack.MustExec(t, conn, "SELECT wirefence.check((SELECT 'orders=' || last_token FROM wirefence.resource_locks WHERE resource_id = 'orders'))")
	a.Lead(t)
	token := a.Token(t)
	w.db.Becomes(t, "1", "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
	b.Lead(t)
	stack.MustExec(t, conn, "COMMIT")
	a.Lead(t)
	w.holds(t, token+2)
}

// A token that the database knows, or exceeds, becomes a higher one.
func TestATokenThatIsBehind(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	a, b := s.Candidate("orders", own), s.Candidate("orders", other)
	a.Lead(t)
	token := a.Token(t)
	w.holds(t, token)
	b.Lead(t)
	w.ended(t, "the Lease is another holder's")
	w.db.Exec(t, "SELECT wirefence.revoke('orders')", "SELECT wirefence.revoke('orders')")
	a.Lead(t)
	w.holds(t, token+3)
}

// After a promotion the leader's election is sealed again, with a token that counts there. A revocation
// ends its lease until the next election.
func TestAPromotionAndARevocation(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	w := start(t, s, suite.Database(t, 0))
	a := s.Candidate("orders", own)
	a.Lead(t)
	w.holds(t, a.Token(t))
	first := w.lease().Token
	w.db.Exec(t, "UPDATE wirefence.resource_locks SET sealed_under = 'another/1' WHERE resource_id = 'orders'")
	stack.Eventually(t, "the election is sealed again", func() bool { l := w.lease(); return l.Ended == "" && l.Token > first })
	w.holds(t, int64(w.lease().Token))

	w.db.Exec(t, "SELECT wirefence.revoke('orders')")
	w.ended(t, "the lease was revoked, or granted to another holder")
	a.Lead(t)
	s.Candidate("orders", later).Lead(t)
	stack.Eventually(t, "the next election counts", func() bool { l := w.lease(); return l.Ended == "" && l.Holder == later })
}

// Without rights for the Lease the sidecar isn't ready, and says what it needs.
func TestWithoutRights(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	s.Forbid(true)
	w := &world{Server: s, db: suite.Database(t, 0), book: &adopt.Book{}, log: &stack.Log{}}
	f := follow(t, w)
	w.log.Await(t, "needs the verbs list and watch")
	if err := f.Ready(); !apiserver.Forbidden(err) {
		t.Errorf("ready: %v", err)
	}
	s.Forbid(false)
	stack.Eventually(t, "it is ready", func() bool { return f.Ready() == nil })
	w.log.Await(t, "the Lease can be read again")
}
