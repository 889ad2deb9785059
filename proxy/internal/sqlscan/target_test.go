package sqlscan

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestTargets(t *testing.T) {
	long := strings.Repeat("n", 63)
	for _, c := range []struct {
		sql, target       string
		executes, unclear bool
	}{
		{sql: "prepare P as select 1", target: "p"},
		{sql: "prepare p(int) as select $1", target: "p"},
		{sql: `prepare "P""x" as select 1`, target: `P"x`},
		{sql: "prepare transaction as select 1", target: "transaction"},
		{sql: "prepare transaction 'x'"},
		{sql: "prepare " + long + " as select 1", target: long},
		{sql: "prepare " + long + "n as select 1", unclear: true},
		{sql: `prepare "é" as select 1`, unclear: true},
		{sql: `prepare U&"p" as select 1`, unclear: true},
		{sql: "execute p", target: "p", executes: true},
		{sql: "execute/**/p(1, 'x', q)", target: "p", executes: true},
		{sql: `execute "execute"`, target: "execute", executes: true},
		{sql: `execute U&"!0070" uescape '!' (1)`, unclear: true, executes: true},
		{sql: "explain execute p", target: "p", executes: true},
		{sql: "explain analyze execute p(1)", target: "p", executes: true},
		{sql: "explain analyze verbose execute p", target: "p", executes: true},
		{sql: "explain verbose execute p", target: "p", executes: true},
		{sql: "explain (costs off, analyze) execute p", target: "p", executes: true},
		{sql: "explain (analyze) create table t as execute p", target: "p", executes: true},
		{sql: "explain (select 1)"},
		{sql: "explain declare c cursor for select 1"},
		{sql: "create table t as execute p", target: "p", executes: true},
		{sql: "create table t as execute p(1) with no data", target: "p", executes: true},
		{sql: "create temp table if not exists a.as (a, b) with (fillfactor = 10) on commit drop as execute P", target: "p", executes: true},
		{sql: "create table t as select 1 as execute"},
		{sql: "create table t as select 1 as execute from x"},
		{sql: "create table execute as select 1"},
		{sql: "create trigger t before insert on t for each row execute function p()"},
		{sql: "create cast (a as execute) with function f(a)"},
		{sql: "grant execute on function f to x"},
		{sql: "deallocate P", target: "p"},
		{sql: "deallocate prepare p", target: "p"},
		{sql: "deallocate prepare", target: "prepare"},
		{sql: "deallocate prepare prepare", target: "prepare"},
		{sql: "deallocate all"}, {sql: "deallocate prepare all"},
		{sql: `deallocate "all"`, target: "all"},
		{sql: "declare C no scroll cursor with hold for select 1", target: "c"},
		{sql: "close c", target: "c"}, {sql: "close all"}, {sql: `close "all"`, target: "all"},
		{sql: "fetch c", target: "c"}, {sql: "fetch from c", target: "c"}, {sql: "fetch next", target: "next"},
		{sql: "fetch next c", target: "c"}, {sql: "fetch next from c", target: "c"}, {sql: "fetch -1 in c", target: "c"},
		{sql: "fetch absolute 3 c", target: "c"}, {sql: "fetch forward all in c", target: "c"}, {sql: "fetch backward 2 c", target: "c"},
		{sql: "move all C", target: "c"}, {sql: `move "C"`, target: "C"},
		{sql: `fetch 1 from U&"d!0061t" uescape '!'`, unclear: true},
		{sql: "select 1 as execute"}, {sql: "select execute from prepare"}, {sql: "insert into execute values (1)"},
	} {
		st := scanOne(t, c.sql, Options{}, nil)
		if st.Target != c.target || st.Executes != c.executes || st.TargetUnclear != c.unclear {
			t.Errorf("%s: %q, executes %v, unclear %v", c.sql, st.Target, st.Executes, st.TargetUnclear)
		}
	}
}

// EXPLAIN evaluates the arguments of an EXECUTE even without ANALYZE.
func TestExplainExecuteWritesWhatItsArgumentsWrite(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, "drop sequence if exists explained; create sequence explained; prepare expl(bigint) as select $1")
		const sql = "explain execute expl(nextval('explained'))"
		mustRun(t, conn, "begin read only")
		if _, state := run(t, conn, sql); state != "25006" {
			t.Errorf("the server answers %q", state)
		}
		mustRun(t, conn, "rollback; deallocate expl")
		if !scanOne(t, sql, Options{}, readCatalog(t, conn)).Write {
			t.Error("classed as a read")
		}
		if scanOne(t, "explain execute expl(1)", Options{}, nil).Write {
			t.Error("without a call it is classed as a write")
		}
	})
}
