package migrations_test

import (
	"context"
	"fmt"
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
			keys := value[[]int64](t, app, "SELECT ARRAY[hashtextextended($1, 8604534342903230051)]", name)
			mustExec(t, app, "SET wirefence.token = '34'")
			for _, fence := range []string{"'34'", "NULL"} {
				for _, has := range []string{"'nothing'", "'same'"} {
					if got := value[string](t, app, "SELECT wirefence.proxy_hold(7, "+fence+", $1, "+has+", false, 'group')", name); got != db.heldAnswer(t, fmt.Sprintf("held SERVER %d", keys[0])) {
						t.Errorf("%s is %s", name, got)
					}
				}
				db.wantLocks(t, app, 2)
				mustExec(t, app, "SELECT wirefence.proxy_unhold(7, $1)", keys)
				db.wantLocks(t, app, 0)
			}
			mustExec(t, app, "RESET wirefence.token")
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
	for _, call := range []string{"hold('orders=34')", "proxy_hold(7, 'orders=34', NULL, 'nothing', false, 'exchange')", "proxy_hold(7, 'orders=34', NULL, NULL, false, 'needed')"} {
		wantCode(t, exec(reader, "SELECT wirefence."+call), "WF006")
	}
	if got := value[string](t, reader, "SELECT wirefence.proxy_hold(7, NULL, NULL, 'nothing', true, 'group')"); got != "checked" {
		t.Errorf("a proxy is told %s", got)
	}
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
