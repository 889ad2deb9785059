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
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt/leaderelection"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/relay"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
	"github.com/wirefence/wirefence/proxy"
)

// ownLock is a lock of the applications' own.
type ownLock struct {
	from   string
	source fence.Source // of its tokens
	create string
	// open starts what keeps the lock. join has an application take it, and returns its sidecar's
	// settings; end ends it, as an administrator does.
	open func(t *testing.T, l *lists) (join func(a *adopter) []string, end func(context.Context, *pgx.Conn) error)
}

var ownLocks = map[string]ownLock{
	"advisory": {from: "advisory:42", open: inSQL("select pg_try_advisory_lock(42)", "select pg_advisory_unlock(42)",
		"select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 0 and objid = 42 and objsubid = 1 and granted")},
	// As ShedLock's, where all hosts have one name. Its holder's time may pass while it works.
	"row": {
		from: "row:shedlock(nightly)",
		create: `create table shedlock (name text primary key, lock_until timestamp not null, locked_at timestamp not null); grant all on shedlock to app;
			select wirefence.declare_rows('shedlock', 'shedlock', '{name}', '(extract(epoch from locked_at) * 1000000)::bigint', 'name <> ''''', until => 'lock_until');
			create function take() returns boolean language sql begin atomic
				insert into shedlock values ('nightly', timezone('utc', clock_timestamp()) + '200 ms', timezone('utc', clock_timestamp()))
				on conflict (name) do update set (lock_until, locked_at) = (excluded.lock_until, excluded.locked_at) where shedlock.lock_until <= excluded.locked_at returning true; end`,
		open: inSQL("select coalesce(take(), false)", "update shedlock set lock_until = timezone('utc', clock_timestamp()) where lock_until > timezone('utc', clock_timestamp())",
			"delete from shedlock"),
	},
	"redis":      {from: "redis:nightly", source: relay.Source, open: inRedis},
	"kubernetes": {from: "kubernetes:shop/nightly", source: leaderelection.Source, open: inKubernetes},
}

func inSQL(take, give, end string) func(*testing.T, *lists) (func(*adopter) []string, func(context.Context, *pgx.Conn) error) {
	does := func(ctx context.Context, conn *pgx.Conn, sql string) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}
	join := func(a *adopter) []string {
		a.take = func(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
			err = conn.QueryRow(ctx, take).Scan(&got)
			return got, err
		}
		a.give = func(ctx context.Context, conn *pgx.Conn) error { return does(ctx, conn, give) }
		return nil
	}
	return func(*testing.T, *lists) (func(*adopter) []string, func(context.Context, *pgx.Conn) error) {
		return join, func(ctx context.Context, conn *pgx.Conn) error { return does(ctx, conn, end) }
	}
}

// inRedis is a key with the application's name, whose time may pass while it works.
func inRedis(t *testing.T, l *lists) (func(*adopter) []string, func(context.Context, *pgx.Conn) error) {
	redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	client := func(addr string) *goredis.Client {
		c := goredis.NewClient(&goredis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	join := func(a *adopter) []string {
		port, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		listen := fmt.Sprint("127.0.0.1:", port)
		c := client(l.network(t, listen))
		a.take = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
			return c.SetNX(ctx, "nightly", a.name, 200*time.Millisecond).Result()
		}
		a.give = func(ctx context.Context, _ *pgx.Conn) error {
			return c.Eval(ctx, "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0", []string{"nightly"}, a.name).Err()
		}
		return []string{"WIREFENCE_REDIS_URL=redis://" + l.network(t, redis.Addr()) + "/0", "WIREFENCE_REDIS_LISTEN=" + listen}
	}
	direct := client(redis.Addr())
	return join, func(ctx context.Context, _ *pgx.Conn) error { return direct.Del(ctx, "nightly").Err() }
}

// inKubernetes is an election, for which each process has an identity of its own.
func inKubernetes(t *testing.T, l *lists) (func(*adopter) []string, func(context.Context, *pgx.Conn) error) {
	kube := apiservertest.Start(t)
	join := func(a *adopter) []string {
		var c *apiservertest.Candidate
		led := true
		a.take = func(context.Context, *pgx.Conn) (bool, error) {
			if led {
				c = kube.Candidate("nightly", fmt.Sprintf("%s_%016x", a.name, a.locks.Uint64()))
				c.Duration = time.Second
			}
			led = c.Try()
			return led, nil
		}
		a.give = func(context.Context, *pgx.Conn) error { c.TryRelease(); return nil }
		return []string{"WIREFENCE_KUBERNETES_URL=" + kube.Setting(), "WIREFENCE_LEASE_OWNER=" + a.name}
	}
	return join, func(context.Context, *pgx.Conn) error { kube.Candidate("nightly", "").Delete(t); return nil }
}

// Four applications take a lock of their own and append to a guarded list in a session that knows
// nothing of the lock, as a leader over a pool does. The lock is ended, sidecars freeze, networks are cut
// and stall. No append is lost, comes late or without a lease, each application sees all that was written
// before its grant, and the model has each step.
//
// Evidence: I1, I2, I3, I5
func TestHistoriesUnderOwnLocks(t *testing.T) {
	stack.NeedsMore(t, "24 s of CPU")
	binary := suite.Program(t, "../..")
	for kind, lock := range ownLocks {
		t.Run(kind, func(t *testing.T) {
			onOwnServer(t, func(t *testing.T, primary, standby *world) {
				random := listSeed(t)
				l := &lists{primary: primary, standby: standby}
				l.create(t)
				primary.Exec(t, fmt.Sprintf("update wirefence.resource_locks set source = nullif('%s', '')", lock.source), lock.create, followed, "select wirefence.protect('list', 'list'), wirefence.protect('written', 'list')")
				steps := stack.TellSteps(t, primary.Admin, "written", "list")
				l.playAdopted(t, binary, lock, trafficLength(), random)
				if faults := l.judge(t); faults != nil {
					t.Error(strings.Join(faults, "\n"))
				}
				wrong, err := steps.Follow(t.Context(), primary.Admin, true)
				if err = errors.Join(err, wrong); err != nil {
					t.Error(err)
				}
				if none := steps.Missing(model.Wanted, model.Sealed, model.Checked, model.Ran, model.Commits); len(none) > 0 || l.lacks("WF002") {
					t.Errorf("too little happened: %v, and no step is %v", l.counts, none)
				}
				t.Logf("steps: %v", steps.Counts())
			})
		})
	}
}

// followed is a table whose rows have the token that their session has. A guard's check precedes them.
const followed = `create table written (token bigint default substring(current_setting('wirefence.lease', true) from '=(\d+)')::bigint); grant insert on written to app;
	create function checked() returns trigger language plpgsql as $$ begin perform wirefence.tell_fence('checked', true, wirefence.guarded_by(), null); return new; end $$;
	create trigger checked before insert on written for each row execute function checked()`

// adopter is an application behind a sidecar that follows its lock.
type adopter struct {
	*lists
	take  func(context.Context, *pgx.Conn) (bool, error)
	give  func(context.Context, *pgx.Conn) error
	name  string
	addr  string
	locks *rand.Rand // of the one session
	works *rand.Rand // of the other
}

// network puts a network ahead of an address.
func (l *lists) network(t *testing.T, addr string) string {
	link := stack.Started(servers.StartLink(addr)).EndWith(t)
	l.links = append(l.links, link)
	return link.Addr()
}

// playAdopted lets the applications and a reader of the standby run.
func (l *lists) playAdopted(t *testing.T, binary string, lock ownLock, length time.Duration, seed uint64) {
	t.Helper()
	var end func()
	l.until, end = context.WithCancel(t.Context())
	defer end()
	l.counts = map[string]int{}
	join, endLock := lock.open(t, l)
	var all sync.WaitGroup
	var sidecars []*servers.Wirefence
	for n := range 4 {
		a := &adopter{lists: l, name: fmt.Sprint("h", n), locks: rand.New(rand.NewPCG(seed, uint64(n))), works: rand.New(rand.NewPCG(seed, uint64(n)+10))}
		sidecar := stack.Started(servers.StartWirefence(t.Context(), binary, append(join(a), "WIREFENCE_LEASE_FROM="+lock.from+"=list", "WIREFENCE_HOLDER="+a.name,
			"WIREFENCE_UPSTREAM=postgres://"+l.network(t, l.primary.Addr())+"/?sslmode=disable", "WIREFENCE_DATABASE_URL="+l.primary.URL(l.primary.Name))...)).EndWith(t)
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(sidecar.Log())
			}
		})
		stack.Eventually(t, "the sidecar is ready", func() bool { return sidecar.Answers(t.Context(), "/readyz") })
		a.addr, sidecars = l.network(t, sidecar.Addr()), append(sidecars, sidecar)
		all.Go(a.lead)
		all.Go(a.work)
	}
	addr := l.standby.own(t, proxy.Options{}).proxy
	all.Go(func() { l.readStandby("r", addr) })
	all.Go(func() { l.endLocks(endLock, rand.New(rand.NewPCG(seed, 98))) })
	all.Go(func() { l.freeze(sidecars, rand.New(rand.NewPCG(seed, 97))) })
	l.links = append(l.links, l.standby.follows)
	all.Go(func() { l.disturb(rand.New(rand.NewPCG(seed, 99))) })
	for begun := time.Now(); time.Since(begun) < length || time.Since(begun) < stack.Patience && l.lacks("WF002", "frozen"); {
		time.Sleep(10 * time.Millisecond)
	}
	end()
	all.Wait()
}

// freeze stops sidecars, often for longer than a lock lasts.
func (l *lists) freeze(sidecars []*servers.Wirefence, r *rand.Rand) {
	for l.until.Err() == nil {
		sidecar := sidecars[r.IntN(len(sidecars))]
		if err := sidecar.Pause(); err == nil {
			l.count("frozen")
		}
		time.Sleep(time.Duration(r.IntN(600)) * time.Millisecond)
		_ = sidecar.Resume()
		time.Sleep(time.Duration(r.IntN(600)) * time.Millisecond)
	}
}

// stays does something again and again, over connections that are cut off now and then.
func (a *adopter) stays(do func(ctx context.Context, conn *pgx.Conn) error) {
	for a.until.Err() == nil {
		if err := a.on(a.addr, func(ctx context.Context, conn *pgx.Conn) (err error) {
			for a.until.Err() == nil && err == nil {
				err = do(ctx, conn)
			}
			return err
		}); err != nil && !errors.Is(err, errLeft) {
			a.count("cut off")
			time.Sleep(10 * time.Millisecond)
		}
	}
}

var errLeft = errors.New("the application leaves with its lock")

// lead takes the lock and gives it back, or leaves with it.
func (a *adopter) lead() {
	a.stays(func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		got, err := a.take(ctx, conn)
		if err == nil && got {
			a.count("grants")
			time.Sleep(time.Duration(20+a.locks.IntN(200)) * time.Millisecond)
			if a.locks.IntN(3) == 0 {
				return errLeft
			}
			err = a.give(ctx, conn)
		}
		if err == nil {
			time.Sleep(time.Duration(a.locks.IntN(20)) * time.Millisecond)
		}
		return err
	})
}

// work appends to the list, also while another leads.
func (a *adopter) work() {
	n := 0
	a.stays(func(ctx context.Context, conn *pgx.Conn) error {
		n++
		err := a.append(ctx, conn, n)
		time.Sleep(time.Duration(a.works.IntN(10)) * time.Millisecond)
		return err
	})
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
		if err == nil {
			_, err = tx.Exec(ctx, "insert into written default values")
		}
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
func (l *lists) endLocks(end func(context.Context, *pgx.Conn) error, r *rand.Rand) {
	conn, err := pgx.Connect(l.until, l.primary.URL(l.primary.Name))
	if err != nil {
		return
	}
	for err == nil && l.until.Err() == nil {
		time.Sleep(time.Duration(50+r.IntN(400)) * time.Millisecond)
		err = end(l.until, conn)
	}
	_ = conn.Close(context.Background())
}
