package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// heldPlay is a schedule of direct connections that act like a proxy's: a writer with
// token 33, and the takeover by token 34.
type heldPlay struct {
	database
	t      *testing.T
	writer *pgx.Conn
	taking <-chan error // the seal's error; nil before it was asked for
	taker  uint32       // its backend
	sealed bool
}

const (
	takeHold = exchangeStart + "SELECT wirefence.proxy_hold(1001, 'orders=33', NULL, NULL, false, 'needed');"
	giveBack = unhold + ";"
	check    = "SELECT wirefence.check('orders=33');"
	write    = "INSERT INTO public.writes VALUES ('orders', 33, 'x');"
	unlock   = "SELECT pg_advisory_unlock_all();"
	// A seal leaves the lock's queue from time to time to look round, and lets in
	// whoever waits behind it. This one stays.
	takeoverInQueue = "BEGIN; SELECT pg_advisory_xact_lock(wirefence.lock_key('orders')); SELECT wirefence.seal('orders', 34, 'worker-b'); COMMIT"
)

func newHeldPlay(t *testing.T, db database) *heldPlay {
	t.Helper()
	db.seal(t, "orders", 33)
	mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
	p := &heldPlay{database: db, t: t}
	p.writeAs("app")
	return p
}

// writeAs makes the writer a session of a role.
func (p *heldPlay) writeAs(role string) {
	p.t.Helper()
	p.writer = p.as(p.t, role)
	if err := p.writer.PgConn().Conn().SetDeadline(time.Now().Add(time.Minute)); err != nil {
		p.t.Fatal(err)
	}
}

// query sends one simple Query of the writer's.
func (p *heldPlay) query(sql string) error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	_, err := p.writer.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func (p *heldPlay) must(sql string) {
	p.t.Helper()
	if err := p.query(sql); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// takeOver asks for the seal of token 34, and returns when the seal has returned or
// waits.
func (p *heldPlay) takeOver() {
	p.t.Helper()
	conn, watch := p.admin(p.t), p.admin(p.t)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	done, ended := make(chan error, 1), make(chan struct{})
	p.taking, p.taker = done, conn.PgConn().PID()
	go func() {
		defer close(ended)
		_, err := conn.PgConn().Exec(ctx, takeoverInQueue).ReadAll()
		done <- err
	}()
	p.t.Cleanup(func() {
		cancel()
		<-ended
	})
	for !p.hasReturned() {
		if value[bool](p.t, watch, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted) FROM pg_sleep(0.002)", p.taker) {
			return
		}
	}
}

// hasReturned tells whether the takeover's answer is there.
func (p *heldPlay) hasReturned() bool {
	p.t.Helper()
	select {
	case err := <-p.taking:
		if err != nil {
			p.t.Fatalf("seal: %v", err)
		}
		p.sealed = true
	default:
	}
	return p.sealed
}

// stale reports whether a write of token 33 committed after the takeover had returned.
func (p *heldPlay) stale(commit func() error) bool {
	p.t.Helper()
	late := p.hasReturned()
	err := commit()
	committed := p.writes(p.t, 33) > 0
	if late && !committed {
		wantCode(p.t, err, "WF001")
	}
	if !late { // then it waited for this
		p.must("ROLLBACK; " + giveBack)
		wantCode(p.t, <-p.taking, "")
	}
	return late && committed
}

// committed is stale of one simple Query.
func (p *heldPlay) committed(sql string) bool {
	p.t.Helper()
	return p.stale(func() error { return p.query(sql) })
}

// pipeline sends several simple Queries at once, and reads all answers.
func (p *heldPlay) pipeline(queries ...string) []string {
	p.t.Helper()
	front := p.writer.PgConn().Frontend()
	for _, sql := range queries {
		front.Send(&pgproto3.Query{String: sql})
	}
	if err := front.Flush(); err != nil {
		p.t.Fatal(err)
	}
	return p.answers(front, len(queries))
}

// answers reads the SQLSTATE of each answer, "" for success.
func (p *heldPlay) answers(front *pgproto3.Frontend, n int) []string {
	p.t.Helper()
	codes := make([]string, n)
	for i := 0; i < n; {
		message, err := front.Receive()
		if err != nil {
			p.t.Fatal(err)
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			codes[i] = m.Code
		case *pgproto3.ReadyForQuery:
			i++
		}
	}
	return codes
}

// queuedHold makes the writer ask for its hold behind a takeover that waits for another
// session, whose transaction end() ends. The text after the hold is sent with it.
func (p *heldPlay) queuedHold(behind ...string) (end func(), answers func() []string) {
	p.t.Helper()
	other := p.app(p.t)
	mustExec(p.t, other, "BEGIN")
	mustExec(p.t, other, "SELECT wirefence.check('orders=33')")
	p.takeOver()
	front := p.writer.PgConn().Frontend()
	for _, sql := range append([]string{takeHold}, behind...) {
		front.Send(&pgproto3.Query{String: sql})
	}
	if err := front.Flush(); err != nil {
		p.t.Fatal(err)
	}
	mustExec(p.t, p.admin(p.t), "SELECT public.await_blocked($1)", p.writer.PgConn().PID())
	return func() {
			mustExec(p.t, other, "COMMIT")
			wantCode(p.t, <-p.taking, "")
			p.sealed = true
		}, func() []string {
			return p.answers(front, 1+len(behind))
		}
}

// either returns the first value if a rule is followed, otherwise the second.
func either(obeyed bool, yes, no string) string {
	if obeyed {
		return yes
	}
	return no
}
