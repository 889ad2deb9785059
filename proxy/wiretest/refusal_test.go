package wiretest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// types is the sequence of a transcript's message types, with the SQLSTATE of
// an error and the status of a ReadyForQuery.
func types(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteByte(line[0])
		switch line[0] {
		case 'E':
			_, code, _ := strings.Cut(line, "| C")
			b.WriteString("(" + code[:5] + ")")
		case 'Z':
			b.WriteString("(" + line[3:4] + ") ")
		}
	}
	return strings.TrimSpace(b.String())
}

// Case 5 for refusals: the check's, and those that the proxy makes itself. Each
// is an error like any other: sent at once, the rest discarded to the Sync, one
// ReadyForQuery, the transaction aborted, the session alive, nothing written.
//
// Evidence: I5
func TestRefusals(t *testing.T) {
	insert := "INSERT INTO t VALUES (1, 'a')"
	stale := insert + " /*wirefence.token='orders=33'*/"
	unknown := insert + " /*wirefence.token='orders=35'*/"
	malformed := insert + " /*wirefence.token='orders='*/"
	stored := "PREPARE p AS SELECT 1 /*wirefence.token='orders=34'*/"
	type turn struct {
		send []pgproto3.FrontendMessage
		want string // types of the answer, up to the last ReadyForQuery
	}
	for _, c := range []struct {
		name, options string
		o             proxy.Options
		turns         []turn
	}{
		{name: "simple", turns: []turn{
			{all(q(stale)), "E(WF001)Z(I)"}, {all(q(unknown)), "E(WF003)Z(I)"}, {all(q(malformed)), "E(WF004)Z(I)"}, {all(q(stored)), "E(WF006)Z(I)"},
			{all(q("SELECT 1; " + stale + "; SELECT 2")), "E(WF001)Z(I)"}, {all(q("BEGIN")), "CZ(T)"}, {all(q(stale)), "E(WF001)Z(E)"}, {all(q("SELECT 1")), "E(25P02)Z(E)"}, {all(q("ROLLBACK")), "CZ(I)"},
			{all(q("BEGIN")), "CZ(T)"}, {all(q(malformed)), "E(WF004)Z(E)"}, {all(q(insert)), "E(25P02)Z(E)"}, {all(q("COMMIT")), "CZ(I)"},
			{all(q("SELECT 1"), q(stale), q(malformed), q("SELECT 2")), "TDCZ(I) E(WF001)Z(I) E(WF004)Z(I) TDCZ(I)"},
		}},
		{name: "extended", turns: []turn{
			{all(run(stale), sync_), "E(WF001)Z(I)"}, {all(run(malformed), sync_), "E(WF004)Z(I)"}, {all(run(stored), sync_), "E(WF006)Z(I)"},
			{all(run("SELECT 1"), run(stale), run(insert), describe('S', ""), sync_), "12DCE(WF001)Z(I)"},
			{all(run("SELECT 1"), run(malformed), run(insert), sync_), "12DCE(WF004)Z(I)"},
			{all(run(insert), run(stale), sync_, run("SELECT 1"), sync_), "12CE(WF001)Z(I) 12DCZ(I)"},
			{all(run(stale), sync_, run(malformed), sync_, run("SELECT 1"), sync_), "E(WF001)Z(I) E(WF004)Z(I) 12DCZ(I)"},
			{all(q("BEGIN")), "CZ(T)"}, {all(run(stale), sync_), "E(WF001)Z(E)"}, {all(run("SELECT 1"), sync_), "E(25P02)Z(E)"}, {all(q("ROLLBACK")), "CZ(I)"},
			{all(parse("s", stale), describe('S', "s"), sync_), "E(WF001)Z(I)"}, {all(bind("", "s"), execute("", 0), sync_), "E(26000)Z(I)"},
		}},
		{name: "variable", options: "-c wirefence.token=orders=33", turns: []turn{
			{all(q("SELECT 1")), "E(WF001)Z(I)"}, {all(q(insert)), "E(WF001)Z(I)"}, {all(run(insert), sync_), "E(WF001)Z(I)"}, {all(q("COPY t FROM STDIN"), data("1\ta\n"), copyDone), "E(WF001)Z(I)"},
			{all(run("COPY t FROM STDIN"), data("1\ta\n"), copyDone, sync_), "E(WF001)Z(I)"}, {all(q("SELECT write_one(1)")), "E(WF001)Z(I)"},
			{all(q("CALL commits()")), "E(WF001)Z(I)"}, {all(run("CALL commits()"), sync_), "E(WF001)Z(I)"}, {all(q("DO $$BEGIN END$$")), "E(WF001)Z(I)"},
			{all(fastpath(177, "1", "2")), "E(WF001)Z(I)"}, {all(q("SAVEPOINT a")), "E(25P01)Z(I)"}, {all(q("BEGIN; SAVEPOINT a")), "CE(WF001)Z(E)"},
			{all(q("ROLLBACK TO a")), "E(3B001)Z(E)"}, {all(q(insert)), "E(25P02)Z(E)"}, {all(q("COMMIT")), "CZ(I)"}, {all(q("SHOW datestyle")), "TDCZ(I)"},
			{all(q("BEGIN")), "CE(WF001)Z(E)"}, {all(fastpath(177, "1", "2")), "E(25P02)Z(E)"}, {all(q("COMMIT")), "CZ(I)"}, // for the next call
		}},
		{name: "required", o: proxy.Options{UnfencedWrites: proxy.Reject}, turns: []turn{
			{all(q(insert)), "E(WF002)Z(I)"}, {all(run(insert), sync_), "12E(WF002)Z(I)"}, {all(q("SELECT 1")), "TDCZ(I)"}, {all(fastpath(177, "1", "2")), "E(WF002)Z(I)"},
			{all(q(insert), q("SELECT 1"), q(stale)), "E(WF002)Z(I) TDCZ(I) E(WF001)Z(I)"}, {all(q("COPY t FROM STDIN"), data("1\ta\n"), copyDone), "E(WF002)Z(I)"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, major := range majors {
				pl := at(t, major)
				front := cutProxy(t, pl, c.o)
				for _, how := range cuts {
					p := login(t, pl, front, "options", c.options)
					p.Cut = how.cut()
					for _, turn := range c.turns {
						from := p.Taken()
						p.Send(turn.send...)
						p.Ready(strings.Count(turn.want, "Z"))
						if got := types(p.transcript()[from:]); got != turn.want {
							t.Errorf("%d, %s: %s is answered by %s, want %s", major, how.name, describeAll(turn.send), got, turn.want)
						}
					}
					p.Send(terminate)
					p.End()
				}
				if rows := pl.rows(t); rows != "" {
					t.Errorf("%d: t holds %s", major, rows)
				}
			}
		})
	}
}

func describeAll(messages []pgproto3.FrontendMessage) string {
	var parts []string
	for _, m := range messages {
		parts = append(parts, strings.TrimPrefix(fmt.Sprintf("%+v", m), "&"))
	}
	return strings.Join(parts, " ")
}

// Case 5: the refusal is sent before the Sync.
func TestRefusalsAreSentAtOnce(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stackProxy(t, pl, proxy.Options{})
	for _, fence := range []string{"orders=33", "orders="} {
		p := login(t, pl, addr)
		p.Send(run("INSERT INTO t VALUES (1, 'a') /*wirefence.token='" + fence + "'*/")...)
		p.Until("E")
		p.Send(append(run("SELECT 1"), flush)...)
		p.Send(sync_)
		p.Ready(1)
		p.Send(sync_)
		p.Ready(1)
		if got := types(p.transcript()[p.Taken()-3:]); !strings.HasSuffix(got, ")Z(I) Z(I)") {
			t.Errorf("%s: %s", fence, got)
		}
	}
}

// An error at any message of a check's is the client's: nothing runs, and it is told.
func TestCheckThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	p := login(t, pl, stackProxy(t, pl, proxy.Options{Hold: -1}), "options", "-c wirefence.token=orders=34")
	pl.Exec(t, "ALTER FUNCTION wirefence.check(text, text, boolean, boolean) RENAME TO gone")
	for _, turn := range []struct {
		send []pgproto3.FrontendMessage
		want string
	}{
		{all(run("INSERT INTO t VALUES (1, 'a')"), run("SELECT 1"), sync_), "E(42883)Z(I)"},
		{all(q("INSERT INTO t VALUES (1, 'a')")), "E(42883)Z(I)"},
		{all(q("BEGIN"), fastpath(177, "1", "2"), q("COMMIT")), "CZ(T) E(WF006)Z(E) CZ(I)"},
	} {
		from := p.Taken()
		p.Send(turn.send...)
		p.Ready(strings.Count(turn.want, "Z"))
		if got := types(p.transcript()[from:]); got != turn.want {
			t.Errorf("%s is answered by %s, want %s", describeAll(turn.send), got, turn.want)
		}
	}
}

// Case 15: what the client makes its search_path find first can't stand in for
// what the check calls.
func TestHostileSearchPath(t *testing.T) {
	stack.OnEach(t, majors, func(t *testing.T, major int) {
		pl := at(t, major)
		addr := stackProxy(t, pl, proxy.Options{})
		pl.Exec(t, `CREATE SCHEMA evil`,
			`CREATE FUNCTION evil.lies(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false'`,
			`CREATE OPERATOR evil.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.lies)`,
			`CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.lies)`,
			`CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''''::text'`,
			`CREATE FUNCTION evil.check(text, text, boolean) RETURNS void LANGUAGE sql AS ''`,
			`CREATE FUNCTION evil.to_regprocedure(text) RETURNS regprocedure LANGUAGE sql AS 'SELECT NULL::regprocedure'`,
			`CREATE FUNCTION evil.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE sql AS ''`,
			`CREATE TABLE evil.resource_locks(LIKE wirefence.resource_locks)`,
			`CREATE DOMAIN evil.text AS pg_catalog.text`, `CREATE DOMAIN evil.bigint AS pg_catalog.int8`,
			`CREATE TABLE evil.pg_proc(oid oid, proname name)`, `CREATE TABLE evil.pg_class(oid oid, relname name)`,
			`CREATE FUNCTION evil.write_one(int) RETURNS int LANGUAGE sql STABLE AS 'SELECT 1'`)
		path := "-c search_path=evil,pg_catalog,public "
		for _, temp := range []bool{false, true} {
			p := login(t, pl, addr, "options", path+"-c wirefence.token=orders=33")
			if temp {
				p.query("CREATE TEMP TABLE resource_locks(resource_id text, last_token bigint)")
			}
			for _, c := range []struct{ sql, want string }{
				{"INSERT INTO public.t VALUES (1, 'a')", "E(WF001)Z(I)"}, {"SELECT public.write_one(1)", "E(WF001)Z(I)"},
				{"INSERT INTO public.t VALUES (1, 'a') /*wirefence.token='orders=32'*/", "E(WF001)Z(I)"}, {"SET wirefence.token = 'orders=34'", "CZ(I)"},
				{"INSERT INTO public.t VALUES (1, 'a')", "CZ(I)"}, {"DELETE FROM public.t", "CZ(I)"}, {"SET wirefence.token = 'orders=33'", "CZ(I)"}, {"SELECT public.write_one(1)", "E(WF001)Z(I)"},
			} {
				if got := types(p.query(c.sql)); got != c.want {
					t.Errorf("%s is answered by %s, want %s", c.sql, got, c.want)
				}
			}
			p.Send(append(run("INSERT INTO public.t VALUES (1, 'a')"), sync_)...)
			p.Ready(1)
			p.Send(terminate)
			p.End()
		}
		if rows := pl.rows(t); rows != "" {
			t.Errorf("t holds %s", rows)
		}
	})
}
