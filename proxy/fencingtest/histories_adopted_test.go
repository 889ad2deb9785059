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
	"github.com/wirefence/wirefence/internal/adopt/rows"
	"github.com/wirefence/wirefence/internal/adopt/seal"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// ownLock is a lock of the application's, and what an administrator does who ends it.
type ownLock struct {
	from, create, take, give, end string
	// follow sets what follows it, and returns what runs beside.
	follow func(o *proxy.Options, locks adopt.From, pool *pgxpool.Pool, book *adopt.Book, name string) (run func(context.Context))
}

var ownLocks = map[string]ownLock{
	"advisory": {
		from: "advisory:42=list",
		take: "select pg_try_advisory_lock(42)",
		give: "select pg_advisory_unlock(42)",
		end:  "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 0 and objid = 42 and objsubid = 1 and granted",
		follow: func(o *proxy.Options, locks adopt.From, pool *pgxpool.Pool, book *adopt.Book, name string) func(context.Context) {
			f := advisory.New(seal.Options{Locks: locks, Pool: pool, Book: book, Holder: name, Timeout: 2 * time.Second})
			o.Locks = func(pid uint32, database string) proxy.SessionLocks { return f.Session(pid, database) }
			return func(context.Context) {}
		},
	},
	// As ShedLock's, where all hosts have one name. Its holder's time may pass while it works.
	"row": {
		from: "row:shedlock(nightly)=list",
		create: `create table shedlock (name text primary key, lock_until timestamp not null, locked_at timestamp not null); grant all on shedlock to app;
			select wirefence.declare_rows('shedlock', 'shedlock', '{name}', '(extract(epoch from locked_at) * 1000000)::bigint', 'name <> ''''', until => 'lock_until');
			create function take() returns boolean language sql begin atomic
				insert into shedlock values ('nightly', timezone('utc', clock_timestamp()) + '200 ms', timezone('utc', clock_timestamp()))
				on conflict (name) do update set (lock_until, locked_at) = (excluded.lock_until, excluded.locked_at) where shedlock.lock_until <= excluded.locked_at returning true; end`,
		take: "select coalesce(take(), false)",
		give: "update shedlock set lock_until = timezone('utc', clock_timestamp()) where lock_until > timezone('utc', clock_timestamp())",
		end:  "delete from shedlock",
		follow: func(o *proxy.Options, locks adopt.From, pool *pgxpool.Pool, book *adopt.Book, name string) func(context.Context) {
			f := rows.New(seal.Options{Locks: locks, Pool: pool, Book: book, Holder: name, Timeout: 2 * time.Second})
			o.Rows = f
			return f.Run
		},
	},
}

// Four applications take a lock of their own, each in one session, and append to a guarded list in
// another that knows nothing of the lock, as a leader over a pool does. The lock is ended, networks are
// cut and stall. No append is lost, comes late or without a lease, and each application sees all that
// was written before its grant.
//
// Evidence: I1, I2, I5
func TestHistoriesUnderAnAdvisoryLock(t *testing.T) { testOwnLock(t, ownLocks["advisory"]) }

// The same with a lock in a row.
//
// Evidence: I1, I2, I5
func TestHistoriesUnderALockInARow(t *testing.T) { testOwnLock(t, ownLocks["row"]) }

func testOwnLock(t *testing.T, lock ownLock) {
	onOwnServer(t, func(t *testing.T, primary, standby *world) {
		random := listSeed(t)
		l := &lists{primary: primary, standby: standby}
		l.create(t)
		primary.Exec(t, lock.create, "select wirefence.protect('list', 'list')")
		l.playAdopted(t, lock, trafficLength(), random)
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
	lock  ownLock
	name  string
	addr  string
	locks *rand.Rand // of the one session
	works *rand.Rand // of the other
}

// playAdopted lets the applications and a reader of the standby run.
func (l *lists) playAdopted(t *testing.T, lock ownLock, length time.Duration, seed uint64) {
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
	from, err := adopt.ParseFrom(lock.from)
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
		o := proxy.Options{Upstream: "postgres://" + network(l.primary.Addr()) + "/?target_session_attrs=read-write", Guarded: book.Fence}
		run := lock.follow(&o, from, pool, &book, name)
		all.Go(func() { run(l.until) })
		sidecar := l.primary.own(t, o)
		a := &adopter{
			lists: l, lock: lock, name: name, addr: network(sidecar.proxy),
			locks: rand.New(rand.NewPCG(seed, uint64(n))), works: rand.New(rand.NewPCG(seed, uint64(n)+10)),
		}
		all.Go(a.lead)
		all.Go(a.work)
	}
	addr := l.standby.own(t, proxy.Options{}).proxy
	all.Go(func() { l.readStandby("r", addr) })
	all.Go(func() { l.endLocks(lock, rand.New(rand.NewPCG(seed, 98))) })
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
				err := conn.QueryRow(ctx, a.lock.take).Scan(&got)
				if err == nil && got {
					a.count("grants")
					time.Sleep(time.Duration(20+a.locks.IntN(200)) * time.Millisecond)
					if a.locks.IntN(3) == 0 {
						cancel()
						return nil
					}
					_, err = conn.Exec(ctx, a.lock.give)
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

// endLocks ends the lock, as an administrator does.
func (l *lists) endLocks(lock ownLock, r *rand.Rand) {
	conn, err := pgx.Connect(l.until, l.primary.URL(l.primary.Name))
	if err != nil {
		return
	}
	for err == nil && l.until.Err() == nil {
		time.Sleep(time.Duration(50+r.IntN(400)) * time.Millisecond)
		_, err = conn.Exec(l.until, lock.end)
	}
	_ = conn.Close(context.Background())
}
