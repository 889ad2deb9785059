package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// The old primary goes on beside the new one.
func TestDoctorOfTwoPrimaries(t *testing.T) {
	t.Parallel()
	pg := startHealthy(t)
	t.Cleanup(pg.Close)
	old := patient{pg, stack.Database(t, pg)}
	standby := stack.Started(old.StartStandby(t.Context())).EndWith(t)
	both := old.among("any", pg.Addr(), standby.Addr())
	examine(t, both).finds(t, "failover.hosts", "ok", "of 2 hosts", "").ends(t, 0)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	examine(t, both).finds(t, "failover.hosts", "problem", pg.Addr()+" is a primary on timeline 1, left behind by that on timeline 2 at "+standby.Addr(), "end the server at "+pg.Addr()).
		ends(t, exitProblem, "failover.hosts")
	pg.Kill()
	examine(t, old.among("read-write", standby.Addr(), pg.Addr())).finds(t, "failover.hosts", "note", pg.Addr()+" can't be asked", "").ends(t, 0)
}

// among is the database of several hosts.
func (p patient) among(attributes string, hosts ...string) []string {
	return []string{"WIREFENCE_DATABASE_URL=postgres://issuer@" + strings.Join(hosts, ",") + "/" + p.name + "?sslmode=disable&target_session_attrs=" + attributes}
}

// A commit that waits for less than a grant's is told where there are synchronous standbys.
func TestDoctorOfSynchronousStandbys(t *testing.T) {
	t.Parallel()
	pg := startHealthy(t)
	t.Cleanup(pg.Close)
	p := patient{pg, stack.Database(t, pg)}
	stack.Started(pg.StartStandby(t.Context())).EndWith(t) // whose application_name is standby
	p.exec(t, "SELECT wirefence.set_failover('trust', 'a test'), wirefence.seal('orders', 1)", "ALTER ROLE app SET synchronous_commit = local")
	examine(t, p.settings()).finds(t, "failover.commits", "ok", "grants wait for the disk", "")
	p.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	stack.Eventually(t, "the standby is synchronous", func() bool {
		return examine(t, p.settings()).Grade == "note"
	})
	examine(t, p.settings()).finds(t, "failover.commits", "note", "synchronous_commit is local for role app", "ALTER ROLE app RESET synchronous_commit").
		finds(t, "failover.lost", "ok", "", "").ends(t, 0)
	p.exec(t, "SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (another, standby)'", "SELECT pg_reload_conf()")
	stack.Started(pg.StartStandby(t.Context())).EndWith(t)
	examine(t, p.settings()).finds(t, "failover.lost", "warning", "1 of 2 standbys follow asynchronously, and failover is trust: orders", "--failover reacquire").
		ends(t, 0, "failover.lost")
}
