package main

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

func TestSealURLsAreSplitAtSchemes(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      nil,
		" \n":                   nil,
		"postgres://a,b:5433/x": {"postgres://a,b:5433/x"},
		"host=a dbname=x":       {"host=a dbname=x"},
		"postgres://a/x postgres://b,c/y\tpostgresql://d/z ": {"postgres://a/x", "postgres://b,c/y", "postgresql://d/z"},
		"postgres://a/x,postgres://b/y, postgres://c/z,":     {"postgres://a/x", "postgres://b/y", "postgres://c/z,"},
	} {
		var got connectionStrings
		if err := got.UnmarshalText([]byte(text)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, []string(got), err)
		}
	}
}

// reaches is what messages call a database.
func reaches(t *testing.T, connection string) string {
	t.Helper()
	u, err := url.Parse(connection)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host + u.Path
}

// A command runs under a lease that is sealed in three databases, in whatever store it is, and
// under none if one of them is away.
func TestLockSealsInSeveralDatabases(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	t.Parallel()
	for name, store := range map[string][]string{"PostgreSQL": nil, "Redis": {"WIREFENCE_REDIS_URL=" + redisServer(t).URL()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := database(t, true), database(t, true)
			away := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
			third := strings.Replace(away.URL(stack.Database(t, away)), "postgres@", "postgres:geheim@", 1)
			settings := append(store, "WIREFENCE_DATABASE_URL="+first, "WIREFENCE_TTL=3s")
			further := append(slices.Clone(settings), "WIREFENCE_SEAL_URLS="+second+" "+third)
			stack.Exec(t, third, "SELECT wirefence.seal('jobs', 40, 'before', '"+strings.ToLower(map[string]string{"PostgreSQL": "postgres", "Redis": "redis"}[name])+"')")

			wirefence(t, settings, "lock", "--seal", second, "--seal", third, "jobs", "--", "sh", "-c", "echo token $WIREFENCE_TOKEN").expect(t, 0).says(t, "token 41\n")
			for _, each := range []string{first, second, third} {
				stack.Exec(t, each, "SELECT 1 / (last_token = 41)::int FROM wirefence.resource_locks WHERE resource_id = 'jobs'", "SELECT 1 / count(*) FROM wirefence.resource_locks")
			}
			r := wirefence(t, further, "status").expect(t, 0).says(t, "DATABASE", reaches(t, first), reaches(t, second), reaches(t, third))
			if strings.Count(r.stdout, " 41 ") != 3 {
				t.Error(r.stdout)
			}
			wirefence(t, further, "revoke", "jobs").expect(t, 0).says(t, "jobs is revoked in "+reaches(t, first)+": tokens below 42", "in "+reaches(t, second), "in "+reaches(t, third))
			wirefence(t, further, "lock", "jobs", "--", "sh", "-c", "echo token $WIREFENCE_TOKEN").expect(t, 0).says(t, "token 43\n")

			away.Stop()
			for _, args := range [][]string{{"lock", "jobs", "--", "echo", "ran"}, {"revoke", "jobs"}, {"status"}} {
				want := map[string]int{"lock": exitUnavailable, "revoke": exitFailure, "status": exitFailure}[args[0]]
				r := wirefence(t, further, args...).expect(t, want, reaches(t, third))
				if strings.Contains(r.stderr, reaches(t, second)) || strings.Contains(r.stderr+r.stdout, "geheim") || strings.Contains(r.stdout, "ran\n") {
					t.Error(r)
				}
			}
			var out revokedJSON
			r = wirefence(t, further, "revoke", "-o", "json", "jobs").expect(t, exitFailure, "not revoked in every database", "run it again")
			if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || len(out.Databases) != 3 || out.Databases[1].Token <= 43 || out.Databases[2].Token != 0 || out.Databases[2].Error == "" {
				t.Errorf("%v: %s", err, r.stdout)
			}
			wirefence(t, settings, "lock", "--seal", first, "jobs", "--", "true").expect(t, exitUsage, "WIREFENCE_SEAL_URLS names "+reaches(t, first)+", which is named before")
			wirefence(t, settings, "lock", "--seal", "geheim", "jobs", "--", "true").expect(t, exitUsage, "WIREFENCE_SEAL_URLS: it is no connection string")
		})
	}
}

// The doctor makes its checks in each of the databases, and tells when two names are one.
func TestTheDoctorExaminesAllDatabases(t *testing.T) {
	t.Parallel()
	own, other := newPatient(t), newPatient(t)
	alias := strings.Replace(own.URLFor("issuer", own.name), "127.0.0.1", "localhost", 1)
	examined := func(urls ...string) []string {
		return own.settings("WIREFENCE_SEAL_URLS=" + strings.Join(urls, " "))
	}
	fine := examine(t, examined(other.URLFor("issuer", other.name)))
	fine.finds(t, "database.further", "ok", reaches(t, other.URL(other.name))+": none of ", "")
	other.exec(t, "GRANT INSERT ON wirefence.resource_locks TO PUBLIC")
	bad := examine(t, examined(other.URLFor("issuer", other.name), alias))
	bad.finds(t, "database.further", "problem", reaches(t, other.URL(other.name))+": schema.objects: table wirefence.resource_locks: PUBLIC has INSERT", "")
	bad.finds(t, "database.further", "note", "is named twice: it is the database of WIREFENCE_DATABASE_URL", "")
	gone := examine(t, examined("postgres://issuer:geheim@127.0.0.1:1/app"))
	gone.finds(t, "database.further", "problem", "127.0.0.1:1/app: database.reachable: the database can't be reached", "")
	if strings.Contains(gone.text, "geheim") {
		t.Error(gone.text)
	}
}

// A proxy that would sidestep the setting doesn't start, and shows no password of it.
func TestProxiesCheckSealURLs(t *testing.T) {
	t.Parallel()
	settings := []string{"WIREFENCE_UPSTREAM=postgres://db/", "WIREFENCE_SEAL_URLS=postgres://u:geheim@one,two/x postgres://u:geheim@three/y"}
	wirefence(t, settings, "proxy", "--check-config").expect(t, exitUsage, "no lease store")
	r := wirefence(t, append(settings, "WIREFENCE_DATABASE_URL=postgres://issuer@db/x"), "proxy", "--check-config").
		expect(t, 0).says(t, "WIREFENCE_SEAL_URLS=postgres://u@one,two/x postgres://u@three/y\n")
	if strings.Contains(r.stdout, "geheim") {
		t.Error(r.stdout)
	}
	wirefence(t, append(settings, "WIREFENCE_DATABASE_URL=postgres://issuer@three/y"), "proxy", "--check-config").
		expect(t, exitUsage, "WIREFENCE_SEAL_URLS names three:5432/y, which is named before")
}
