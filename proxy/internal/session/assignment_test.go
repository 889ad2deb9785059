package session

import (
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

func TestSettingsAreReadFromTheirText(t *testing.T) {
	for text, want := range map[string]assignment{
		`SET wirefence.token = 'orders=34'`:                               {value: "orders=34"},
		`set session Wirefence.Token to 'orders=34'`:                      {value: "orders=34"},
		"SET LOCAL\twirefence . token TO'orders=34'":                      {local: true, value: "orders=34"},
		`SET wirefence.token=34`:                                          {value: "34"},
		`SET wirefence.token = ''`:                                        {},
		`SET wirefence.token TO DEFAULT`:                                  {reset: true, value: "DEFAULT"},
		`SET LOCAL wirefence.token = default`:                             {local: true, reset: true, value: "default"},
		`RESET wirefence.token`:                                           {reset: true},
		`RESET ALL`:                                                       {reset: true},
		`DISCARD ALL`:                                                     {reset: true},
		`SELECT set_config('wirefence.token', 'orders=34', true)`:         {local: true, value: "orders=34"},
		`select pg_catalog.set_config('wirefence.token', $1::text, TRUE)`: {local: true, unclear: true, value: "$1"},
		`SELECT set_config('wirefence.token', $1, false) AS token`:        {unclear: true, value: "$1"},
	} {
		if got, ok := readSetting(text); !ok || got != want {
			t.Errorf("%s is %+v (%v), want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{
		`SET wirefence.token = E'orders=34'`, `SET wirefence.token = 'a''b'`, `SET wirefence.token = 'a\b'`,
		`SET wirefence.token = 'a', 'b'`, `SET wirefence.token = orders`, `SET "wirefence.token" = 'a'`,
		`SET wirefence.tokens = 'a'`, `RESET wirefence.token2`, `DISCARD PLANS`,
		`SELECT set_config('wirefence.token', 'a', $1)`, `SELECT set_config('wirefence.token', f(), true)`,
		`SELECT set_config('wirefence.token', 'a', true) FROM t`, `SELECT set_config('wirefence.token', 'a', true) WHERE false`,
		`SELECT 1, set_config('wirefence.token', 'a', true)`, `SELECT set_config(E'wirefence.token', 'a', true)`,
		`SELECT other.set_config('wirefence.token', 'a', true)`, `WITH x AS (SELECT 1) SELECT set_config('wirefence.token', 'a', true)`,
	} {
		if got, ok := readSetting(text); ok {
			t.Errorf("%s was read as %+v", text, got)
		}
	}
}

func TestAMentionSetsNothing(t *testing.T) {
	catalog, err := sqlscan.ParseCatalog([]byte("sabs\n."))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`SELECT current_setting('wirefence.token', true)`:         true,
		`SHOW wirefence.token`:                                    true,
		`SELECT * FROM wirefence.resource_locks`:                  true,
		`INSERT INTO notes VALUES ('SET wirefence.token')`:        true,
		`SET application_name = E'wire\tfence'`:                   true,
		`SET wirefence.token = E'a'`:                              false,
		`SET U&"\0077irefence.token" = 'a'`:                       false,
		`SELECT set_config($1, $2, false)`:                        false,
		`SELECT "set_config"('wirefence' || '.token', $1, $2)`:    false,
		`DO 'BEGIN SET wirefence.token = 1; END'`:                 false,
		`CALL p('wirefence.token')`:                               false,
		`SELECT U&"set\005fconfig"('wirefence.token', 'a', true)`: false,
	} {
		var scanner sqlscan.Scanner
		result := scanner.Scan([]byte(text), sqlscan.Options{}, catalog)
		if len(result.Statements) != 1 {
			t.Fatalf("%s: %d statements", text, len(result.Statements))
		}
		st := &result.Statements[0]
		if got := !st.Setter || leavesAlone(st, text); got != want {
			t.Errorf("%s: leaves the variable alone: %v", text, got)
		}
	}
}

func TestTheStartupPacketTellsItsFence(t *testing.T) {
	for _, c := range []struct {
		params  map[string]string
		value   string
		carries bool
	}{
		{map[string]string{"user": "u"}, "", false},
		{map[string]string{"options": "-c search_path=public"}, "", false},
		{map[string]string{"options": "-c wirefence.token=orders=34"}, "orders=34", true},
		{map[string]string{"options": "-cwirefence.token=a=1 --Wirefence.Token=a=2"}, "a=2", true},
		{map[string]string{"options": `-c wirefence.token=a\ b`}, "a b", true},
		{map[string]string{"options": `-c wirefence.to\ken=a=1`}, "a=1", true},
		{map[string]string{"options": "-X wirefence.token"}, "\x00", true},
		{map[string]string{"wirefence.TOKEN": "a=1", "options": "-c wirefence.token=a=2"}, "a=1", true},
	} {
		if value, carries := startupFence(c.params); value != c.value || carries != c.carries {
			t.Errorf("%v: %q, %v", c.params, value, carries)
		}
	}
}
