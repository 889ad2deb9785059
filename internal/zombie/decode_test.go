package zombie

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

func TestParseChange(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`table public.totals: INSERT: day[date]:'2026-11-23' n[integer]:7 by[text]:null`:                             "public.totals INSERT nil / by=null day='2026-11-23' n=7",
		`table public.t: UPDATE: id[integer]:1 v[text]:unchanged-toast-datum w[text]:'it''s [a] b: c'`:               "public.t UPDATE nil / id=1 w='it''s [a] b: c'",
		`table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2`:                                    "public.t UPDATE id=1 / id=2",
		`table public."T: x, ""y""": DELETE: "a[b] "[timestamp with time zone]:'x' c[integer[]]:'{1,2}'`:             `public."T: x, ""y""" DELETE a[b] ='x' c='{1,2}' / nil`,
		`table public.t: DELETE: (no-tuple-data)`:                                                                    "public.t DELETE nil / nil",
		`table public.t, s.u: TRUNCATE: restart_seqs cascade`:                                                        "public.t,s.u TRUNCATE nil / nil",
		`table public.t: INSERT: a[bit]:B'101' b[boolean]:true c[s."x]: y"]:'z' d[numeric]:NaN e[text]:'new-tuple:'`: "public.t INSERT nil / a=101 b=true c='z' d=NaN e='new-tuple:'",
	} {
		c, err := parseChange(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		told := func(r Row) string {
			if r == nil {
				return "nil"
			}
			return r.String()
		}
		if got := strings.Join(c.tables, ",") + " " + c.operation + " " + told(c.old) + " / " + told(c.new); got != want {
			t.Errorf("%s\nis %s\nnot %s", line, got, want)
		}
	}
	for _, line := range []string{
		"", "BEGIN 1", "table public.t", "table public.t: INSERT", "table public.t: MERGE: a[int]:1", "table public.t: INSERT: a[int]:'x", "table public.t: INSERT: a[int",
		`table public."t: INSERT:`, "table public.t: INSERT: a:1", "table public.t: INSERT: a[int]:1junk\n b",
	} {
		if c, err := parseChange(line); err == nil {
			t.Errorf("%q is %+v", line, c)
		}
	}
}

func FuzzParseChange(f *testing.F) {
	f.Add(`table public.t: UPDATE: old-key: "a""b"[integer[]]:1 new-tuple: c[text]:'it''s' d[bit]:B'1' e[text]:null`)
	f.Add("table public.t, s.u: TRUNCATE: (no-flags)")
	f.Fuzz(func(t *testing.T, line string) {
		c, err := parseChange(line)
		if err == nil && (len(c.tables) == 0 || c.operation == "") {
			t.Errorf("%q is %+v", line, c)
		}
	})
}

var suite stack.Suite

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// Whatever a row is called and holds, its decoded change and its copy spell it alike.
func TestDecodedRowsAreSpelledAsCopies(t *testing.T) {
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) {
		db := suite.Bare(t, major)
		db.Exec(t, `CREATE SCHEMA "S: x"`, `CREATE TYPE "S: x"."ty]: pe" AS ENUM ('a b', 'it''s')`,
			`CREATE TABLE "S: x"."T, ""y"" [z]" (id int, "k: [" text, i bigint, f float8, n numeric, b bool, no bool, bits bit(3), arr int[], texts text[],
				at timestamptz, e "S: x"."ty]: pe", j jsonb, by bytea, c char(5), none text, "new-tuple:" text, PRIMARY KEY (id, "k: ["))`)
		conn := db.Direct(t)
		d, err := open(t.Context(), conn, []string{`"S: x"."T, ""y"" [z]"`})
		if err != nil || d.slot == "" {
			t.Fatal(err, d)
		}
		db.Exec(t, `INSERT INTO "S: x"."T, ""y"" [z]" VALUES (1, 'a '' b', -5, 'NaN', 1.50, true, false, B'101', '{1,2}', '{"a,b",NULL,"c''d"}',
			'2026-11-23 10:00+01', 'it''s', '{"a": [1, "x: y"]}', '\x00ff', 'ab', NULL, E'new\nline')`)
		changes, err := d.changes(t.Context())
		if err != nil || len(changes) != 1 {
			t.Fatal(err, changes)
		}
		c, err := d.copy(t.Context(), d.tables[0])
		if err != nil || len(c.rows) != 1 {
			t.Fatal(err, c)
		}
		key, ok := keyOf(d.tables[0], changes[0].new)
		if copied := c.rows[key].text(); !ok || copied != changes[0].new.text() || len(changes[0].new) != 17 {
			t.Errorf("decoded: %s\ncopied: %s", changes[0].new.text(), copied)
		}
		db.Exec(t, `UPDATE "S: x"."T, ""y"" [z]" SET id = 2`, `DELETE FROM "S: x"."T, ""y"" [z]"`, `TRUNCATE "S: x"."T, ""y"" [z]"`)
		changes, err = d.changes(t.Context())
		if err != nil || len(changes) != 3 {
			t.Fatal(err, changes)
		}
		s := newState(d.tables, map[string]copied{d.tables[0].Name: c})
		for i, want := range []string{"UPDATE i='-5'", "DELETE i='-5'", "TRUNCATE"} {
			w := s.apply(changes[i])
			got := w.Operation
			if value := w.Before["i"]; value != nil {
				got += " i='" + *value + "'"
			}
			if got != want {
				t.Errorf("%s, not %s", got, want)
			}
		}
	})
}

// A temporary slot ends with its session, also when the client is killed.
func TestTheSlotEndsWithItsSession(t *testing.T) {
	t.Parallel()
	db := suite.Bare(t, 0)
	db.Exec(t, "CREATE TABLE t (id int)")
	conn, err := pgx.ConnectConfig(t.Context(), db.Direct(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(t.Context(), conn, []string{"t"})
	if err != nil || d.slot == "" {
		t.Fatal(err)
	}
	if n := stack.Value[int](t, db, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", d.slot); n != 1 {
		t.Errorf("%d slots", n)
	}
	_ = conn.PgConn().Conn().Close() // without a word to the server, as the kernel does
	db.Becomes(t, "0", "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = $1", d.slot)
	_ = conn.Close(context.Background())
}
