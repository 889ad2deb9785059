//go:build linux

package faulttest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// change is a way in which PostgreSQL gets a new primary.
type change struct {
	name string
	// loses says that the new primary may lack acknowledged commits.
	loses bool
	// strike starts the n-th change and returns when that was. early says that the old
	// primary returns before anybody is known to write again.
	strike func(f *failover, n int) (at int64, mend func() error, early bool, err error)
}

// patroni is the kind of those runs.
const patroni = "PostgreSQL under Patroni"

var changes = []change{{"switchover", false, switchOver}, {"failover", true, loseThePrimary}}

// move is the record of one change.
type move struct {
	struck   int64
	promoted int64         // the new primary accepts writes
	wrote    int64         // the first write was acknowledged behind that
	silent   time.Duration // before that write, since the one before
}

func switchOver(f *failover, _ int) (int64, func() error, bool, error) {
	at := now()
	return at, nothingToMend, false, f.Switchover(context.Background(), f.primary)
}

// loseThePrimary kills the primary, or freezes it with all connections and thaws it after
// it was replaced, as a primary that was not demoted. Its last commits are not
// replicated; every second time a grant is among them.
func loseThePrimary(f *failover, n int) (at int64, mend func() error, early bool, err error) {
	ctx, old := context.Background(), f.primary
	old.Replicated.Hold()
	if n%4 < 2 {
		err = f.losesGrant(ctx)
	} else {
		wait(ctx, between(f.random, 100*time.Millisecond, time.Second))
	}
	at = now()
	if early = n%2 == 1; early {
		err = errors.Join(err, old.Freeze())
	} else {
		old.Kill()
	}
	old.Replicated.Cut() // with what it held back
	return at, func() error {
		old.Replicated.Restore()
		if early {
			old.Thaw()
			wait(ctx, between(f.random, 0, 3*time.Second)) // two primaries
		}
		return old.Start(ctx)
	}, early, err
}

// losesGrant revokes the lease and waits until a new holder has written.
func (f *failover) losesGrant(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, f.primary.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	revoked, err := fence.Revoke(ctx, conn, resource)
	if err != nil {
		return err
	}
	since := now()
	next := func(grant *attempt) bool { return grant.token > revoked }
	return f.await(ctx, "a grant that will be lost", func() bool { return slices.ContainsFunc(f.grants(), next) && f.lastWrite() > since })
}
