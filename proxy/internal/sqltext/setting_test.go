package sqltext

import (
	"errors"
	"testing"
)

func TestUnknownSettings(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{"SET wirefence.tokem = 'orders=1'", "wirefence.tokem"},
		{"set local WireFence.Tokem to 'orders=1'; select 1", "wirefence.tokem"},
		{"SET SESSION wirefence.fence TO DEFAULT", "wirefence.fence"},
		{`set "wirefence" /* x */ . "tokem" = 1`, "wirefence.tokem"},
		{`set "wirefence.tokem" = 1`, "wirefence.tokem"},
		{"set wirefence.token.orders = '34'", "wirefence.token.orders"},
		{"begin; set local wirefence.tokem = 'orders=1'; insert into t values (1)", "wirefence.tokem"},
		{"select set_config('wirefence.tokem', 'orders=1', true)", "wirefence.tokem"},
		{"select pg_catalog.set_config('wirefence.tokem', $1, false), 1", "wirefence.tokem"},
		{"select set_config('wirefence.tokem'::text, $1::text, false)", "wirefence.tokem"},
		{"select set_config('wirefence.token'::text, $1::text, false)", ""},
		{"alter role app set wirefence.tokem = 'orders=1'", "wirefence.tokem"},
		{"alter role app in database shop set wirefence.tokem to 'orders=1'", "wirefence.tokem"},
		{"alter database shop set wirefence.tokem = 'orders=1'", "wirefence.tokem"},
		{"create or replace function f() returns int language sql set wirefence.tokem = 'orders=1' as 'select 1'", "wirefence.tokem"},
		{"alter function f() set wirefence.tokem = 'x'", "wirefence.tokem"},
		// Known ones, and others' names.
		{"set wirefence.token = 'orders=1'", ""},
		{`SET LOCAL "wirefence"."token" = 'orders=1'`, ""},
		{"reset wirefence.token", ""},
		{"set wirefence.reason = 'maintenance'", ""},
		{"select set_config('wirefence.token', $1, false)", ""},
		{"select set_config('wirefence.reason', $1, true)", ""},
		{"set wirefence_x.tokem = 1", ""},
		{"set mywirefence.tokem = 1", ""},
		{"set role wirefence", ""},
		{"set search_path = wirefence, public", ""},
		{"set session authorization wirefence", ""},
		// The schema, prose, and what can't be told from the text.
		{"select wirefence.check('orders=1')", ""},
		{"select * from wirefence.resource_locks", ""},
		{"select 'set wirefence.tokem = 1'", ""},
		{"alter table t set schema wirefence", ""},
		{"update t set wirefence.tokem = 1", ""},
		{"select set_config('wirefence.' || 'tokem', '1', false)", ""},
		{"select set_config($1, 'orders=1', false) -- wirefence.x", ""},
		{"show wirefence.tokem", ""},
	} {
		var s Scanner
		r := s.Scan([]byte(c.sql), Options{})
		unknown := (*UnknownSettingError)(nil)
		if errors.As(r.FenceErr, &unknown); c.want == "" && r.FenceErr != nil || c.want != "" && (unknown == nil || unknown.Name != c.want) {
			t.Errorf("%s: %v, want %q", c.sql, r.FenceErr, c.want)
		}
		if c.want != "" && !Mentions([]byte(c.sql)) {
			t.Errorf("%s: Mentions says no", c.sql)
		}
	}
}

func TestSettingsAreFollowedWithoutAllocating(t *testing.T) {
	var s Scanner
	text := []byte("set local wirefence.token = 'orders=34'")
	s.Scan(text, Options{})
	if n := testing.AllocsPerRun(100, func() { s.Scan(text, Options{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
