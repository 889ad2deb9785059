package migrations_test

import "testing"

// Operators share a role: application_name identifies the operator.
func TestOperatorsAreTold(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 33, 'a/1')")
		mustExec(t, issuer, "BEGIN")
		mustExec(t, issuer, "SET LOCAL application_name = 'wirefence-api/alice'")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('jobs', 'a new service')")
		mustExec(t, issuer, "SELECT set_config('wirefence.reason', 'it is stuck', true), wirefence.revoke('orders')")
		mustExec(t, issuer, "COMMIT")
		mustExec(t, issuer, "SET application_name = ''; SELECT wirefence.revoke('orders')")
		if got := value[string](t, issuer, "SELECT string_agg(concat_ws(' ', changed_by, application, reason), '; ') FROM wirefence.resource_changes"); got != "issuer wirefence-api/alice a new service" {
			t.Errorf("the change is by %q", got)
		}
		got := told(t, issuer, "application, reason", "'orders', kinds => '{revocation}'")
		if len(got) != 2 || got[0] != "wirefence-api/alice it is stuck" || got[1] != " by an operator" {
			t.Errorf("the history has %q", got)
		}
	})
}
