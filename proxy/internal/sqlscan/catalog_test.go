package sqlscan

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestCatalogQueryIsImmuneToTheSession(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, objects)
		mustRun(t, conn, `drop schema if exists evil cascade; create schema evil; grant usage on schema evil to plain_user;
			create function evil.liar(oid, oid) returns boolean language sql as 'select false';
			create function evil.liar(name, name) returns boolean language sql as 'select false';
			create function evil.liar(text, text) returns boolean language sql as 'select false';
			create operator evil.= (leftarg = oid, rightarg = oid, function = evil.liar);
			create operator evil.= (leftarg = name, rightarg = name, function = evil.liar);
			create operator evil.= (leftarg = text, rightarg = text, function = evil.liar);
			create operator evil.~ (leftarg = text, rightarg = text, function = evil.liar);
			create function evil.strpos(text, text) returns int language sql as 'select 0';
			create table evil.pg_proc (oid oid)`)
		want := answer(t, conn)
		mustRun(t, conn, "set role plain_user; set search_path = evil, pg_catalog; set standard_conforming_strings = off")
		if got := answer(t, conn); got != want {
			t.Errorf("a hostile search_path makes %d bytes of %d", len(got), len(want))
		}
		mustRun(t, conn, "reset role; reset search_path; set standard_conforming_strings = on; drop schema evil cascade")
		if text := answer(t, conn); !contains(text, "sabs") || !contains(text, "unextval") || !contains(text, "rvv") ||
			!contains(text, "rvn") || !contains(text, "tchecked") || !contains(text, "o###") || !contains(text, "ffield") ||
			!contains(text, "xchooses") || !contains(text, "tint2") || !contains(text, "pproc") ||
			contains(text, "rclean") || contains(text, "tplain") || contains(text, "o#+#") || contains(text, "!") {
			t.Error("the catalog's answer is wrong")
		}
	})
}

// answer is the catalog's text with its lines sorted.
func answer(t *testing.T, conn *pgconn.PgConn) string {
	t.Helper()
	results, err := conn.Exec(context.Background(), CatalogQuery).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	sorted := lines(string(results[0].Rows[0][0]))
	slices.Sort(sorted)
	return strings.Join(sorted, "\n")
}

func contains(text, line string) bool {
	return slices.Contains(lines(text), line)
}

// A client's encoding may lack what a name has.
func TestCatalogQueryIsAnsweredInEveryEncoding(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, objects)
		mustRun(t, conn, `drop schema if exists beyond cascade; create schema beyond; set search_path = beyond, public;
			create function "wéird"(text) returns text language sql as $$ select 'x' $$;
			create function "Ändert"() returns text language sql as $$ select set_config('wirefence.token', '', false) $$;
			create procedure "löscht"() language sql as $$ delete from pg_class where false $$;
			create view "日本" as select nextval('pg_catalog.pg_class'::regclass);
			create domain "тип" as int check (nextval('pg_catalog.pg_class'::regclass) > value)`)
		want := answer(t, conn)
		for _, encoding := range []string{"win1251", "sjis", "latin1", "sql_ascii"} {
			mustRun(t, conn, "set client_encoding = "+encoding)
			if got := answer(t, conn); got != want {
				t.Errorf("in %s the answer has %d bytes of %d", encoding, len(got), len(want))
			}
		}
		mustRun(t, conn, "reset client_encoding; reset search_path; drop schema beyond cascade")
		if !contains(want, "x?") || !contains(want, "r?") || !contains(want, "t?") || contains(want, "s?") || contains(want, "!") {
			t.Error("what names beyond ASCII may do is not said")
		}
		unended := slices.DeleteFunc(lines(want), func(line string) bool { return line == "." })
		cat, err := ParseCatalog([]byte(strings.Join(unended, "\n") + "\n."))
		if err != nil || !cat.HasSetters() {
			t.Fatalf("no setter is known, %v", err)
		}
		for _, sql := range []string{`select "wéird"('x')`, `select "Ändert"()`, `table "日本"`, `select '1'::"тип"`} {
			if !scanOne(t, sql, Options{}, cat).Write {
				t.Errorf("%s counts as a read", sql)
			}
		}
	})
}

// What calls the schema's functions sets no fence by that.
func TestCallsOfTheSchemaSetNoFence(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		for body, sets := range map[string]bool{
			`begin perform wirefence.check(); end`:                                             false,
			`begin perform wirefence.check ('a=1'), WIREFENCE.seal('a', 1, 'h'); end`:          false,
			`begin perform wirefence.check(); set local wirefence.token = 'a=1'; end`:          true,
			`begin perform wirefence.check(); set local wirefence . token = 'a=1'; end`:        true,
			`begin execute 'set wirefence.tok' || 'en = ''a=1'''; end`:                         true,
			`begin perform set_config('wirefence.token', 'a=1', true); end`:                    true,
			`begin perform set_config('wirefence.' || 'tok' || chr(101) || 'n', '', true);end`: true,
			`begin perform "wirefence".check(); end`:                                           true, // can't be told apart
		} {
			mustRun(t, conn, "create or replace function checks_or_sets() returns void language plpgsql as $$ "+body+" $$")
			if got := contains(answer(t, conn), "xchecks_or_sets"); got != sets {
				t.Errorf("%s counts as one that sets a fence: %v", body, got)
			}
		}
		mustRun(t, conn, "drop function checks_or_sets()")
	})
}

func TestParseCatalogRefusesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{"", "sabs", "sabs\n", "sabs\nunextval", "?abs\n."} {
		if _, err := ParseCatalog([]byte(text)); err == nil {
			t.Errorf("%q passes", text)
		}
	}
	cat, err := ParseCatalog([]byte("sabs\n!\n."))
	if err != nil {
		t.Fatal(err)
	}
	if !scanOne(t, "select abs(1)", Options{}, cat).Write {
		t.Error("a line ! does not make a write of every query")
	}
}

func TestCatalogTextKnowsTheGrammarsTypeNames(t *testing.T) {
	cat, err := ParseCatalog([]byte("tint4\ntfloat8\ntvarchar\nsf\nuf\nsf\n."))
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]bool{
		"select a::int": true, "select cast(a as integer)": true, "select a::int4": true, "select a::double precision": true,
		"select a::float(53)": true, "select a::character varying(3)": true, "select a::national char varying(3)": true,
		"select a::varchar": true, "select a::bigint": false, "select f(1)": true,
	} {
		if scanOne(t, sql, Options{}, cat).Write != want {
			t.Errorf("%s: want %v", sql, want)
		}
	}
}

func TestTemporaryFunctionsAreUnknown(t *testing.T) {
	cat, err := ParseCatalog([]byte("sabs\n."))
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]bool{
		"select abs(1)": false, "select pg_catalog.abs(1)": false, "select pg_temp.abs(1)": true,
		`select "pg_temp_3".abs(1)`: true, `select U&"pg\005ftemp".abs(1)`: true, "select été(1)": true,
	} {
		if scanOne(t, sql, Options{}, cat).Write != want {
			t.Errorf("%s: want %v", sql, want)
		}
	}
}

// What is sent in a client's session is in the client's encoding: a character that the
// database's lacks would be an error.
func TestQueriesAreASCII(t *testing.T) {
	for _, query := range []string{CatalogQuery, StampQuery} {
		for line := range strings.Lines(query) {
			if strings.ContainsFunc(line, func(r rune) bool { return r >= 0x80 }) {
				t.Errorf("not ASCII: %s", line)
			}
		}
	}
}
