package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// psql runs through a PgBouncer that refuses the startup parameter options, under a lease whose fence
// it carries in its name.
func TestLockCarriesTheFenceByName(t *testing.T) {
	stack.NeedsMore(t, "PgBouncer")
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE nightly_jobs (token bigint); SELECT wirefence.seal('nightly', 33)")
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 10, PoolSize: 2, PoolMode: "transaction",
		Settings: map[string]string{"ignore_startup_parameters": "extra_float_digits"}})).EndWith(t)
	host, port, _ := strings.Cut(pooler.Addr(), ":")
	settings := append(issuer(url), "PGHOST="+host, "PGPORT="+port, "PGUSER=postgres", "PGDATABASE="+cfg.Database)
	job := `psql -XAtc "INSERT INTO nightly_jobs VALUES ($WIREFENCE_TOKEN); SHOW application_name"`
	by := func(way string) result {
		return wirefence(t, settings, "lock", "--carry="+way, "nightly", "--", "sh", "-c", job)
	}
	by("options").expect(t, 2, "unsupported startup parameter: options")
	by("name").expect(t, exitConfig, "don't count", "wirefence carry-name on")
	wirefence(t, issuer(url), "carry-name", "on").expect(t, exitUsage, "--reason")
	wirefence(t, issuer(url), "carry-name", "perhaps", "--reason=x").expect(t, exitUsage, "on or off")
	wirefence(t, issuer(url), "carry-name", "on", "--reason", "PgBouncer hands names on").expect(t, 0).says(t, "carry_name: false -> true")
	by("name").expect(t, exitConfig, "no guard asks for \"nightly\"", "WIREFENCE_UNFENCED_WRITES=reject")
	stack.Exec(t, url, "SELECT wirefence.protect('nightly_jobs', 'nightly', true)")
	by("name").expect(t, exitConfig, "no guard asks")
	stack.Exec(t, url, "SELECT wirefence.protect('nightly_jobs', 'nightly')")
	by("name").expect(t, 0).says(t, "wirefence:nightly=", "~sh")
	r := wirefence(t, append(settings, "PGAPPNAME=the night job"), "lock", "--carry=name", "nightly", "--", "sh", "-c", "psql -XAtc 'SELECT wirefence.seal($$nightly$$, 99)'; "+job)
	r.expect(t, 1, "stale fencing token", "99")
	wirefence(t, settings, "lock", "--carry=name", strings.Repeat("n", 37), "--", "true").expect(t, exitUsage, "65 bytes", "shorter name")
	wirefence(t, append(settings, "WIREFENCE_FENCE="+strings.Repeat("n", 50)+"=1"), "lock", "--carry=name", "nightly", "--", "true").expect(t, 126, "PostgreSQL keeps 63")

	// Without a guard a proxy that rejects such writes notices, too.
	stack.Exec(t, url, "SELECT wirefence.unprotect('nightly_jobs')")
	by("name").expect(t, exitConfig, "no guard asks")
	p := startProxy(t, url, "WIREFENCE_UNFENCED_WRITES=reject")
	through, _ := pgx.ParseConfig(p.url)
	settings = append(settings, "PGHOST="+through.Host, fmt.Sprint("PGPORT=", through.Port))
	by("name").expect(t, 0).says(t, "wirefence:nightly=")
}
