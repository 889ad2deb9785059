package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// The owner's connection is another setting than the issuer's.
func TestOwnersConnection(t *testing.T) {
	t.Parallel()
	bare := database(t, false)
	owner, nowhere := "WIREFENCE_OWNER_URL=", "WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x"
	wirefence(t, []string{owner + bare, nowhere}, "migrate").expect(t, 0)
	stack.Exec(t, bare, "CREATE TABLE t (id int)")
	wirefence(t, []string{owner + bare, nowhere}, "protect", "t", "--resource", "orders").expect(t, 0)
	wirefence(t, []string{owner + bare, nowhere}, "unprotect", "t").expect(t, 0)
	wirefence(t, []string{owner + bare}, "status").expect(t, 2, "WIREFENCE_DATABASE_URL is not set")
	wirefence(t, []string{owner + "not a url"}, "migrate").expect(t, 2, "WIREFENCE_OWNER_URL")
	wirefence(t, []string{owner + bare + "&options=-cdefault_transaction_read_only%3Don"}, "protect", "t", "--resource=x").
		expect(t, 1, "WIREFENCE_OWNER_URL leads to a standby server")
}

// An issuer is never advised to become the owner: with that it could change what refuses it.
func TestMigratingAsTheIssuer(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE ROLE issuer_only LOGIN IN ROLE wirefence_issuer", "CREATE TABLE t (id int)")
	as := strings.Replace(url, "postgres@", "issuer_only@", 1)
	const advice = "use another, owning role: set WIREFENCE_OWNER_URL"
	r := wirefence(t, issuer(as), "migrate").expect(t, 1, `role "issuer_only" has wirefence_issuer`, advice)
	if strings.Contains(r.stderr, "GRANT") {
		t.Errorf("it is advised to grant: %s", r.stderr)
	}
	wirefence(t, issuer(as), "protect", "t", "--resource", "orders").expect(t, 1, "Set WIREFENCE_OWNER_URL to a role that has the right.")
	stack.Exec(t, url, "UPDATE wirefence.applied_version SET version = version + 2",
		"CREATE OR REPLACE FUNCTION wirefence.schema_version() RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT version FROM wirefence.applied_version'")
	for _, url := range []string{as, url} {
		r := wirefence(t, issuer(url), "migrate").expect(t, exitConfig, "upgrade the binary")
		if strings.Contains(r.stderr, "WIREFENCE_OWNER_URL") || strings.Contains(r.stderr, "GRANT") {
			t.Errorf("it speaks of rights: %s", r.stderr)
		}
	}
	stack.Exec(t, url, "UPDATE wirefence.applied_version SET version = version - 1")
	wirefence(t, issuer(as), "migrate").expect(t, 0).says(t, "nothing to apply", "one above this binary's")
}
