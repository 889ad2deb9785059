package servers

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Either way of losing the primary makes the other member the primary, and the lost one
// comes back as a standby. What was not replicated is gone.
func TestPatroniFailsOverAndBringsTheOldPrimaryBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	ctx := t.Context()
	p, err := StartPatroni(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	execute := func(m *PatroniMember, sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, m.URL("postgres"))
		must(err)
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, sql)
		must(err)
	}
	first := p.Members[0]
	second := p.Other(first)
	execute(first, "CREATE TABLE kept ()")
	must(p.AwaitReplication(ctx, first))

	first.Replicated.Hold()
	execute(first, "CREATE TABLE lost ()")
	first.Kill()
	first.Replicated.Cut()
	must(second.AwaitPrimary(ctx))
	first.Replicated.Restore()
	execute(second, "CREATE TABLE lost (); TABLE kept")
	must(first.Start(ctx))
	must(p.AwaitReplication(ctx, second))

	must(second.Freeze())
	must(first.AwaitPrimary(ctx))
	second.Thaw()
	must(second.AwaitPrimary(ctx)) // as it still believes
	must(second.Start(ctx))
	must(p.AwaitReplication(ctx, first))
	execute(second, "TABLE lost")

	must(p.Switchover(ctx, first))
	must(second.AwaitPrimary(ctx))
	must(p.AwaitReplication(ctx, second))
	if pid := first.postmaster(); pid == 0 || len(childrenOf(pid)) == 0 {
		t.Errorf("the postmaster of a member that runs is %d, without children", pid)
	}
}
