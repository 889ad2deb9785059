package sqlscan

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestWhatStatementsDoToTheSession(t *testing.T) {
	type flags struct{ begin, end, loses, own, procedural, setter, drops, lexing bool }
	cases := []struct {
		sql       string
		verb      Verb
		unfenced  string
		want      flags
		writesToo bool
	}{
		{sql: "begin isolation level serializable", verb: VerbBegin, want: flags{begin: true}},
		{sql: "START TRANSACTION", verb: VerbBegin, want: flags{begin: true}},
		{sql: "commit", verb: VerbCommit, want: flags{end: true}},
		{sql: "end work", verb: VerbCommit, want: flags{end: true}},
		{sql: "commit and chain", verb: VerbCommit, want: flags{end: true}},
		{sql: "rollback", verb: VerbRollback, want: flags{end: true}},
		{sql: "abort", verb: VerbRollback, want: flags{end: true}},
		{sql: "rollback to a", verb: VerbRollback, want: flags{loses: true}},
		{sql: "rollback transaction to savepoint a", verb: VerbRollback, want: flags{loses: true}},
		{sql: "release a", verb: VerbRelease, want: flags{loses: true}},
		{sql: "savepoint a", verb: VerbSavepoint},
		{sql: "prepare transaction 'x'", verb: VerbPrepareTransaction, unfenced: "PREPARE TRANSACTION", want: flags{end: true, own: true}},
		{sql: "prepare transaction as select 1", verb: VerbPrepare},
		{sql: "prepare transaction (int) as select 1", verb: VerbPrepare},
		{sql: "commit prepared 'x'", verb: VerbCommit, unfenced: "COMMIT PREPARED", want: flags{own: true}},
		{sql: "rollback prepared 'x'", verb: VerbRollback, want: flags{own: true}},
		{sql: "vacuum full t", verb: VerbMaintenance, want: flags{own: true}},
		{sql: "reindex table concurrently t", verb: VerbMaintenance, want: flags{own: true}},
		{sql: "analyze", verb: VerbAnalyze, want: flags{own: true}},
		{sql: "discard all", verb: VerbDiscard, want: flags{own: true, setter: true, drops: true, lexing: true}},
		{sql: "discard temp", verb: VerbDiscard},
		{sql: "deallocate all", verb: VerbDeallocate, want: flags{drops: true}},
		{sql: "deallocate prepare all", verb: VerbDeallocate, want: flags{drops: true}},
		{sql: "deallocate x", verb: VerbDeallocate},
		{sql: "reset all", verb: VerbReset, want: flags{loses: true, setter: true, lexing: true}},
		{sql: "reset wirefence.token", verb: VerbReset, want: flags{setter: true}},
		{sql: "reset work_mem", verb: VerbReset},
		{sql: "set WireFence.Token = 'a=1'", verb: VerbSet, want: flags{setter: true}},
		{sql: `set local "wirefence.token" to 'a=1'`, verb: VerbSet, want: flags{setter: true}},
		{sql: `set U&"wirefenc\0065.token" = 'a=1'`, verb: VerbSet, want: flags{setter: true, lexing: true}},
		{sql: `set U&"wir\0065fence.token" = 'a=1'`, verb: VerbSet, want: flags{setter: true, lexing: true}},
		{sql: "set names 'utf8'", verb: VerbSet, want: flags{lexing: true}},
		{sql: "set session names 'utf8'", verb: VerbSet, want: flags{lexing: true}},
		{sql: "set client_encoding = 'sjis'", verb: VerbSet, want: flags{lexing: true}},
		{sql: "set standard_conforming_strings = off", verb: VerbSet, want: flags{lexing: true}},
		{sql: "set work_mem = '1MB' /*wirefence.token='a=1'*/", verb: VerbSet},
		{sql: "select set_config('wirefence.token', 'a=1', false)", verb: VerbSelect, want: flags{setter: true}},
		{sql: "select set_config('work_mem', '1MB', false)", verb: VerbSelect},
		{sql: `select "set_config" ( 'app.user' , 'wirefence', false), pg_catalog.set_config('Wirefence.Token', '', true)`, verb: VerbSelect, want: flags{setter: true}},
		{sql: "select set_config('app.user', '1', false), set_config('app.' || 'x', '', true)", verb: VerbSelect, want: flags{setter: true, lexing: true}},
		{sql: `select set_config('app\user', '1', false)`, verb: VerbSelect, want: flags{setter: true, lexing: true}},
		{sql: "select set_config('client_encoding', 'sjis', false)", verb: VerbSelect, want: flags{lexing: true}},
		{sql: "select set_config($1, $2, false)", verb: VerbSelect, want: flags{setter: true, lexing: true}},
		{sql: "select set_config('client_' || 'encoding', 'sjis', false)", verb: VerbSelect, want: flags{setter: true, lexing: true}},
		{sql: `select "set_config"(E'client\x5fencoding', 'sjis', false)`, verb: VerbSelect, want: flags{setter: true, lexing: true}},
		{sql: `select U&"set\005fconfig"('a', 'b', false)`, verb: VerbSelect, want: flags{setter: true, lexing: true}, writesToo: true},
		{sql: "prepare p as select set_config('wirefence.token', $1, false)", verb: VerbPrepare, want: flags{setter: true}},
		{sql: "execute p('a=1')", verb: VerbExecute, writesToo: true},
		{sql: "call p()", verb: VerbCall, want: flags{procedural: true}, writesToo: true},
		{sql: "do $$ begin perform 1; end $$", verb: VerbDo, want: flags{procedural: true}, writesToo: true},
		{sql: "do $$ begin perform set_config('a', 'b', true); end $$", verb: VerbDo, want: flags{procedural: true, setter: true, lexing: true}, writesToo: true},
		{sql: "do $$ begin execute 'set ' || 'x'; end $$", verb: VerbDo, want: flags{procedural: true, setter: true, lexing: true}, writesToo: true},
		{sql: `do E'begin perform set\x5fconfig(1); end'`, verb: VerbDo, want: flags{procedural: true, setter: true, lexing: true}, writesToo: true},
		{sql: "create unique index concurrently i on t (a)", verb: VerbDDL, unfenced: "CREATE INDEX CONCURRENTLY", want: flags{own: true}},
		{sql: "create index concurrently if not exists i on t (a)", verb: VerbDDL, unfenced: "CREATE INDEX CONCURRENTLY", want: flags{own: true}},
		{sql: "drop index concurrently i", verb: VerbDDL, unfenced: "DROP INDEX CONCURRENTLY", want: flags{own: true}},
		{sql: "create database d", verb: VerbDDL, unfenced: "CREATE DATABASE", want: flags{own: true}},
		{sql: "drop database d", verb: VerbDDL, unfenced: "DROP DATABASE", want: flags{own: true}},
		{sql: "alter database d set tablespace x", verb: VerbDDL, unfenced: "ALTER DATABASE SET TABLESPACE", want: flags{own: true}},
		{sql: "alter database d rename to e", verb: VerbDDL, writesToo: true},
		{sql: "create tablespace x location '/x'", verb: VerbDDL, unfenced: "CREATE TABLESPACE", want: flags{own: true}},
		{sql: "drop tablespace x", verb: VerbDDL, unfenced: "DROP TABLESPACE", want: flags{own: true}},
		{sql: "alter system set work_mem = '1MB'", verb: VerbDDL, unfenced: "ALTER SYSTEM", want: flags{own: true}},
		{sql: "alter table t detach partition p concurrently", verb: VerbDDL, unfenced: "ALTER TABLE DETACH PARTITION CONCURRENTLY", want: flags{own: true}},
		{sql: "alter table t detach partition p", verb: VerbDDL, writesToo: true},
		{sql: "create subscription s connection '' publication p", verb: VerbDDL, unfenced: "CREATE SUBSCRIPTION", want: flags{own: true}},
		{sql: "alter subscription s disable", verb: VerbDDL, unfenced: "ALTER SUBSCRIPTION", want: flags{own: true}},
		{sql: "drop subscription s", verb: VerbDDL, unfenced: "DROP SUBSCRIPTION", want: flags{own: true}},
		{sql: "create table names (a int)", verb: VerbDDL, writesToo: true},
		{sql: "with x as (select 1) insert into t select 1", verb: VerbInsert, writesToo: true},
		{sql: "(select 1)", verb: VerbSelect}, {sql: "fetch 1 from c", verb: VerbFetch}, {sql: "load 'x'", verb: VerbLoad},
		{sql: "grant select on t to x", verb: VerbUnknown, writesToo: true},
	}
	for _, c := range cases {
		st := scanOne(t, c.sql, Options{}, nil)
		got := flags{st.TxBegin, st.TxEnd, st.LosesCheck, st.OwnTx, st.Procedural, st.Setter, st.DropsPrepared, st.SetsLexing}
		if st.Verb != c.verb || st.Unfenceable != c.unfenced || got != c.want || st.Write != (c.writesToo || c.unfenced != "") {
			t.Errorf("%s: %+v", c.sql, st)
		}
		if (got.setter || got.lexing) && !Mentions([]byte(c.sql)) {
			t.Errorf("%s: Mentions says no", c.sql)
		}
	}
}

// Under either setting the text tells that it reads differently under the other.
func TestBackslashesInPlainLiterals(t *testing.T) {
	for sql, want := range map[string]bool{
		`select 'a\b'`: true, `select '\'; select 1; --'`: true, `select '\'`: true, `select 'a', E'\n', "\", $$\$$ /* '\' */`: false, `select 'a''b'`: false,
	} {
		for _, escapes := range []bool{false, true} {
			if got := new(Scanner).Scan([]byte(sql), Options{EscapeStrings: escapes}, nil).HasBackslashInPlainString; got != want {
				t.Errorf("%s, escapes %v: %v", sql, escapes, got)
			}
		}
	}
}

// A COMMIT in a CALL or DO fails where anything else is in its message, and COPY FROM
// takes what comes next for data.
func TestWhatNoCheckCanStandBehind(t *testing.T) {
	for sql, want := range map[string]bool{
		"select f()": false, "insert into t select f()": false, "execute p": false, "explain analyze select f()": false,
		"call p()":                        true,
		"declare c cursor for select f()": true, "fetch c": false,
		"do $$ begin perform f(); end $$": false, "do 'begin null; end' language plpgsql": false,
		"do $$ begin perform f(); CoMMit; end $$": true, "do language plpgsql $x$ begin rollback; end $x$": true,
		"do $$ begin call p(); end $$": true, `do E'begin \x63ommit; end'`: true,
		"copy (select f()) to stdout": false, "copy (insert into t values (1) returning f()) to stdout": false,
		"copy t from stdin": true, "copy t from '/x' where f()": true,
		"copy (select f()) to '/x'": false, "copy (select f()) to program 'x'": false,
		"drop schema wirefence cascade": true, "alter schema wirefence rename to w": true, "drop table t": true, "drop owned by wirefence_owner": true,
		"alter table t alter a type int using f()": false, "create index on t (f(a))": false,
		"do $$ begin insert into t values ('caller', committed); end $$": false, "do $$ begin perform f();commit;end $$": true,
		"notify wirefence, 'x'": true, "create or replace function f() returns int language sql as 'select 1'": true, "create table t as select f()": false,
		"insert into t select f() returning *": false, "select f(": true, "create table t (": true, "copy (select f() to stdout": true, "do 'begin": true, "select f(), 'abc": true, "select f(), /* abc": true, `select f() as "abc`: true, "select f()::": true,
	} {
		if st := scanOne(t, sql, Options{}, nil); st.NoCheckBehind != want {
			t.Errorf("%s: %+v", sql, st)
		}
	}
}

func TestSettersOfTheCatalog(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, objects)
		cat := readCatalog(t, conn)
		if !cat.HasSetters() || (*Catalog)(nil).HasSetters() {
			t.Error("HasSetters is wrong")
		}
		for sql, want := range map[string]bool{
			"select chosen()": true, "select chooses()": true, "select fixed()": true,
			"select computes()": true, "select keeps()": true, "select harmless()": false, "select tree()": true,
			"select computed_tree()": true, "select harmless_tree()": false, "select calls_tree()": true,
			"select link_9()": true, `select "Loud Link"()`: true, "call sets()": true,
			"insert into t (a) values (1)": false,
			"select pure(1), reads(2)":     false, "call proc()": false, "select made_since()": true,
			"create table made_since (a int)": false, "select * from t x(made_since)": false,
			"insert into t (a) values (3) on conflict (a) do update set (a, b) = (1, 2)": false,
		} {
			if got := scanOne(t, sql, Options{}, cat); got.Setter != want {
				t.Errorf("%s: %+v", sql, got)
			}
		}
	})
}
