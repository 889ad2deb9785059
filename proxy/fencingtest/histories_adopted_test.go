package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/adopt/advisory"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Four applications take an advisory lock of their own, each in one session, and append to a guarded
// list in another that knows nothing of the lock, as a leader over a pool does. Sessions of the lock
// are ended, networks are cut and stall. No append is lost, comes late or without a lease, and each
// application sees all that was written before its grant.
//
// Evidence: I1, I2, I5
func TestHistoriesUnderAnAdvisoryLock(t *testing.T) {
	onOwnServer(t, func(t *testing.T, primary, standby *world) {
		random := listSeed(t)
		l := &lists{primary: primary, standby: standby}
		l.create(t)
		primary.Exec(t, "select wirefence.protect('list', 'list')")
		l.playAdopted(t, trafficLength(), random)
		if faults := l.judge(t); faults != nil {
			t.Error(strings.Join(faults, "\n"))
		}
		if l.lacks("WF002") {
			t.Errorf("too little happened: %v", l.counts)
		}
	})
}

// adopter is an application behind a sidecar that follows its lock.
type adopter struct {
	*lists
	name  string
	addr  string
	locks *rand.Rand // of the one session
	works *rand.Rand // of the other
}

// playAdopted lets the applications and a reader of the standby run.
func (l *lists) playAdopted(t *testing.T, length time.Duration, seed uint64) {
	t.Helper()
	var end func()
	l.until, end = context.WithCancel(t.Context())
	defer end()
	l.counts = map[string]int{}
	network := func(addr string) string {
		link := stack.Started(servers.StartLink(addr)).EndWith(t)
		l.links = append(l.links, link)
		return link.Addr()
	}
	from, err := adopt.ParseFrom("advisory:42=list")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 4 {
		pool, err := pgxpool.New(t.Context(), "postgres://postgres@"+l.primary.Addr()+"/"+l.primary.Name+"?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		var book adopt.Book
		name := fmt.Sprint("h", n)
		follower := advisory.New(advisory.Options{Locks: from, Pool: pool, Book: &book, Holder: name, SealTimeout: 2 * time.Second})
		sidecar := l.primary.own(t, proxy.Options{
			Upstream: "postgres://" + network(l.primary.Addr()) + "/?target_session_attrs=read-write", Guarded: book.Fence,
			Locks: func(pid uint32, database string) proxy.SessionLocks { return follower.Session(pid, database) },
		})
		a := &adopter{
			lists: l, name: name, addr: network(sidecar.proxy),
			locks: rand.New(rand.NewPCG(seed, uint64(n))), works: rand.New(rand.NewPCG(seed, uint64(n)+10)),
		}
		all.Go(a.lead)
		all.Go(a.work)
	}
	addr := l.standby.own(t, proxy.Options{}).proxy
	all.Go(func() { l.readStandby("r", addr) })
	all.Go(func() { l.endLocks(rand.New(rand.NewPCG(seed, 98))) })
	l.links = append(l.links, l.standby.follows)
	all.Go(func() { l.disturb(rand.New(rand.NewPCG(seed, 99))) })
	for begun := time.Now(); time.Since(begun) < length || time.Since(begun) < stack.Patience && l.lacks("WF002"); {
		time.Sleep(10 * time.Millisecond)
	}
	end()
	all.Wait()
}

// lead takes the lock and gives it back, or leaves with it.
func (a *adopter) lead() {
	for a.until.Err() == nil {
		err := a.on(a.addr, func(ctx context.Context, conn *pgx.Conn) error {
			for a.until.Err() == nil {
				var got bool
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				err := conn.QueryRow(ctx, "select pg_try_advisory_lock(42)").Scan(&got)
				if err == nil && got {
					a.count("grants")
					time.Sleep(time.Duration(20+a.locks.IntN(200)) * time.Millisecond)
					if a.locks.IntN(3) == 0 {
						cancel()
						return nil
					}
					_, err = conn.Exec(ctx, "select pg_advisory_unlock(42)")
				}
				cancel()
				if err != nil {
					return err
				}
				time.Sleep(time.Duration(a.locks.IntN(20)) * time.Millisecond)
			}
			return nil
		})
		if err != nil {
			a.count("cut off")
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// work appends to the list, whoever leads.
func (a *adopter) work() {
	for n := 0; a.until.Err() == nil; {
		_ = a.on(a.addr, func(ctx context.Context, conn *pgx.Conn) error {
			for a.until.Err() == nil {
				n++
				if err := a.append(ctx, conn, n); err != nil {
					return err
				}
				time.Sleep(time.Duration(a.works.IntN(10)) * time.Millisecond)
			}
			return nil
		})
	}
}

// append reads the list and appends to it in one transaction, under the lease that this one has
// found. It returns an error behind which the connection is no good.
func (a *adopter) append(ctx context.Context, conn *pgx.Conn, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	item := appended{by: a.name, item: fmt.Sprintf("%s.%d", a.name, n)}
	read := seen{by: a.name}
	level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[a.works.IntN(3)]
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		var lease string
		if err := tx.QueryRow(ctx, "select coalesce(current_setting('wirefence.lease', true), '')").Scan(&lease); err != nil {
			return err
		}
		if lease != "" {
			f, err := fence.Parse(lease)
			if err != nil {
				return err
			}
			item.token = int64(f.Token("list"))
		}
		if err := tx.QueryRow(ctx, readList).Scan(&read.length, &read.sum); err != nil {
			return err
		}
		if a.works.IntN(8) == 0 {
			time.Sleep(time.Duration(a.works.IntN(300)) * time.Millisecond)
		}
		_, err := tx.Exec(ctx, appendItem, item.item)
		return err
	})
	refusal := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		item.fate = committed
	case errors.As(err, &refusal) && refusal.Code[:2] != "57" && refusal.Code[:2] != "08":
		item.fate = aborted
		a.count(refusal.Code)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if read.token = item.token; err == nil {
		a.reads = append(a.reads, read)
		a.counts["read"]++
		a.counts["appended"]++
	}
	a.appends = append(a.appends, item)
	if item.fate == aborted {
		return nil
	}
	return err
}

// endLocks ends sessions that have the lock, as an administrator does.
func (l *lists) endLocks(r *rand.Rand) {
	conn, err := pgx.Connect(l.until, l.primary.URL(l.primary.Name))
	if err != nil {
		return
	}
	for err == nil && l.until.Err() == nil {
		time.Sleep(time.Duration(50+r.IntN(400)) * time.Millisecond)
		_, err = conn.Exec(l.until, "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 0 and objid = 42 and objsubid = 1 and granted")
	}
	_ = conn.Close(context.Background())
}
