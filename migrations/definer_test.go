package migrations_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// exempt are the functions that may break a rule of P1, and why.
var exempt = map[string]map[string]string{
	"executes a text": {
		"declare_called": "creates the functions of a class: the texts are its own, with names that format quotes and expressions that PostgreSQL has printed, of built-in functions alone",
		"recover_citus":  "reads what Citus has recorded, by texts of its own",
		"drop_functions": "drops functions that it found in the catalog, by their printed names",
	},
	"ends sessions": {
		"end_holder": "an advance on use ends older holders",
	},
}

// A function of the schema. inFrame says that it may run with the rights of wirefence_owner for
// a role that hasn't them.
type function struct {
	name, code              string
	definer, public, frozen bool // frozen: its body was parsed when it was created
	path                    bool // it sets its search_path
	inFrame                 bool
}

var (
	// notCode are comments and literals.
	notCode  = regexp.MustCompile(`(?s)--[^\n]*|#variable_conflict \w+|'(?:[^']|'')*'|\$(?:query|function)\$.*?\$(?:query|function)\$`)
	calls    = regexp.MustCompile(`(?i)(\bas\s+)?("?[a-z_][a-z_0-9]*"?(?:\."?[a-z_][a-z_0-9]*"?)?)\s*\(`)
	executes = regexp.MustCompile(`(?i)\bexecute\s+(?:''\s*(?:;|into|using)|(.))`)
	ends     = regexp.MustCompile(`(?i)\bpg_(terminate|cancel)_backend\b`)
	// What takes an operator from the path of the caller, where an operator is not qualified.
	operators = regexp.MustCompile(`(?i)\b(nullif|like|ilike|similar|between|is\s+(?:not\s+)?distinct|case\s+[^w\s]\w*|join\s[^;]*?\susing)\b|\bin\s*\(|[^:.<>=!(|]([<>=~|*/%^&#]+|!=)[^.=]`)
	// Other types' names are keywords.
	types = regexp.MustCompile(`(?i)[^.\w](text|name|oid|regclass|regproc|jsonb|uuid|timestamptz|int[248])\b`)
	// keywords may stand before a parenthesis.
	keywords = strings.Fields(`all and any array as attribute by cascade coalesce conflict distinct elsif else exists extract filter from greatest if in into least lateral materialized not
		nullif on or over partition perform position return returning row rows select set substring then trim using values when where while with within join`)
)

func functions(t *testing.T, conn *pgx.Conn) map[string][]*function {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT p.proname, coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), p.prosecdef,
			has_function_privilege('app', p.oid, 'EXECUTE') OR EXISTS (SELECT FROM pg_aggregate AS a WHERE p.oid IN (a.aggtransfn, a.aggfinalfn) AND has_function_privilege('app', a.aggfnoid, 'EXECUTE')),
			p.prosqlbody IS NOT NULL, coalesce(p.proconfig @> '{"search_path=pg_catalog, pg_temp"}', false), EXISTS (SELECT FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
			WHERE t.tgfoid = p.oid AND c.relnamespace = p.pronamespace)
		FROM pg_proc AS p WHERE p.pronamespace = 'wirefence'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]*function{}
	var f function
	_, err = pgx.ForEachRow(rows, []any{&f.name, &f.code, &f.definer, &f.public, &f.frozen, &f.path, &f.inFrame}, func() error {
		f.code = notCode.ReplaceAllStringFunc(f.code, func(part string) string { return map[bool]string{true: "''"}[strings.ContainsAny(part[:1], "'$")] })
		g := f
		all[f.name] = append(all[f.name], &g)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// enter marks what a function in the owner's frame calls.
func enter(all map[string][]*function, f *function) {
	f.inFrame = true
	for _, m := range regexp.MustCompile(`\bwirefence\."?([a-z_0-9]+)"?`).FindAllStringSubmatch(f.code, -1) {
		for _, called := range all[m[1]] {
			if !called.inFrame {
				enter(all, called)
			}
		}
	}
}

// What runs with the rights of wirefence_owner for everybody executes no text, calls nothing that
// a user can replace, and ends no session. What has no search_path of its own names all it uses.
func TestNothingForeignRunsAsTheOwner(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, "SELECT wirefence.protect('q.results', 'job({job_id})')")
		all := functions(t, db.admin(t))
		builtin := column[string](t, app, "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace")
		slices.Sort(builtin)
		for _, named := range all {
			for _, f := range named {
				if f.definer && f.public || f.inFrame {
					enter(all, f)
				}
			}
		}
		used := map[string]bool{}
		fault := func(f *function, rule, detail string) {
			if _, ok := exempt[rule][f.name]; ok {
				used[rule+f.name] = true
				return
			}
			t.Errorf("wirefence.%s %s: %s", f.name, rule, detail)
		}
		framed := 0
		for _, named := range all {
			for _, f := range named {
				if f.inFrame {
					framed++
					for _, m := range executes.FindAllStringSubmatch(f.code, -1) {
						if m[1] != "" {
							fault(f, "executes a text", m[0])
						}
					}
					if m := ends.FindString(f.code); m != "" {
						fault(f, "ends sessions", m)
					}
				}
				if !f.inFrame && !f.public {
					continue
				}
				for _, m := range calls.FindAllStringSubmatch(f.code, -1) {
					schema, name, qualified := strings.Cut(strings.ReplaceAll(strings.ToLower(m[2]), `"`, ""), ".")
					_, isBuiltin := slices.BinarySearch(builtin, schema)
					switch {
					case m[1] != "" || schema == "operator" || slices.Contains(keywords, schema):
					case qualified && schema == "wirefence":
					case qualified && schema == "pg_catalog" && name != "":
					case !qualified && (f.frozen || isBuiltin && f.path):
					default:
						fault(f, "calls what a user can replace", m[0])
					}
				}
				if !f.path && !f.frozen {
					if m := types.FindString(f.code); m != "" {
						fault(f, "takes a type from the caller's path", fmt.Sprintf("%q", m))
					}
					if m := operators.FindString(regexp.MustCompile(`(?i)operator\(pg_catalog\.[^)]*\)`).ReplaceAllString(f.code, " ")); m != "" {
						fault(f, "takes an operator from the caller's path", fmt.Sprintf("%q", m))
					}
				}
			}
		}
		for rule, named := range exempt {
			for name := range named {
				if !used[rule+name] {
					t.Errorf("%s %s no more: take it off the list", name, rule)
				}
			}
		}
		if framed < 100 {
			t.Errorf("only %d functions run as the owner", framed)
		}
	})
}

// traps makes, in a schema ahead of pg_catalog, an operator, a function, a type and a view for
// most of those that the functions of the schema use. Each reports the role with whose rights it
// runs, and then does what the original does; tables that could take the place of the schema's are
// empty. INFO comes through whatever client_min_messages is.
const traps = `
	CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO PUBLIC;
	CREATE TABLE evil.resource_locks (LIKE wirefence.resource_locks); CREATE TABLE evil.guards (LIKE wirefence.guards); GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC;
	CREATE FUNCTION evil.trap(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$ BEGIN RAISE INFO 'trap % as %', what, current_user; RETURN true; END $$;
	DO $do$
	DECLARE
		o record;
		n integer := 0;
		usual CONSTANT oid[] := '{text,int4,int8,int2,bool,oid,name,timestamptz,interval,"char",regclass,numeric,float8,xid,tid,jsonb,anyarray,text[],oidvector,int2vector}'::regtype[]::oid[];
	BEGIN
		FOR o IN SELECT p.oprname AS name, p.oprleft::regtype AS l, p.oprright::regtype AS r, p.oprresult::regtype AS result FROM pg_operator AS p
			WHERE p.oprleft = ANY (usual) AND p.oprright = ANY (usual) AND p.oprresult <> 0 AND p.oprcode <> 0 LOOP
			n := n + 1;
			EXECUTE format('CREATE FUNCTION evil.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap(%L); RETURN $1 OPERATOR(pg_catalog.%s) $2; END $$',
				n, o.l, o.r, o.result, 'operator ' || o.name, o.name);
			EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.op_%s)', o.name, o.l, o.r, n);
		END LOOP;
		FOR o IN SELECT DISTINCT p.proname AS name, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result,
				(SELECT string_agg('$' || g, ', ') FROM generate_series(1, p.pronargs) AS g) AS given
			FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0 AND p.pronargs > 0
				AND NOT p.proargtypes::oid[] && '{internal,cstring,anyenum,anyrange,anymultirange,trigger}'::regtype[]::oid[]
				AND p.proallargtypes IS NULL AND p.prorettype NOT IN ('cstring'::regtype, 'internal'::regtype, 'trigger'::regtype, 'anyrange'::regtype, 'anymultirange'::regtype)
				AND EXISTS (SELECT FROM pg_proc AS w WHERE w.pronamespace = 'wirefence'::regnamespace AND w.prosrc ~ ('\m' || p.proname || '[(]')) LOOP
			EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap(%L); %s pg_catalog.%I(%s); END $$',
				o.name, o.args, o.result, 'function ' || o.name, CASE o.result WHEN 'void' THEN 'PERFORM' ELSE 'RETURN' END, o.name, o.given);
		END LOOP;
		FOREACH o.name IN ARRAY '{pg_class,pg_proc,pg_type,pg_index,pg_locks,pg_stat_activity,pg_roles,pg_namespace,pg_trigger,pg_depend}'::text[] LOOP
			EXECUTE format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%1$I WHERE evil.trap(%L); GRANT SELECT ON evil.%1$I TO PUBLIC', o.name, 'view ' || o.name);
		END LOOP;
		FOREACH o.name IN ARRAY '{text,int8,int4,bool,regclass,name,timestamptz,jsonb,oid}'::text[] LOOP
			EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%1$I CHECK (evil.trap(%L))', o.name, 'type ' || o.name);
		END LOOP;
		CREATE FUNCTION evil.concat(VARIADIC pg_catalog.text[]) RETURNS pg_catalog.text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap('function concat'); RETURN pg_catalog.concat(VARIADIC $1); END $$;
		CREATE FUNCTION evil.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.trap('function unnest'); RETURN QUERY SELECT * FROM pg_catalog.unnest($1); END $$;
	END
	$do$;`

// Whatever search_path and settings its caller has, no function that everybody or an issuer may call,
// and no guard, runs foreign code with the rights of another role, and verdicts are the same.
func TestNoTrapRunsAsAnotherRole(t *testing.T) {
	stack.NeedsMore(t, "6 s of CPU")
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		admin := db.admin(t)
		db.seal(t, "orders", 34)
		mustExec(t, app, "SELECT wirefence.protect('q.results', 'job({job_id})'); CREATE TABLE q.orders (id int PRIMARY KEY, note text); SELECT wirefence.protect('q.orders', 'orders')")
		mustExec(t, admin, `CREATE TABLE public.lines (id int PRIMARY KEY, owner int REFERENCES q.orders ON DELETE CASCADE, tenant text);
			CREATE TABLE public.parts (id int REFERENCES q.orders ON DELETE CASCADE); CREATE TABLE public.works (job_id bigint REFERENCES q.job ON DELETE CASCADE);
			SELECT wirefence.protect('public.lines', 'line:{tenant}'), wirefence.protect('public.parts', 'orders'), wirefence.protect('public.works', 'job({job_id})')`)
		mustExec(t, app, "SET wirefence.token = 'orders=34'; INSERT INTO q.orders VALUES (1, 'a')")
		mustExec(t, admin, "SET wirefence.token = 'orders=34,line:a=1,job(9)=90'; INSERT INTO public.lines VALUES (1, 1, 'a'); INSERT INTO public.parts VALUES (1); INSERT INTO public.works VALUES (9)")
		mustExec(t, admin, traps)
		callable := column[string](t, admin, `SELECT format('wirefence.%I(%s)', p.proname, (SELECT string_agg(a.type::regtype::text, ';' ORDER BY a.at) FROM unnest(p.proargtypes) WITH ORDINALITY AS a(type, at)))
			FROM pg_proc AS p WHERE p.pronamespace = 'wirefence'::regnamespace AND p.prorettype <> 'trigger'::regtype AND has_function_privilege('issuer', p.oid, 'EXECUTE') ORDER BY 1`)
		// A value of each type, as a plausible call has it.
		values := map[string][]string{
			"text": {"NULL", "'orders=34'", "'job(1)=10'", "'job(1)=10,job(2)=20,orders=34'", "'job'", "'WF001'", "'group'", "'same'", "'line:{tenant}'", "'note'"}, "boolean": {"false", "true"},
			"integer": {"1"}, "bigint": {"10"}, "interval": {"'1 s'"}, "name": {"'app'"}, "regclass": {"'q.job'", "'q.orders'"}, "text[]": {"'{id}'", "'{job(1)}'", "NULL"}, "bigint[]": {"'{10}'"},
			"jsonb": {"'{}'"}, "anyelement": {"1::pg_catalog.int4"}, "oid": {"1"}, "timestamp without time zone": {"'2026-01-01'"}, "timestamp with time zone": {"'2026-01-01'"},
		}
		statements := []string{
			"SET LOCAL wirefence.token = 'job(1)=10'; INSERT INTO q.results VALUES (1)", "SET LOCAL wirefence.token = 'job(1)=11'; INSERT INTO q.results VALUES (1)", "INSERT INTO q.results VALUES (1)",
			"SET LOCAL wirefence.token = 'orders=34,line:a=1'; DELETE FROM q.orders", "SET LOCAL wirefence.token = 'orders=34'; DELETE FROM q.orders", "DELETE FROM q.orders", "TRUNCATE q.orders CASCADE",
			"SET LOCAL wirefence.token = 'job(9)=90'; DELETE FROM q.job WHERE id = 9", "DELETE FROM q.job WHERE id = 9", "SET LOCAL wirefence.token = 'orders=34'; UPDATE q.orders SET id = 2",
			"SELECT wirefence.declare_rows('mine', 'q.job', '{id}', 'claim', 'state = ''running'''); SELECT wirefence.check('mine(1)=10')",
			"SELECT wirefence.declare_rows('mine', 'q.job', '{id}', 'claim', 'state = ''running''', until => 'timestamp ''2030-01-01'' + claim * interval ''1 s'''); UPDATE q.job SET claim = claim", "SELECT wirefence.drop_rows('job')",
			"SELECT wirefence.protect('q.orders', 'line:{note}'); SELECT wirefence.unprotect('q.orders')", "SELECT wirefence.check('job(77)=1')", "SELECT wirefence.check('none(77)=1')",
			"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT wirefence.check('job(1)=11'); ", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT wirefence.check('job(1)=11')",
		}
		verdicts := map[string]map[string]string{"app": {
			"SELECT wirefence.check('orders=34')": "", "SELECT wirefence.check('orders=33')": "WF001", "SELECT wirefence.check('orders=35')": "WF003",
			"SELECT wirefence.check('job(1)=10')": "", "SELECT wirefence.check('job(1)=11')": "WF001",
			"SET LOCAL wirefence.token = 'orders=34'; UPDATE q.orders SET note = 'b'": "", "SET LOCAL wirefence.token = 'orders=33'; UPDATE q.orders SET note = 'b'": "WF001", "UPDATE q.orders SET note = 'b'": "WF002",
		}, "issuer": {
			"SELECT wirefence.seal('orders', 35, 'me', 'etcd'), wirefence.declare_resource('declared', 'why', source => 'etcd', advance => 'use'), wirefence.revoke('orders')": "",
			"SELECT wirefence.set_resource('orders', 'why', source => 'redis', reuse => 'once', preempt_after => '1 s', last_token => 7)":                                      "", "SELECT * FROM wirefence.status()": "",
			"SELECT wirefence.acquire('leased', 'me', '1 min', 'g'), wirefence.acquire('leased', 'rival', '1 min'); SELECT wirefence.renew('leased', 'g', '1 min'), wirefence.release('leased', 'g')": "",
		}}
		for _, f := range callable {
			name, types, _ := strings.Cut(strings.TrimSuffix(f, ")"), "(")
			for round := range 10 {
				var args []string
				for at, kind := range strings.FieldsFunc(types, func(r rune) bool { return r == ';' }) {
					all := values[kind]
					if all == nil {
						t.Fatalf("no value of type %s for %s", kind, f)
					}
					args = append(args, all[(round+at*(round/5))%len(all)]+"::pg_catalog."+map[bool]string{true: kind, false: "int4"}[kind != "anyelement"])
				}
				call := name + "(" + strings.Join(args, ", ") + ")"
				call = strings.NewReplacer("pg_catalog.timestamp without time zone", "pg_catalog.timestamp", "pg_catalog.boolean", "pg_catalog.bool", "pg_catalog.bigint", "pg_catalog.int8", "pg_catalog.integer", "pg_catalog.int4").Replace(call)
				if !slices.Contains(statements, "SELECT "+call) {
					statements = append(statements, "SELECT "+call)
				}
			}
		}
		states := map[string]int{}
		for _, role := range []string{"app", "issuer"} {
			conn, notices := db.noticing(t, role)
			for _, path := range []string{"evil, pg_catalog, public, q", "pg_temp, evil, pg_catalog, wirefence"} {
				mustExec(t, conn, "DISCARD ALL")
				mustExec(t, conn, `SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo'; SET intervalstyle = 'sql_standard'; SET bytea_output = 'escape'; SET quote_all_identifiers = on;
					SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = on; SET transform_null_equals = on; SET array_nulls = off; SET client_min_messages = error;
					SET check_function_bodies = off; SET extra_float_digits = -15; SET plan_cache_mode = force_generic_plan; SET statement_timeout = '20s'; SET search_path = `+path)
				for _, sql := range slices.AppendSeq(slices.Clip(statements), maps.Keys(verdicts[role])) {
					*notices = nil
					err := exec(conn, "BEGIN; "+sql)
					if want, has := verdicts[role][sql]; has {
						stack.WantState(t, err, want, role, path, sql)
					}
					states[code(err)]++
					if err := exec(conn, "ROLLBACK"); err != nil {
						t.Fatalf("%s: %v", sql, err)
					}
					for _, trap := range *notices {
						if strings.HasPrefix(trap.Message, "trap ") && !strings.HasSuffix(trap.Message, " as "+role) {
							t.Errorf("%s: as %s under %s: %s", sql, role, path, trap.Message)
						}
					}
				}
				*notices = nil
				if mustExec(t, conn, "SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text, 1 < 2"); len(*notices) == 0 {
					t.Error("no trap works")
				}
			}
		}
		// Nor is the client taken in that compares the schema.
		hostileClient := db.admin(t)
		mustExec(t, hostileClient, "SET search_path = evil, pg_catalog, wirefence")
		wantNoDrift(t, hostileClient)
		if states[""] < 1000 {
			t.Errorf("of all calls only %d succeed: %v", states[""], slices.Sorted(maps.Keys(states)))
		}
	})
}

// The owner of a table changes its functions, columns and judges as fast as it can, while a session
// checks its rows. Nothing of it may run as wirefence_owner.
func TestACheckRacesWithTheTablesOwner(t *testing.T) {
	stack.NeedsMore(t, "8 s of CPU")
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, db.admin(t), "SELECT wirefence.seal('orders', 34)")
		mustExec(t, app, `
			CREATE FUNCTION q.steal(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
				IF current_user <> 'app' THEN RAISE EXCEPTION 'stolen as %', current_user USING ERRCODE = 'XX999'; END IF; RETURN $1; END $$;
			CREATE TYPE q.evil AS (n bigint);
			CREATE FUNCTION q.steal(q.evil) RETURNS bigint LANGUAGE sql AS $$ SELECT q.steal('10')::bigint $$;
			CREATE FUNCTION q.evil(bigint) RETURNS q.evil LANGUAGE sql AS $$ SELECT ROW($1)::q.evil $$;
			CREATE CAST (q.evil AS bigint) WITH FUNCTION q.steal(q.evil) AS IMPLICIT;
			CREATE FUNCTION q.own(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT q.steal('1') = '1' $$;
			CREATE OPERATOR q.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = q.own);
			CREATE OPERATOR q.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = q.own);
			CREATE FUNCTION q.wirefence_judge_job(text[], bigint[], boolean, boolean) RETURNS text LANGUAGE sql AS $$ SELECT q.steal('1') $$`)
		functions := []string{
			"ALTER FUNCTION q.steal(text) SECURITY DEFINER; ALTER FUNCTION q.steal(text) SECURITY INVOKER; ALTER FUNCTION q.wirefence_judge_job SECURITY DEFINER; ALTER FUNCTION q.wirefence_judge_job SECURITY INVOKER",
			"ALTER TYPE q.state RENAME TO former; CREATE DOMAIN q.state AS text CHECK (q.steal(VALUE) = VALUE); DROP DOMAIN q.state; ALTER TYPE q.former RENAME TO state",
			`CREATE TEMPORARY TABLE wirefence_rows (claim bigint, state q.evil, id bigint); CREATE INDEX wirefence_claim ON wirefence_rows (wirefence.is_claim(claim));
				CREATE INDEX wirefence_condition ON wirefence_rows (wirefence.is_condition((state).n > id)); SELECT wirefence.record_rows('job', 'q.job'::regclass::oid::text, '{id}', 'false'); DROP TABLE wirefence_rows`,
		}
		table := []string{
			"ALTER TABLE q.job ALTER claim TYPE q.evil USING q.evil(claim); ALTER TABLE q.job ALTER claim TYPE bigint USING (claim).n",
			"ALTER TABLE q.job RENAME TO old; CREATE VIEW q.job AS SELECT o.id, o.state, o.claim, q.steal(o.note) AS note FROM q.old AS o WHERE q.steal('1') = '1'; DROP VIEW q.job; ALTER TABLE q.old RENAME TO job",
			"ALTER TABLE q.job RENAME claim TO former; ALTER TABLE q.job RENAME note TO claim; ALTER TABLE q.job RENAME claim TO note; ALTER TABLE q.job RENAME former TO claim",
			"SELECT wirefence.declare_rows('job', 'q.job', '{id}', 'claim', 'state = ''running'' AND claim > 0')",
			"BEGIN; SELECT wirefence.drop_rows('job'); SELECT wirefence.declare_rows('job', 'q.job', '{id}', 'claim', 'state = ''running'''); COMMIT",
		}
		mustExec(t, app, "SET search_path = q, pg_catalog")
		judged := map[string]int{}
		// The owner's changes of the table hold up each check.
		for _, round := range []struct {
			attacks []string
			tries   int
		}{{functions, 10000}, {table, 100}} {
			var over atomic.Bool
			var attackers sync.WaitGroup
			var wild atomic.Pointer[error]
			for n := range 2 {
				other := db.app(t)
				mustExec(t, other, "SET search_path = q, pg_catalog; SET lock_timeout = '1s'")
				attackers.Go(func() {
					for i := n; !over.Load(); i++ {
						if err := exec(other, round.attacks[i%len(round.attacks)]); code(err) == "XX999" {
							wild.Store(&err)
						}
						_ = exec(other, "ROLLBACK; DROP TABLE IF EXISTS wirefence_rows")
					}
				})
			}
			if testing.Short() {
				round.tries /= 5
			}
			for i := range round.tries {
				err := exec(app, []string{"SELECT wirefence.check('job(1)=10')", "SELECT wirefence.check('job(1)=10,job(2)=20')", "SELECT wirefence.check('job(1)=11')"}[i%3])
				if judged[code(err)]++; code(err) == "XX999" {
					wild.Store(&err)
				}
			}
			over.Store(true)
			attackers.Wait()
			if err := wild.Load(); err != nil {
				t.Error(*err)
			}
		}
		if token := look[int](t, db, "SELECT last_token::int FROM wirefence.resource_locks"); token != 34 || judged["WF001"] == 0 {
			t.Errorf("the token is %d; checks ended with %v", token, judged)
		}
		t.Log(judged)
	})
}
