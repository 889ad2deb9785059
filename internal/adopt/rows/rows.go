// Package rows makes leases of the locks that an application takes in rows of a table, as ShedLock does.
// The trigger of a declared class announces each take in the session that made it, and records it; behind
// that session's commit the grant is counted and sealed on the issuer's connection, while the answer waits.
//
// Of this module it imports fence, internal/adopt, internal/adopt/seal and internal/quietlog.
package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/seal"
	"github.com/wirefence/wirefence/internal/quietlog"
)

// Follower follows the locks of one application. It is safe for concurrent use.
type Follower struct {
	seal.Options

	sealing map[string]*sync.Mutex // by row; held during a seal

	mu   sync.Mutex
	held map[string]lease // by row; the book says which are over
}

// lease is that of a row.
type lease struct {
	token fence.Token
	taken string // the transaction that took the row
}

// New makes one for locks of the kind adopt.Row.
func New(o seal.Options) *Follower {
	f := &Follower{Options: o.WithDefaults(), sealing: map[string]*sync.Mutex{}, held: map[string]lease{}}
	for _, row := range f.Names() {
		f.sealing[row] = &sync.Mutex{}
	}
	return f
}

// nameOf returns a row as a fence names it.
func nameOf(lock adopt.Lock) string { return lock.Space + "(" + lock.Name + ")" }

// Names are the rows, as a fence names them.
func (f *Follower) Names() (names []string) {
	for _, lock := range f.Locks {
		names = append(names, nameOf(lock))
	}
	return names
}

// Check returns an error for a class that isn't declared, or whose rows aren't followed.
func (f *Follower) Check(ctx context.Context) error {
	classes, err := fence.RowClasses(ctx, f.Pool)
	if err != nil {
		return err
	}
	declared := map[string]fence.RowClass{}
	for _, c := range classes {
		declared[c.Class] = c
	}
	for _, lock := range f.Locks {
		switch c := declared[lock.Space]; {
		case c.Until == "":
			return fmt.Errorf("%s: the class %s has no end of a claim: wirefence rows declare %[2]s --until EXPRESSION", lock, lock.Space)
		case c.Fault != "":
			return fmt.Errorf("%s: the class %s: %s", lock, lock.Space, c.Fault)
		}
	}
	return nil
}

// Look is called behind statements of the application that have changed claims: each is the name of a row,
// and behind a space the transaction if that took it. Only such a take begins a lease. An error says that
// one can't be sealed.
func (f *Follower) Look(claims []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.Timeout)
	defer cancel()
	err := f.look(ctx, claims)
	if !slices.ContainsFunc(claims, func(claim string) bool { return strings.Contains(claim, " ") }) {
		return nil // Run looks again, and a lease ends by its time
	}
	return err
}

// Run looks every second, while a lease is held, whether somebody has ended or extended a claim. It returns
// when ctx ends.
func (f *Follower) Run(ctx context.Context) {
	outage := quietlog.Outage(f.Logger)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		looking, cancel := context.WithTimeout(ctx, f.Timeout)
		err := f.look(looking, nil)
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			outage.Error("cannot look at the rows of the application's locks, retrying: their leases end when their time has passed", "error", err)
		default:
			outage.Info("can look at the rows of the application's locks again")
		}
	}
}

// look begins, extends and ends leases.
func (f *Follower) look(ctx context.Context, claims []string) error {
	if len(claims) == 0 && f.holdsNone() {
		return nil
	}
	now, err := f.read(ctx)
	if err != nil {
		now, err = f.read(ctx) // on another connection than one that was cut
	}
	if err != nil {
		return err
	}
	var failed error
	for _, lock := range f.keep(now, claims) {
		failed = errors.Join(failed, f.grant(ctx, lock, now[nameOf(lock)]))
	}
	return failed
}

func (f *Follower) holdsNone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held) == 0
}

// keep extends and ends leases, and returns the locks whose grant is to be sealed.
func (f *Follower) keep(now map[string]claim, claims []string) (granted []adopt.Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	took := map[string]string{}
	for _, claim := range claims {
		row, transaction, _ := strings.Cut(claim, " ")
		took[row] = transaction
	}
	for _, lock := range f.Locks {
		row := nameOf(lock)
		held, has := f.held[row]
		is, claimed := now[row]
		transaction, announced := took[row]
		switch {
		case has && !claimed:
			f.end(lock, "it was released")
		case has && is.taken != held.taken:
			f.end(lock, "it was taken anew")
		case has && f.Book.Extend(lock.Resource, held.token, is.until):
			continue
		case has && announced:
			transaction = held.taken // its lease had ended while nobody could look
		}
		if claimed && is.taken == transaction {
			granted = append(granted, lock)
		}
	}
	return granted
}

// end ends a lease. The caller holds mu.
func (f *Follower) end(lock adopt.Lock, reason string) {
	row := nameOf(lock)
	f.Book.End(lock.Resource, f.held[row].token, reason)
	delete(f.held, row)
}

// claim is a claim of a row that lasts.
type claim struct {
	taken string    // the transaction that took the row
	until time.Time // by the clock of this process, not too late
}

// read returns the claims that last.
func (f *Follower) read(ctx context.Context) (map[string]claim, error) {
	// A claim may end at infinity.
	const readSQL = `SELECT r.name, r.taken_in::pg_catalog.text, 1000000 * EXTRACT(epoch FROM LEAST(r.until, pg_catalog.clock_timestamp() + '100 years') - pg_catalog.clock_timestamp())
 FROM wirefence.row_claims AS r WHERE r.name = ANY ($1) AND r.until > pg_catalog.clock_timestamp()`
	asked := time.Now()
	rows, err := f.Pool.Query(ctx, readSQL, f.Names())
	if err != nil {
		return nil, fmt.Errorf("read the claims of rows: %w", err)
	}
	all := map[string]claim{}
	var row string
	var c claim
	var left float64
	_, err = pgx.ForEachRow(rows, []any{&row, &c.taken, &left}, func() error {
		c.until = asked.Add(time.Duration(left) * time.Microsecond)
		all[row] = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the claims of rows: %w", err)
	}
	return all, nil
}

// grant seals a grant, and begins its lease. Other rows don't wait for the seal, which may wait for a former
// holder.
func (f *Follower) grant(ctx context.Context, lock adopt.Lock, is claim) error {
	row := nameOf(lock)
	f.sealing[row].Lock()
	defer f.sealing[row].Unlock()
	token, err := f.Adopt(ctx, lock, seal.Still{SQL: "wirefence.claim_stands($5, $6)", Args: []any{row, is.taken}}, is.until)
	if token > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held[row] = lease{token, is.taken}
	}
	return err
}
