package fencingtest

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
)

// A refusal has no CONTEXT of Wirefence's own functions.
func TestRefusalsHaveNoContextOfOurs(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, "create table guarded (id int)")
		w.Exec(t, "select wirefence.protect('guarded', 'orders')")
		w.Exec(t, "create function own() returns void language plpgsql as $$ begin perform wirefence.check('orders=33'); end $$")
		w.Exec(t, "create function unguarded() returns void language plpgsql as $$ begin insert into guarded values (1); end $$")
		const own = `PL/pgSQL function own() line 1 at PERFORM`
		for _, c := range []struct{ before, sql, state, context string }{
			{"", "select wirefence.check('orders=33')", "WF001", ""},
			{"", "select wirefence.check('orders=x')", "WF004", ""},
			{"", "select own()", "WF001", own},
			{"set wirefence.token = 'other=1'", "select wirefence.check('orders=33')", "WF001", ""},
			{"set wirefence.token = 'other=1'", "insert into guarded values (1)", "WF002", ""},
			{"set wirefence.token = 'orders=33'", "select 1", "WF001", ""},
		} {
			client := w.connect(t)
			if c.before != "" {
				client.Must(c.before)
			}
			err := client.Simple(c.sql)
			stack.WantState(t, err, c.state, c.sql)
			if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Where != c.context {
				t.Errorf("%s, %s: CONTEXT %q, want %q", c.before, c.sql, e.Where, c.context)
			}
		}
		// A session that carries nothing gets the server's own bytes.
		err := w.connect(t).Simple("select unguarded()")
		stack.WantState(t, err, "WF002")
		direct := stack.Login(t, w.Addr(), w.Name).Simple("select unguarded()")
		through, straight := (*pgconn.PgError)(nil), (*pgconn.PgError)(nil)
		if !errors.As(err, &through) || !errors.As(direct, &straight) || through.Where != straight.Where {
			t.Errorf("CONTEXT %v, directly %v", through, straight)
		}
	})
}
