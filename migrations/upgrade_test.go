package migrations_test

import (
	"fmt"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// pg_upgrade creates a new cluster, whose timeline is 1 again. It accepts no earlier
// token, and the next ones exceed all of them.
func TestTokensBehindPgUpgrade(t *testing.T) {
	t.Parallel()
	versions := servers.UpgradableVersions()
	if len(versions) == 0 {
		t.Fatal("no pg_upgrade is installed: run scripts/install-servers (Debian, Ubuntu), or put it beside postgres and initdb")
	}
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: versions[len(versions)-1]})).EndWith(t)
	before := withSchema(t, server)
	before.seal(t, "orders", 33)
	leased := granted(t, before, "leased")
	mustExec(t, before.app(t), "SELECT wirefence.check('foreign=7')")
	mustExec(t, before.as(t, "issuer"), "SELECT wirefence.declare_resource('trusted', 'a test', failover => 'trust')")
	before.seal(t, "trusted", 5)
	admin := before.admin(t)
	mustExec(t, admin, "CREATE TABLE public.guarded (id int); GRANT INSERT ON public.guarded TO app")
	mustExec(t, admin, "SELECT wirefence.protect('public.guarded', 'orders')")
	const identity = "SELECT wirefence.identity()"
	was := value[string](t, admin, identity)

	upgraded := stack.Started(server.Upgrade(t.Context())).EndWith(t)
	after := database{upgraded, before.name}
	admin = after.admin(t)
	if is := value[string](t, admin, identity); is == was || !contains(is, "/00000001") {
		t.Errorf("the server was %s and is %s", was, is)
	}
	for _, fence := range []string{"orders=33", fmt.Sprintf("leased=%d", leased)} {
		wantFormer(t, after, fence)
	}
	mustExec(t, after.app(t), "SELECT wirefence.check('trusted=5,foreign=7')")
	app := after.app(t)
	mustExec(t, app, "SET wirefence.token = 'orders=33'")
	wantCode(t, exec(app, "INSERT INTO public.guarded VALUES (1)"), "WF001")
	for _, resource := range []string{"orders", "leased"} {
		token := granted(t, after, resource)
		if token < firstAfterPromotion {
			t.Errorf("the next token of %s is %d", resource, token)
		}
		mustExec(t, after.app(t), "SELECT wirefence.check($1)", fmt.Sprintf("%s=%d", resource, token))
		wantCode(t, exec(after.app(t), "SELECT wirefence.check($1)", resource+"=33"), "WF001")
	}
	mustExec(t, app, fmt.Sprintf("SET wirefence.token = 'orders=%d'", after.lastToken(t, "orders")))
	mustExec(t, app, "INSERT INTO public.guarded VALUES (1)")
	if err := migrations.Verify(t.Context(), admin); err != nil {
		t.Error(err)
	}
	if lines := apply(t, admin); len(lines) != 1 || !contains(lines[0], "nothing to apply") {
		t.Errorf("migrating reports %q", lines)
	}
	if drifts, err := migrations.Drifts(t.Context(), admin); err != nil || len(drifts) > 0 {
		t.Errorf("drifted: %+v, %v", drifts, err)
	}
}
