package migrations_test

import "testing"

// The server compiles a query that looks costly, which takes seconds on a busy machine.
func TestListsAreNotCompiled(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), `CREATE FUNCTION public.cost(query text) RETURNS float8 LANGUAGE plpgsql AS $$
			DECLARE plan json; BEGIN EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan; RETURN plan -> 0 -> 'Plan' ->> 'Total Cost'; END $$`)
		for _, name := range []string{"guarded", "status"} {
			cost := look[float64](t, db, "SELECT public.cost(prosrc) FROM pg_proc WHERE proname = '"+name+"' AND pronamespace = 'wirefence'::regnamespace")
			if cost > 100_000 { // jit_above_cost
				t.Errorf("wirefence.%s() costs %v", name, cost)
			}
		}
	})
}
