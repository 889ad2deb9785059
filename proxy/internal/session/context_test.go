package session

import "testing"

func TestContextOfRefusals(t *testing.T) {
	const raised = `PL/pgSQL function wirefence.refuse(text,text,bigint,text,wirefence.resource_locks) line 12 at RAISE
SQL statement "SELECT wirefence.refuse(pair.verdict, pair.resource)"
PL/pgSQL function wirefence.check(text,text,boolean,boolean) line 50 at RETURN
SQL function "check" statement 1`
	for _, c := range []struct{ where, want string }{
		{"", ""},
		{"PL/pgSQL function wirefence.refuse() line 1 at RAISE", ""},
		{"PL/pgSQL-Funktion wirefence.refuse() Zeile 1 bei RAISE", ""},
		{raised, ""},
		{raised + "\n" + `SQL statement "SELECT wirefence.check('orders=1')"` + "\nPL/pgSQL function public.f() line 3 at PERFORM", "PL/pgSQL function public.f() line 3 at PERFORM"},
		{"PL/pgSQL function public.f() line 3 at RAISE", "PL/pgSQL function public.f() line 3 at RAISE"},
		{"PL/pgSQL function public.f() line 3 at RAISE\n" + `SQL statement "SELECT wirefence.x()"`, "PL/pgSQL function public.f() line 3 at RAISE\n" + `SQL statement "SELECT wirefence.x()"`},
	} {
		if got := withoutOwnContext(c.where); got != c.want {
			t.Errorf("of %q is left %q, want %q", c.where, got, c.want)
		}
	}
}
