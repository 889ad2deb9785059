//go:build linux

package faulttest

import (
	"context"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
)

// fault is a repeated failure of the servers in a run. Every run also has clients that
// stall and die.
type fault struct {
	name string
	// keepsMemory says that the store never loses a grant, so no two clients hold a lease
	// even by their own clocks.
	keepsMemory bool
	// hitsJudge: the run needs a PostgreSQL of its own.
	hitsJudge bool
	// strike makes the fault happen; mend undoes it a while later.
	strike func(w *world, r *rand.Rand) (mend func() error, err error)
}

func nothingToMend() error { return nil }

// on is a fault of the servers of one kind.
func on[S store](strike func(S, *world, *rand.Rand) (func() error, error)) func(*world, *rand.Rand) (func() error, error) {
	return func(w *world, r *rand.Rand) (func() error, error) { return strike(w.store.(S), w, r) }
}

// The faults of every store.
var (
	nothing = fault{name: "none but stalled and dead clients", keepsMemory: true}

	cutOff = fault{name: "cut off", keepsMemory: true, strike: func(w *world, r *rand.Rand) (func() error, error) {
		return breakSome(w.toStore, r), nil
	}}

	// A revocation ends neither the lease in another store nor the belief of its holder
	// until the next renewal.
	revoked = fault{name: "revoked by an operator", keepsMemory: true, strike: func(w *world, _ *rand.Rand) (func() error, error) {
		return nothingToMend, w.revoke()
	}}

	// splitBrain exists from the beginning, by the arrangement of the servers.
	splitBrain = fault{name: "split brain"}

	judgeKilled = fault{name: "PostgreSQL killed", keepsMemory: true, hitsJudge: true, strike: func(w *world, _ *rand.Rand) (func() error, error) {
		w.pg.Kill()
		return func() error { return w.pg.Start(context.Background()) }, nil
	}}

	judgeCutOff = fault{name: "PostgreSQL cut off", keepsMemory: true, strike: func(w *world, r *rand.Rand) (func() error, error) {
		return breakSome(w.toSealer, r), nil
	}}
)

// breakSome breaks the networks of all seats, or of a few, in one of three ways.
func breakSome(links []*servers.Link, r *rand.Rand) (mend func() error) {
	broken := links
	if r.IntN(2) == 0 {
		first := r.IntN(len(links))
		broken = links[first:min(len(links), first+1+r.IntN(2))]
	}
	way := []func(*servers.Link){(*servers.Link).Cut, (*servers.Link).Hold, (*servers.Link).HoldAnswers}[r.IntN(3)]
	for _, l := range broken {
		way(l)
	}
	return func() error {
		for _, l := range broken {
			l.Restore()
		}
		return nil
	}
}

// revoke locks the present holder out.
func (w *world) revoke() error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.pg.URL(w.database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	call := now()
	token, err := fence.Revoke(ctx, conn, resource)
	w.revocations = append(w.revocations, revocation{token, call, now()})
	return err
}
