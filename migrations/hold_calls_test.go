package migrations_test

import (
	"context"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
)

// A default resource is a plain name, not encoded as in a fence.
func TestADefaultResourceWithAnyName(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		for _, name := range []string{"a b", "50%", "é=1,b"} {
			db.seal(t, name, 34)
			mustExec(t, app, "SELECT wirefence.check('34', $1, true, false)", name)
			wantCode(t, exec(app, "SELECT wirefence.check('33', $1, true, false)", name), "WF001")
			if !value[bool](t, app, "SELECT wirefence.hold('34', $1)", name) {
				t.Errorf("%s is not held", name)
			}
			mustExec(t, app, "SET wirefence.token = '34'")
			if !value[bool](t, app, "SELECT wirefence.hold(NULL, $1)", name) {
				t.Errorf("%s is not held", name)
			}
			mustExec(t, app, "RESET wirefence.token; SELECT wirefence.unhold()")
		}
	})
}

// A standby cannot judge: a check passes there without a lock, and a hold is refused.
func TestAStandbyJudgesNothing(t *testing.T) {
	t.Parallel()
	primary, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(primary.Close)
	db := create(t, primary, "")
	apply(t, db.admin(t))
	mustExec(t, db.admin(t), "SELECT wirefence.seal('orders', 34)")
	server, err := primary.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	standby := database{server, db.name}
	reader := standby.admin(t)
	for _, begin := range []string{"BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"} {
		for _, call := range []string{"'orders=34', NULL, false, false", "'orders=33', NULL, true, false", "NULL, NULL, true, false", "'x', NULL, true, true"} {
			mustExec(t, reader, begin)
			if got := value[*string](t, reader, "SELECT wirefence.check("+call+")"); got != nil {
				t.Errorf("check(%s) says %s", call, *got)
			}
			standby.wantLocks(t, reader, 0)
			mustExec(t, reader, "ROLLBACK")
		}
	}
	wantCode(t, exec(reader, "SELECT wirefence.hold('orders=34')"), "WF006")
	mustExec(t, reader, "SELECT wirefence.unhold()")
	standby.wantLocks(t, reader, 0)
}

// The calls of the fence package.
func TestHoldByTheFencePackage(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app := db.app(t)
		f, err := fence.Parse("orders=34")
		if err != nil {
			t.Fatal(err)
		}
		if held, err := fence.Hold(t.Context(), app, f); err != nil || !held {
			t.Errorf("held: %v, %v", held, err)
		}
		db.wantLocks(t, app, 2)
		if held, err := fence.Hold(t.Context(), app, fence.Fence{}); err != nil || held {
			t.Errorf("held nothing: %v, %v", held, err)
		}
		if err := fence.Unhold(t.Context(), app); err != nil {
			t.Error(err)
		}
		db.wantLocks(t, app, 0)
		db.seal(t, "orders", 35)
		if _, err := fence.Hold(t.Context(), app, f); !fence.IsStale(err) {
			t.Errorf("got %v", err)
		}
	})
}
