package lockclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// several are three servers under one lease. Lock clients reach each by a link, writers
// directly.
type several struct {
	servers [3]*servers.Postgres
	links   [3]*servers.Link
	pools   [3]*pgxpool.Pool // of the writers
	redis   *servers.Redis
}

// written is a table of the tokens under which its rows were written, in the order of their
// commits as far as tokens differ: a row gets its number under the lock of its token.
const written = "CREATE TABLE written (n bigint GENERATED ALWAYS AS IDENTITY, token bigint)"

func newSeveral(t testing.TB) *several {
	t.Helper()
	s := &several{redis: startRedis(t)}
	for i := range s.servers {
		pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
		s.servers[i] = pg
		s.pools[i] = newPool(t, pg.URL("postgres"))
		s.links[i] = stack.Started(servers.StartLink(pg.Addr())).EndWith(t)
		migrate(t, stack.Connect(t, pg.URL("postgres")))
		stack.Exec(t, pg.URL("postgres"), written)
	}
	return s
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return stack.Started(pgxpool.New(t.Context(), url)).EndWith(t)
}

// name is what errors call a database.
func (s *several) name(i int) string { return s.links[i].Addr() + "/postgres" }

// sealers reach the databases by the links.
func (s *several) sealers(t testing.TB) (all []lockclient.Sealer) {
	t.Helper()
	for i, link := range s.links {
		pool := newPool(t, "postgres://postgres@"+link.Addr()+"/postgres?sslmode=disable")
		all = append(all, lockclient.PostgresSealer{Querier: pool, Source: redis.Source, Server: s.name(i)})
	}
	return all
}

// write writes to one database under a fence.
func (s *several) write(ctx context.Context, i int, f fence.Fence, token fence.Token) error {
	return pgx.BeginFunc(ctx, s.pools[i], func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT wirefence.check($1)", f.String()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO written (token) VALUES ($1)", int64(token))
		return err
	})
}

// wantWritable fails unless the lease is accepted in every database.
func (s *several) wantWritable(t *testing.T, lease *lockclient.Lease) {
	t.Helper()
	for i := range s.pools {
		if err := s.write(t.Context(), i, lease.Fence(), lease.Token()); err != nil {
			t.Errorf("token %d in database %d: %v", lease.Token(), i, err)
		}
	}
}

// wantStale fails unless the lease is refused in every database.
func (s *several) wantStale(t *testing.T, lease *lockclient.Lease) {
	t.Helper()
	for i := range s.pools {
		if err := s.write(t.Context(), i, lease.Fence(), lease.Token()); !fence.IsStale(err) {
			t.Errorf("token %d in database %d: %v", lease.Token(), i, err)
		}
	}
}

// wantUnsealed returns the SealError of an acquire that must fail and leave no lease. It must
// name the database that failed, and no other.
func (s *several) wantUnsealed(t *testing.T, store lockclient.Store, lease *lockclient.Lease, err error, failed int) {
	t.Helper()
	if _, is := errors.AsType[*lockclient.SealError](err); lease != nil || !is {
		t.Fatal(lease, err)
	}
	for i := range s.links {
		if named := strings.Contains(err.Error(), s.name(i)); named != (i == failed) {
			t.Errorf("database %d is named: %v: %v", i, named, err)
		}
	}
	if seen, err := store.(lockclient.Looker).Look(t.Context(), "orders"); err != nil || seen.Holder != "" {
		t.Errorf("held by %q: %v", seen.Holder, err)
	}
}

func TestSeveralDatabases(t *testing.T) {
	t.Parallel()
	s := newSeveral(t)
	t.Run("no grant without all", s.testNoGrantWithoutAll)
	t.Run("a grant waits for the writers of all", s.testAGrantWaitsForAllWriters)
	t.Run("a revocation reaches all", s.testRevokeReachesAll)
}

// With each of three databases away, nobody gets the lease, and the error names the database.
// When it is back, the next grant counts in all of them, and none from before does.
func (s *several) testNoGrantWithoutAll(t *testing.T) {
	store := redisStore(t, s.redis)
	client := newClient(t, store, lockclient.Options{Sealers: s.sealers(t), TTL: 2 * time.Second})
	for away := range s.servers {
		before := acquire(t, client)
		s.wantWritable(t, before)
		release(t, before)
		for fault, strike := range map[string]struct{ begin, end func() }{
			"stopped": {s.servers[away].Stop, func() {
				if err := s.servers[away].Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}},
			"cut off": {s.links[away].Cut, s.links[away].Restore},
			"silent":  {s.links[away].Hold, s.links[away].Restore},
		} {
			strike.begin()
			lease, err := client.TryAcquire(t.Context(), "orders")
			strike.end()
			t.Logf("%s: %v", fault, err)
			s.wantUnsealed(t, store, lease, err, away)
		}
		stack.Eventually(t, "the pool of the writers connects again", func() bool { return s.pools[away].Ping(t.Context()) == nil })
		after := acquire(t, client)
		s.wantWritable(t, after)
		s.wantStale(t, before)
		release(t, after)
	}
}

// A transaction of the former holder in any database delays the grant. If it takes too long
// for the lease, there is none.
func (s *several) testAGrantWaitsForAllWriters(t *testing.T) {
	store := redisStore(t, s.redis)
	client := newClient(t, store, lockclient.Options{Sealers: s.sealers(t), TTL: 2 * time.Second})
	for slow, pool := range s.pools {
		before := acquire(t, client)
		s.wantWritable(t, before)
		release(t, before)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT wirefence.check($1)", before.Fence().String()); err != nil {
			t.Fatal(err)
		}
		lease, err := client.TryAcquire(t.Context(), "orders") // 1.6 s, less than preempt_after
		t.Log(err)
		s.wantUnsealed(t, store, lease, err, slow)

		type grant struct {
			lease *lockclient.Lease
			err   error
		}
		granted := make(chan grant, 1)
		go func() {
			lease, err := client.TryAcquire(t.Context(), "orders")
			granted <- grant{lease, err}
		}()
		stack.Eventually(t, "the seal waits", func() (waits bool) {
			err := s.pools[slow].QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").Scan(&waits)
			return err == nil && waits
		})
		select {
		case early := <-granted:
			t.Fatalf("granted before the transaction has ended: %v, %v", early.lease, early.err)
		default:
		}
		if _, err := tx.Exec(t.Context(), "INSERT INTO written (token) VALUES ($1)", int64(before.Token())); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := <-granted
		if after.err != nil {
			t.Fatal(after.err)
		}
		s.wantWritable(t, after.lease)
		s.wantStale(t, before)
		release(t, after.lease)
	}
	s.wantOrder(t)
}

// wantOrder fails if a row was written under a lower token than one before it.
func (s *several) wantOrder(t *testing.T) {
	t.Helper()
	for i, pool := range s.pools {
		var rows, wrong, tokens int
		err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE token < highest), count(DISTINCT token)
			FROM (SELECT token, max(token) OVER (ORDER BY n) AS highest FROM written) AS w`).Scan(&rows, &wrong, &tokens)
		if err != nil || rows == 0 || wrong > 0 {
			t.Errorf("database %d: %d of %d rows are stale: %v", i, wrong, rows, err)
		}
		t.Logf("database %d: %d rows under %d tokens", i, rows, tokens)
	}
}

// One of the databases is promoted without its last commits: the next token is above all that
// were granted, in all databases, and holders learn of it.
func TestAPromotionInOneOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	s := newSeveral(t)
	p := newPromoted(t)
	stack.Exec(t, p.primary.URL("postgres"), written)
	sealers := s.sealers(t)
	s.pools[1], sealers[1] = p.pool, lockclient.PostgresSealer{Querier: p.pool, Source: redis.Source}
	client := newClient(t, redisStore(t, s.redis), lockclient.Options{Sealers: sealers, TTL: 6 * time.Second})
	before := acquire(t, client)
	s.wantWritable(t, before)
	release(t, before)
	p.fallBehind(t)
	lost := acquire(t, client)
	p.failOver(t)
	<-lost.Context().Done()
	if cause := context.Cause(lost.Context()); !errors.Is(cause, lockclient.ErrFailover) {
		t.Errorf("the lease ends with %v", cause)
	}
	after := acquire(t, client)
	if after.Token() < 1<<32 {
		t.Errorf("token %d after %d", after.Token(), lost.Token())
	}
	s.wantWritable(t, after)
	for _, lease := range []*lockclient.Lease{before, lost} {
		s.wantStale(t, lease)
	}
	s.wantOrder(t)
}

// A revocation reaches all databases. Where it can't, it says so, and the holder learns of it by
// the others.
func (s *several) testRevokeReachesAll(t *testing.T) {
	store := redisStore(t, s.redis)
	var databases []lockclient.PostgresSealer
	for _, sealer := range s.sealers(t) {
		databases = append(databases, sealer.(lockclient.PostgresSealer))
	}
	client := newClient(t, store, lockclient.Options{Sealers: s.sealers(t), TTL: 2 * time.Second})
	lease := acquire(t, client)
	done, err := lockclient.Revoke(t.Context(), databases, store, "orders", "")
	if err != nil || done.Freed != lease.Holder() || len(done.Databases) != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	s.wantStale(t, lease)

	lease = acquire(t, client)
	s.links[1].Cut()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	done, err = lockclient.Revoke(ctx, databases, store, "orders", "")
	if err == nil || !strings.Contains(err.Error(), s.name(1)) || strings.Contains(err.Error(), s.name(0)) {
		t.Error(err)
	}
	for i, each := range done.Databases {
		if (each.Err != nil) != (i == 1) || each.Database != s.name(i) {
			t.Errorf("%+v", each)
		}
		if err := s.write(t.Context(), i, lease.Fence(), lease.Token()); fence.IsStale(err) != (i != 1) {
			t.Errorf("database %d: %v", i, err)
		}
	}
	s.links[1].Restore()
	release(t, lease)

	stack.Eventually(t, "connections are made anew", func() bool {
		lease, err = client.TryAcquire(t.Context(), "orders")
		return err == nil
	})
	if _, err := fence.Revoke(t.Context(), s.pools[2], "orders"); err != nil {
		t.Fatal(err)
	}
	<-lease.Context().Done()
	if err := lease.Err(); !errors.Is(err, lockclient.ErrRevoked) {
		t.Error(err)
	}
}

// A database that two sealers lead to, or the store and a sealer, seals each grant once.
func TestOneDatabaseUnderSeveralNames(t *testing.T) {
	url, conn := startPostgres(t)
	pool := newPool(t, url)
	inPostgres := postgres.New(pool)
	t.Cleanup(func() { _ = inPostgres.Close() })
	for name, c := range map[string]struct {
		store  lockclient.Store
		source fence.Source
	}{"in redis": {redisStore(t, startRedis(t)), redis.Source}, "in postgres": {inPostgres, fence.SourcePostgres}} {
		sealer := lockclient.PostgresSealer{Querier: pool, Source: c.source}
		client := newClient(t, c.store, lockclient.Options{Sealers: []lockclient.Sealer{sealer, sealer}, TTL: time.Second})
		resource := fence.Resource(name)
		for want := range fence.Token(3) {
			lease, err := client.Acquire(t.Context(), resource)
			if err != nil {
				t.Fatal(name, err)
			}
			if last, err := fence.LastGrant(t.Context(), conn, resource); err != nil || last.Token != want+1 || last.Token != lease.Token() || last.Holder != lease.Holder() {
				t.Errorf("%s: granted %d to %s, recorded %+v: %v", name, lease.Token(), lease.Holder(), last, err)
			}
			release(t, lease)
		}
	}
}
