package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Each type that a template may name has one text for each value, in the condition of the
// trigger and in the refusal.
func TestTypesOfATemplatesColumns(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, `CREATE TYPE mood AS ENUM ('sad', 'so-so'); CREATE DOMAIN code AS varchar(8) CHECK (VALUE <> ''); CREATE DOMAIN item AS code NOT NULL;
			CREATE TABLE typed (a smallint, b bigint, c uuid, d mood, e item, f name, g oid, h boolean, i text GENERATED ALWAYS AS ('i' || a) STORED);
			SELECT wirefence.protect('typed', '{a}:{b}:{c}:{d}:{e}:{f}:{g}:{h}:{i}')`)
		const row = "INSERT INTO typed VALUES (-5, 9223372036854775807, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'so-so', 'E', 'F', 4294967295, 'yes')"
		const name = "-5:9223372036854775807:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11:so-so:E:F:4294967295:true:i-5"
		wantSaid(t, row, exec(admin, row), "WF002", `"`+name+`"`)
		mustExec(t, admin, "SET datestyle = 'German'; SET extra_float_digits = 0; SET bytea_output = 'escape'; SET wirefence.token = '"+name+"=1'; "+row)
		mustExec(t, admin, "UPDATE typed SET h = h; DELETE FROM typed")
	})
}

// The other columns of a row do not matter to its guard: json may have no jsonb
// equivalent, as with an escape that is no character.
func TestATemplatesOtherColumnsMayHoldAnything(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, fmt.Sprintf(`CREATE ROLE %[1]s_fixer LOGIN IN ROLE wirefence_bypass;
			CREATE TABLE docs (k text NOT NULL, doc json) PARTITION BY LIST (k); CREATE TABLE trial (k text NOT NULL, doc json);
			SELECT wirefence.protect('docs', 'docs:{k}'), wirefence.protect('trial', 'trial:{k}', true);
			CREATE TABLE docs_a PARTITION OF docs FOR VALUES IN ('a'); GRANT ALL ON ALL TABLES IN SCHEMA public TO app, %[1]s_fixer`, db.name))
		app, fixer := db.app(t), db.as(t, db.name+"_fixer")
		for _, doc := range []string{`{"x": "\u0000"}`, `{"x": "\ud800"}`, `{"x": 1}`} {
			insert := fmt.Sprintf("INSERT INTO docs_a VALUES ('a', '%s')", doc)
			for _, before := range []string{
				"SET LOCAL wirefence.token = 'docs:a=1'",
				"SELECT wirefence.check('docs:a=1'); SAVEPOINT s; SELECT wirefence.check('docs:b=1'); ROLLBACK TO s",
				"SET LOCAL wirefence.token = 'docs:a=1'; INSERT INTO docs VALUES ('a', '1'); RESET wirefence.token",
			} {
				mustExec(t, app, "BEGIN; "+before)
				wantCode(t, exec(app, insert+"; UPDATE docs SET doc = '2'; DELETE FROM docs"), "")
				mustExec(t, app, "ROLLBACK")
			}
			wantCode(t, exec(app, insert), "WF002")
			wantCode(t, exec(fixer, insert), "")
			wantCode(t, exec(app, strings.Replace(insert, "docs_a", "trial", 1)), "")
		}
		db.wantNoted(t, "WF002 trial:a trial", "WF002 trial:a trial", "WF002 trial:a trial")
	})
}

// A dropped column gives no name, even if something else has its name: functions of a row
// can be written like its columns.
func TestATemplatesColumnThatHasGone(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		for i, name := range []string{"k", "count", "there", "given", "gone", "line", "docs", "text", "we ird", `"$1`, "ctid2", "Größe"} {
			quoted := pgx.Identifier{name}.Sanitize()
			mustExec(t, admin, fmt.Sprintf("CREATE TABLE t%[1]d (%[2]s text, n int, other text); SELECT wirefence.protect('t%[1]d', '{%[3]s}/{n}''\\/{n}')", i, quoted, name))
			insert := fmt.Sprintf("INSERT INTO t%d VALUES ('a', 1, 'b')", i)
			wantMessage := func(says string) {
				t.Helper()
				wantSaid(t, name, exec(admin, insert), "WF002", says)
			}
			wantMessage(`"a/1'\/1"`)
			mustExec(t, admin, fmt.Sprintf("ALTER TABLE t%d RENAME COLUMN %s TO renamed", i, quoted))
			wantMessage("belongs to no resource")
			mustExec(t, admin, fmt.Sprintf("ALTER TABLE t%d RENAME COLUMN other TO %s", i, quoted))
			wantMessage(`"b/1'\/1"`)
		}
	})
}

// Two different rows never get the same name, whatever their columns contain.
func TestNoTwoRowsMakeOneName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		for _, template := range []string{"t:{a}:{b}", "{a}::{b}", "{a}%{b}", "{a}%3A{b}", "{a}é{b}", "{a}-x-{b}/end", "{a}_{b}_{a}"} {
			mustExec(t, admin, `CREATE TABLE pairs (a text NOT NULL, b text NOT NULL);
				INSERT INTO pairs SELECT a, b FROM unnest('{x,"",:,x:y,y:z,%,%3A,%25,3A,é,xé,-,-x-,/end,_,x_,::,"::x"}'::text[]) AS a, unnest('{x,"",:,x:y,y:z,%,%3A,%25,3A,é,xé,-,-x-,/end,_,x_,::,"::x"}'::text[]) AS b`)
			expression := value[string](t, admin, "SELECT wirefence.name_expression($1, 'p')", template)
			if n := value[int](t, admin, "SELECT count(*) - count(DISTINCT "+expression+") FROM pairs AS p"); n != 0 {
				t.Errorf("%s: %d rows share a name", template, n)
			}
			if differ := value[bool](t, admin, "SELECT bool_or(("+strings.ReplaceAll(value[string](t, admin, "SELECT wirefence.row_query($1)", template), "$1", "p")+") IS DISTINCT FROM "+expression+") FROM pairs AS p"); differ {
				t.Errorf("%s: the trigger's function makes other names than its condition", template)
			}
			mustExec(t, admin, "SELECT wirefence.protect('pairs', $1)", template)
			wantCode(t, exec(admin, "INSERT INTO pairs VALUES ('x:y', 'z')"), "WF002")
			mustExec(t, admin, "DROP TABLE pairs")
		}
		mustExec(t, admin, "CREATE TABLE pairs (a text NOT NULL, b text NOT NULL)")
		err := exec(admin, "SELECT wirefence.protect('pairs', 't:{a}{b}')")
		wantCode(t, err, "22023")
		// The token of one row writes no other.
		mustExec(t, admin, "SELECT wirefence.protect('pairs', 't:{a}:{b}')")
		app := db.app(t)
		mustExec(t, admin, "GRANT ALL ON pairs TO app")
		mustExec(t, app, "SET wirefence.token = 't:x%253Ay:z=1'; INSERT INTO pairs VALUES ('x:y', 'z')")
		wantCode(t, exec(app, "INSERT INTO pairs VALUES ('x', 'y:z')"), "WF002")
		mustExec(t, app, "SET wirefence.token = 't:x:y:z=1'; INSERT INTO pairs VALUES ('x', 'y:z')")
		wantCode(t, exec(app, "INSERT INTO pairs VALUES ('x:y', 'z')"), "WF002")
		mustExec(t, app, "SET wirefence.token = 't:plain:value=1'; INSERT INTO pairs VALUES ('plain', 'value')")
	})
}
