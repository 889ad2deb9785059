package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Without each rule of a hold a stale write commits: the seal of token 34 has returned,
// and then a row of token 33 commits. The schedules are those that model/hold.pml finds
// when the rule is left out, played by direct connections, without a proxy. With the
// rule, the same schedule ends with WF001, or the seal waits.
//
// Evidence: I2
func TestRulesOfAHold(t *testing.T) {
	t.Parallel()
	for _, rule := range []struct {
		name string
		// play says whether a stale write committed.
		play func(p *heldPlay, obeyed bool) bool
	}{
		{"a group counts on no hold that has no answer (COUNTS_AT_ONCE)", countsAtOnce},
		{"a hold that was cancelled doesn't count (FAILURE_COUNTS)", failureCounts},
		{"nothing counts from where proxy_unhold is sent (COUNTS_TO_THE_END)", countsToTheEnd},
		{"nothing is given back in a transaction (BACK_INSIDE)", backInside},
		{"nor in one that has written nothing, but will by COMMIT (BACK_INSIDE)", backInsideAheadOfACursor},
		{"nor behind groups without an answer (BACK_BEHIND)", backBehind},
		{"nothing is taken anew in a transaction (RETAKE_INSIDE)", retakeInside},
		{"nor behind groups without an answer (RETAKE_BEHIND)", retakeBehind},
		{"a check is ahead of SAVEPOINT (SAVEPOINT_BARE)", savepointBare},
		{"a check is ahead of a text that unlocks (UNLOCK_BARE)", unlockBare},
		{"a check is ahead of a FunctionCall (UNLOCK_BARE)", functionCallBare},
		{"nothing counts behind a text that unlocks (UNLOCK_COUNTS)", unlockCounts},
		{"nothing counts behind DISCARD ALL (UNLOCK_COUNTS)", discardCounts},
		{"nor a hold whose answer came behind that text (UNLOCK_UNSPOILED)", unlockUnspoiled},
		{"nothing is held once an unlock has a name (NAME_HOLDS)", nameHolds},
		{"nothing counts behind a text that changes the variable (SET_COUNTS)", setCounts},
		{"nor a hold whose answer came behind that text (SET_UNSPOILED)", setUnspoiled},
		{"another fence isn't covered (OTHER_FENCE)", otherFence},
		{"the verdict is read in READ COMMITTED (SNAPSHOT)", oldSnapshot},
		{"nobody takes over from his own session (OWN_LOCK)", ownLock},
		{"PREPARE TRANSACTION is refused (PREPARE_HELD)", prepareHeld},
	} {
		t.Run(rule.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				if !rule.play(newHeldPlay(t, db), false) {
					t.Error("left out: no stale write committed, so the rule isn't needed or the schedule is another")
				}
				other := create(t, db.Postgres, "TEMPLATE "+template)
				if rule.play(newHeldPlay(t, other), true) {
					t.Error("obeyed: a stale write committed")
				}
			})
		})
	}
}

func countsAtOnce(p *heldPlay, obeyed bool) bool {
	end, answers := p.queuedHold(either(obeyed, check, "") + write)
	end()
	if codes := answers(); codes[0] != "WF001" || codes[1] != either(obeyed, "WF001", "") {
		p.t.Errorf("answers %q", codes)
	}
	return p.committed(check)
}

func failureCounts(p *heldPlay, obeyed bool) bool {
	end, answers := p.queuedHold()
	mustExec(p.t, p.admin(p.t), "SELECT pg_cancel_backend($1)", p.writer.PgConn().PID())
	if codes := answers(); codes[0] != "57014" {
		p.t.Errorf("answers %q", codes)
	}
	end()
	return p.committed(either(obeyed, check, "") + write)
}

func countsToTheEnd(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must(giveBack)
	p.takeOver()
	return p.committed(either(obeyed, check, "") + write)
}

func backInside(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("BEGIN;" + write)
	p.must(either(obeyed, "", giveBack))
	p.takeOver()
	return p.committed("COMMIT")
}

func backInsideAheadOfACursor(p *heldPlay, obeyed bool) bool {
	mustExec(p.t, p.admin(p.t), `CREATE FUNCTION public.writes_33() RETURNS int LANGUAGE sql AS
		$$INSERT INTO public.writes VALUES ('orders', 33, 'cursor') RETURNING 1$$`)
	p.must(takeHold)
	p.must("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT public.writes_33()")
	p.must(either(obeyed, "", giveBack))
	p.takeOver()
	return p.committed("COMMIT")
}

func backBehind(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.pipeline("BEGIN;"+write, either(obeyed, "", giveBack))
	p.takeOver()
	return p.committed("COMMIT")
}

// The variable from which the hold was read rolls back, and the hold does not.
func retakeInside(p *heldPlay, obeyed bool) bool {
	p.must("SET wirefence.token = 'orders=33'")
	p.takeOver()
	p.must("BEGIN; SET wirefence.token = 'orders=34';")
	if !obeyed {
		p.must(holdOfVariable)
	}
	p.must("ROLLBACK")
	return p.committed(either(obeyed, "SELECT wirefence.check();", "") + write)
}

// The answer of the first hold is taken for that of the second, which was cancelled.
func retakeBehind(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	end, answers := p.queuedHold()
	mustExec(p.t, p.admin(p.t), "SELECT pg_cancel_backend($1)", p.writer.PgConn().PID())
	answers()
	end()
	return p.committed(either(obeyed, check, "") + write)
}

func savepointBare(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("BEGIN;" + write)
	p.must(either(obeyed, check, "") + "SAVEPOINT s")
	p.must(check + unlock) // the rule of unlocks is obeyed
	p.must("ROLLBACK TO s")
	p.takeOver()
	return p.committed("COMMIT")
}

func unlockBare(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("BEGIN;" + write)
	p.must(either(obeyed, check, "") + unlock)
	p.takeOver()
	return p.committed("COMMIT")
}

func functionCallBare(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("BEGIN;" + write)
	if obeyed {
		p.must(check)
	}
	front := p.writer.PgConn().Frontend()
	front.Send(&pgproto3.FunctionCall{Function: value[uint32](p.t, p.admin(p.t), "SELECT 'pg_advisory_unlock_all()'::regprocedure::oid")})
	if err := front.Flush(); err != nil {
		p.t.Fatal(err)
	}
	if codes := p.answers(front, 1); codes[0] != "" {
		p.t.Errorf("FunctionCall: %q", codes)
	}
	p.takeOver()
	return p.committed("COMMIT")
}

func unlockCounts(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must(check + unlock)
	p.takeOver()
	return p.committed(either(obeyed, check, "") + write)
}

func discardCounts(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("DISCARD ALL")
	p.takeOver()
	return p.committed(either(obeyed, check, "") + write)
}

func unlockUnspoiled(p *heldPlay, obeyed bool) bool {
	if codes := p.pipeline(takeHold, check+unlock); codes[0] != "" || codes[1] != "" {
		p.t.Errorf("answers %q", codes)
	}
	p.takeOver()
	return p.committed(either(obeyed, check, "") + write)
}

func nameHolds(p *heldPlay, obeyed bool) bool {
	p.must(check + "PREPARE x AS SELECT pg_advisory_unlock_all()")
	if !obeyed {
		p.must(takeHold)
	}
	p.must("BEGIN;" + either(obeyed, check, "") + write)
	p.must("EXECUTE x")
	p.takeOver()
	return p.committed("COMMIT")
}

const (
	holdOfVariable     = "SELECT wirefence.proxy_hold(1001, NULL, NULL, NULL, false, 'needed');"
	takeHoldOfVariable = exchangeStart + holdOfVariable
)

func setCounts(p *heldPlay, obeyed bool) bool {
	p.takeOver()
	p.must("SET wirefence.token = 'orders=34'")
	p.must(takeHoldOfVariable)
	p.must("SELECT set_config('wirefence.token', 'orders=33', false)")
	return p.committed(either(obeyed, "SELECT wirefence.check();", "") + write)
}

func setUnspoiled(p *heldPlay, obeyed bool) bool {
	p.takeOver()
	p.must("SET wirefence.token = 'orders=34'")
	if codes := p.pipeline(takeHoldOfVariable, "SELECT set_config('wirefence.token', 'orders=33', false)"); codes[0] != "" || codes[1] != "" {
		p.t.Errorf("answers %q", codes)
	}
	return p.committed(either(obeyed, "SELECT wirefence.check();", "") + write)
}

func otherFence(p *heldPlay, obeyed bool) bool {
	p.takeOver()
	p.must(strings.Replace(takeHold, "33", "34", 1))
	return p.committed(either(obeyed, check, "") + write)
}

// A hold without the rule is the lock, and the row read by the session's snapshot.
func oldSnapshot(p *heldPlay, obeyed bool) bool {
	p.must("SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on")
	mustExec(p.t, p.admin(p.t), `CREATE FUNCTION public.naive_hold() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			PERFORM pg_advisory_lock_shared(wirefence.lock_key('orders'));
			RETURN (SELECT last_token FROM wirefence.resource_locks WHERE resource_id = 'orders');
		END $$`)
	other := p.app(p.t)
	mustExec(p.t, other, "BEGIN")
	mustExec(p.t, other, "SELECT wirefence.check('orders=33')")
	p.takeOver()
	front := p.writer.PgConn().Frontend()
	front.Send(&pgproto3.Query{String: either(obeyed, takeHold, "SELECT 1 / (34 - public.naive_hold())")})
	if err := front.Flush(); err != nil {
		p.t.Fatal(err)
	}
	mustExec(p.t, p.admin(p.t), "SELECT public.await_blocked($1)", p.writer.PgConn().PID())
	mustExec(p.t, other, "COMMIT")
	wantCode(p.t, <-p.taking, "")
	p.sealed = true
	if codes := p.answers(front, 1); codes[0] != either(obeyed, "WF001", "") {
		p.t.Errorf("answers %q", codes)
	}
	if obeyed {
		wantCode(p.t, p.query(strings.TrimPrefix(takeHold, exchangeStart)), "WF006")
	}
	return p.committed("BEGIN READ WRITE;" + either(obeyed, check, "") + write + "COMMIT")
}

// A takeover without the rule is the lock and the row.
func ownLock(p *heldPlay, obeyed bool) bool {
	mustExec(p.t, p.admin(p.t), `CREATE FUNCTION public.naive_seal() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
		SELECT pg_advisory_xact_lock(wirefence.lock_key('orders'));
		UPDATE wirefence.resource_locks SET last_token = 34 WHERE resource_id = 'orders' $$`)
	mustExec(p.t, p.admin(p.t), "GRANT INSERT ON public.writes TO issuer")
	p.writeAs("issuer")
	p.must(takeHold)
	if obeyed {
		wantCode(p.t, p.query("SELECT wirefence.seal('orders', 34)"), "55006")
		p.must("BEGIN;" + write)
		p.takeOver()
		return p.committed("COMMIT")
	}
	p.must("SELECT public.naive_seal()")
	p.sealed = true
	return p.committed(write)
}

func prepareHeld(p *heldPlay, obeyed bool) bool {
	p.must(takeHold)
	p.must("BEGIN;" + write)
	if !obeyed {
		p.must("PREPARE TRANSACTION '" + p.name + "'")
		p.must(giveBack)
	}
	p.takeOver()
	return p.committed(either(obeyed, "COMMIT", "COMMIT PREPARED '"+p.name+"'"))
}
