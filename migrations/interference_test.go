package migrations_test

import (
	"strings"
	"testing"
)

// Stored code may set the session variable or release a hold, although the text of the
// client does not show it.
func TestStoredCodeThatInterferesIsFound(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, app := db.admin(t), db.app(t)
		interferes := func() bool {
			t.Helper()
			return value[bool](t, app, "SELECT wirefence.stored_code_interferes()")
		}
		mustExec(t, admin, "CREATE TABLE t (id int, at text); CREATE FUNCTION trigger_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
		if interferes() {
			t.Error("found in a database without code")
		}
		const set, unlock = "set_config('wirefence.token', 'x=1', false)", "pg_advisory_unlock_shared(1)"
		for _, c := range []struct{ create, drop string }{
			{"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM " + set + "; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET LOCAL WireFence.\"token\" = 'x=1'; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET \"wirefence\" . token TO 'x=1'; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS text LANGUAGE sql RETURN " + set, "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS boolean LANGUAGE sql BEGIN ATOMIC SELECT " + unlock + "; END", "FUNCTION f()"},
			{"CREATE FUNCTION f(a text DEFAULT " + set + ") RETURNS int LANGUAGE sql AS 'SELECT 1'", "FUNCTION f(text)"},
			{"CREATE FUNCTION f() RETURNS int LANGUAGE sql SET wirefence.token = 'x=1' AS 'SELECT 1'", "FUNCTION f()"},
			{"CREATE PROCEDURE f() LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'select PG_ADVISORY_UNLOCK_ALL()'; END $$", "PROCEDURE f()"},
			{"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DISCARD  ALL'; RETURN 1; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET wirefence /* c */ . -- d\n token = 'x=1'; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'discard /* all */ all'; RETURN 1; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN /* don't */ EXECUTE $a$ DISCARD -- so\nALL $a$; RETURN 1; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT E'\\'/*'; DISCARD ALL; SELECT '*/' $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN '\\'' /* '' discard all */ '; END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT '--', 1 AS \"/*\"; DISCARD ALL; SELECT '*/' $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM wirefence.proxy_unhold(1, NULL); END $$", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS text LANGUAGE sql RETURN wirefence.proxy_hold(1, NULL, NULL, NULL, false, 'group')", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'DEALLOCATE _wirefence_check; PREPARE _wirefence_check(text) AS SELECT NULL'", "FUNCTION f()"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'DEALLOCATE PREPARE /**/ \"_wirefence_check\"'", "FUNCTION f()"},
			{"CREATE STATISTICS s ON (" + set + "), id FROM t", "STATISTICS s"},
			{"CREATE FUNCTION f() RETURNS void LANGUAGE internal AS 'pg_advisory_unlock_all'", "FUNCTION f()"},
			{"CREATE VIEW v AS SELECT " + set, "VIEW v"},
			{"CREATE VIEW v AS SELECT " + unlock, "VIEW v"},
			{"CREATE VIEW v AS SELECT current_setting('Wirefence.TOKEN', true)", "VIEW v"},
			{"CREATE MATERIALIZED VIEW v AS SELECT " + set, "MATERIALIZED VIEW v"},
			{"CREATE RULE r AS ON INSERT TO t DO ALSO SELECT " + set, "RULE r ON t"},
			{"CREATE RULE r AS ON INSERT TO t WHERE " + set + " = '' DO ALSO SELECT 1", "RULE r ON t"},
			{"ALTER TABLE t ADD d text DEFAULT " + set, ""},
			{"ALTER TABLE t ADD CONSTRAINT c CHECK (" + set + " <> '')", ""},
			{"CREATE POLICY p ON t USING (" + set + " <> '')", "POLICY p ON t"},
			{"CREATE POLICY p ON t FOR INSERT WITH CHECK (" + unlock + ")", "POLICY p ON t"},
			{"CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW WHEN (" + unlock + ") EXECUTE FUNCTION trigger_f()", "TRIGGER g ON t"},
			{"CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION trigger_f('wirefence.token')", "TRIGGER g ON t"},
			{"CREATE DOMAIN d AS text CHECK (" + set + " <> '')", "DOMAIN d"},
			{"CREATE DOMAIN d AS text DEFAULT " + set, "DOMAIN d"},
			{"CREATE AGGREGATE a (text, bool) (sfunc = set_config, stype = text, initcond = 'wirefence.token')", "AGGREGATE a (text, bool)"},
			{"CREATE OPERATOR ### (leftarg = int, rightarg = int, function = pg_advisory_unlock_shared)", "OPERATOR ### (int, int)"},
			{"CREATE CAST (bigint AS boolean) WITH FUNCTION pg_advisory_unlock_shared(bigint)", "CAST (bigint AS boolean)"},
		} {
			mustExec(t, admin, c.create)
			if !interferes() {
				t.Errorf("not found: %s", c.create)
			}
			if c.drop == "" {
				mustExec(t, admin, "DROP TABLE t; CREATE TABLE t (id int, at text)")
			} else {
				mustExec(t, admin, "DROP "+c.drop)
			}
		}
		// Ordinary code is not found; guards and their conditions are ordinary.
		mustExec(t, admin, strings.Join([]string{
			"CREATE FUNCTION calls() RETURNS void LANGUAGE plpgsql AS $$ BEGIN /* discard the rest of wirefence's tokens */ PERFORM wirefence.check('t=1'); END $$",
			"CREATE FUNCTION locks() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_advisory_xact_lock(1), wirefence.check(); END",
			"CREATE FUNCTION noted() RETURNS text LANGUAGE plpgsql AS $$ BEGIN -- discard all\n /* wirefence.token /* nested */ pg_advisory_unlock_all() '*/ RETURN 'it''s'; -- proxy_hold don't\nEND $$",
			"CREATE FUNCTION ends() RETURNS boolean LANGUAGE sql AS $$ SELECT pg_advisory_unlock(1) /* discard all */ $$",
			"CREATE FUNCTION prepares() RETURNS void LANGUAGE plpgsql AS $$ BEGIN /* wirefence */ EXECUTE 'prepare mine as select 1'; DISCARD PLANS; END $$",
			"CREATE FUNCTION other() RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.tenant', 'x', true) $$",
			"CREATE VIEW v AS SELECT t.*, current_setting('app.token', true), 'a wirefence' FROM t",
			"CREATE POLICY p ON t USING (at = current_setting('app.tenant'))",
			"SELECT wirefence.protect('t', 't:{id}')", "CREATE TABLE plain (id int) PARTITION BY LIST (id)", "SELECT wirefence.protect('plain', 'plain')",
		}, ";"))
		for _, setting := range []string{"on", "off"} {
			mustExec(t, app, "SET standard_conforming_strings = "+setting)
			if interferes() {
				t.Error("found what is ordinary")
			}
		}
		// What is in a temporary schema is for its own session, which any role can have.
		mustExec(t, app, strings.Join([]string{
			"CREATE FUNCTION pg_temp.z() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM " + set + "; END $$",
			"CREATE FUNCTION pg_temp.b() RETURNS boolean LANGUAGE sql RETURN " + unlock, "CREATE TEMP VIEW own AS SELECT " + set,
			"CREATE TEMP TABLE mine (a text DEFAULT " + set + " CHECK (" + unlock + "))", "CREATE POLICY p ON mine USING (" + unlock + ")",
			"CREATE DOMAIN pg_temp.d AS text DEFAULT " + set,
			"CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = pg_advisory_unlock_shared)",
			"CREATE AGGREGATE pg_temp.a (text, bool) (sfunc = set_config, stype = text)",
		}, ";"))
		if interferes() || value[bool](t, admin, "SELECT wirefence.stored_code_interferes()") {
			t.Error("found what is temporary")
		}
		// The settings of the caller do not matter.
		mustExec(t, admin, "CREATE FUNCTION last() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM "+set+"; END $$")
		mustExec(t, app, "SET search_path = public; SET enable_seqscan = off; SET enable_nestloop = off; SET standard_conforming_strings = off; SET work_mem = '64kB'")
		if !interferes() {
			t.Error("not found under settings of the caller's")
		}
	})
}
