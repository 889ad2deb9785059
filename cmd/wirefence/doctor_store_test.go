package main

import (
	"context"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// Each kind of store is looked at, and what it has counted.
func TestDoctorOfStores(t *testing.T) {
	t.Parallel()
	for name, checks := range map[string][]string{
		"Redis":     {"store.settings", "store.clock"},
		"etcd":      {"store.members"},
		"ZooKeeper": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, p := leaseStores[name](t), newPatient(t)
			settings, resource := p.settings(store...), "examined-"+name+"-"+p.name
			wirefence(t, settings, "lock", resource, "--", "true").expect(t, 0)
			r := examine(t, settings).finds(t, "store.reachable", "ok", "answers in", "").finds(t, "store.counters", "ok", "compared: 1", "")
			for _, check := range checks {
				r.finds(t, check, map[bool]string{true: "note", false: "ok"}[check == "store.settings"], "", "")
			}
			r.ends(t, 0)
			p.exec(t, "SELECT wirefence.seal('"+resource+"', 1000000000000)")
			examine(t, settings).finds(t, "store.counters", "note", resource, "").ends(t, 0)
		})
	}
}

// A store that was changed: the proxy's own resource can't be granted, and of others it is told.
func TestDoctorOfAnotherStore(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.exec(t, "SELECT wirefence.seal('it''s mine', 1, 'a', 'redis'), wirefence.seal('other', 1, 'a', 'redis'), wirefence.seal('foreign', 1, 'a', 'redisson')")
	examine(t, p.settings("WIREFENCE_REDIS_URL="+redisServer(t).URL())).finds(t, "resources.sources", "ok", "than redis", "")
	examine(t, p.settings()).finds(t, "resources.sources", "note", "than postgres: 2: it's mine (redis), other (redis)", "wirefence resource set NAME --source postgres").ends(t, 0)
	examine(t, p.settings("WIREFENCE_LEASE=it's mine")).finds(t, "resources.sources", "problem", "come from redis, and the lease store here is postgres",
		`wirefence resource set 'it'\''s mine' --source postgres`).finds(t, "resources.sources", "note", "1: other (redis)", "").ends(t, exitProblem, "resources.sources")
}

func TestDoctorOfAStoreThatIsDown(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	for _, setting := range []string{"WIREFENCE_REDIS_URL=redis://:geheim@127.0.0.1:1", "WIREFENCE_ETCD_URL=etcd://127.0.0.1:1", "WIREFENCE_ZOOKEEPER_URL=zookeeper://127.0.0.1:1"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			name, _, _ := strings.Cut(setting, "=")
			r := examine(t, p.settings(setting), "--timeout=5s").finds(t, "store.reachable", "problem", "can't be reached", name)
			r.finds(t, "store.counters", "unchecked", "because of store.reachable", "").finds(t, "guards.tables", "note", "no table is guarded", "wirefence protect")
			if r.status != exitProblem || strings.Contains(r.text, "geheim") {
				t.Errorf("status %d:\n%s", r.status, r.text)
			}
		})
	}
}

func TestDoctorOfRedisSettings(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	redis := stack.Started(servers.StartRedis(t.Context(), "--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru", "--appendonly", "yes")).EndWith(t)
	settings := p.settings("WIREFENCE_REDIS_URL=" + redis.URL())
	examine(t, settings).finds(t, "store.settings", "warning", "maxmemory-policy volatile-lru", "CONFIG SET maxmemory-policy noeviction").ends(t, 0, "store.settings")
	examine(t, append(settings, "WIREFENCE_REDIS_WAIT_REPLICAS=1")).finds(t, "store.settings", "problem", "has 0 replicas, grants wait for 1", "WIREFENCE_REDIS_WAIT_REPLICAS").
		ends(t, exitProblem, "store.settings")
	do := func(args ...any) {
		t.Helper()
		if _, err := redis.Do(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	examine(t, settings).finds(t, "store.settings", "ok", "evicts nothing and writes what it is told to disk", "").ends(t, 0)
	do("ACL", "SETUSER", "poor", "on", ">geheim", "~wirefence:*", "+eval", "+evalsha", "+get", "+pttl")
	r := examine(t, p.settings("WIREFENCE_REDIS_URL="+strings.Replace(redis.URL(), "redis://", "redis://poor:geheim@", 1)))
	r.finds(t, "store.settings", "unchecked", "NOPERM", "+config|get").finds(t, "store.reachable", "ok", "", "").ends(t, exitFailure, "store.settings", "store.clock")
	if strings.Contains(r.text, "geheim") {
		t.Errorf("the password is shown:\n%s", r.text)
	}
}

func TestDoctorOfRedisClusterAndSentinel(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	cluster := stack.Started(servers.StartRedisCluster(context.Background())).EndWith(t)
	sentinel := stack.Started(servers.StartRedisSentinel(context.Background())).EndWith(t)
	r := examine(t, p.settings("WIREFENCE_REDIS_URL="+cluster.URL())).finds(t, "store.reachable", "ok", "", "")
	for _, master := range cluster.Masters {
		r.finds(t, "store.settings", "note", master.Addr()+" has appendonly no", "").finds(t, "store.clock", "ok", master.Addr(), "")
	}
	r.ends(t, 0)
	examine(t, p.settings("WIREFENCE_REDIS_URL="+sentinel.URL(), "WIREFENCE_REDIS_WAIT_REPLICAS=1")).
		finds(t, "store.settings", "note", "has appendonly no", "").ends(t, 0)
}

// The shared server of the other tests gives durability up for speed.
func TestDoctorFindsWhatACrashCouldUndo(t *testing.T) {
	t.Parallel()
	r := examine(t, issuer(database(t, true)))
	r.finds(t, "server.durability", "problem", "fsync is off", "ALTER SYSTEM SET fsync = on").finds(t, "server.durability", "warning", "synchronous_commit is off", "ALTER SYSTEM RESET synchronous_commit")
	r.finds(t, "roles.issuer", "warning", "postgres is a superuser", "IN ROLE wirefence_issuer")
	r.ends(t, exitProblem, "server.durability", "roles.issuer")
}

func TestDoctorOfAStandby(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	t.Parallel()
	pg := startHealthy(t) // of its own: a server with a standby is told from others
	t.Cleanup(pg.Close)
	primary := patient{pg, stack.Database(t, pg)}
	standby := stack.Started(primary.StartStandby(t.Context())).EndWith(t)
	r := examine(t, patient{standby, primary.name}.settings())
	r.finds(t, "database.primary", "problem", "the server is a standby", "target_session_attrs=read-write").finds(t, "guards.tables", "note", "no table is guarded", "wirefence protect")
	r.ends(t, exitProblem, "database.primary")
	primary.exec(t, "SELECT wirefence.check('elsewhere=7')", "SELECT wirefence.seal('orders', 1), wirefence.set_failover('trust', 'a test')")
	examine(t, primary.settings()).finds(t, "server.durability", "note", "standbys follow asynchronously", "synchronous_standby_names").
		finds(t, "failover.lost", "warning", `failover is trust: orders`, "--failover reacquire").
		finds(t, "failover.lost", "note", `counted elsewhere: elsewhere`, "").ends(t, 0, "failover.lost")
	primary.exec(t, "SELECT wirefence.set_failover('reacquire', 'a test')")
	if err := standby.FallBehind(t.Context(), pg); err != nil {
		t.Fatal(err)
	}
	pg.Kill()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	promoted := patient{standby, primary.name}
	examine(t, promoted.settings()).finds(t, "failover.former", "note", `nobody has acquired orders`, "").ends(t, 0)
	promoted.exec(t, "SELECT wirefence.acquire('orders', 'me', '1 min')")
	examine(t, promoted.settings()).finds(t, "failover.former", "ok", "", "").ends(t, 0)
}

// The test isn't parallel, since it changes roles of the whole cluster.
func TestDoctorOfRoles(t *testing.T) {
	p := newPatient(t)
	p.exec(t, "REVOKE pg_signal_backend FROM wirefence_owner")
	examine(t, p.settings()).finds(t, "roles.prepared", "problem", "wirefence_owner may not end backends", "GRANT pg_signal_backend TO wirefence_owner").ends(t, exitProblem, "roles.prepared")
	p.exec(t, "GRANT pg_signal_backend TO wirefence_owner", "REVOKE pg_read_all_stats FROM wirefence_owner")
	examine(t, p.settings()).finds(t, "roles.prepared", "warning", "wirefence_owner may not see which backends are idle", "GRANT pg_read_all_stats TO wirefence_owner").ends(t, 0, "roles.prepared")
	p.exec(t, "SELECT wirefence.seal('held', 1)")
	writer := stack.Connect(t, p.URLFor("app", p.name))
	if _, err := writer.Exec(t.Context(), "BEGIN; SELECT wirefence.check('held=1')"); err != nil {
		t.Fatal(err)
	}
	examine(t, p.settings()).finds(t, "sessions.idle", "unchecked", "sessions that hold a resource: 1", "GRANT pg_read_all_stats TO wirefence_owner")
	_ = writer.Close(t.Context())
	p.exec(t, "GRANT pg_read_all_stats TO wirefence_owner", "GRANT wirefence_owner TO issuer")
	examine(t, p.settings()).finds(t, "roles.issuer", "warning", "issuer has wirefence_owner", "WIREFENCE_OWNER_URL is for migrations").ends(t, 0, "roles.issuer")
	p.exec(t, "REVOKE wirefence_owner FROM issuer", "CREATE ROLE deployer LOGIN IN ROLE wirefence_owner", "CREATE ROLE maintenance LOGIN IN ROLE wirefence_bypass",
		"CREATE TABLE orders (id int)", "SELECT wirefence.protect('orders', 'orders')", "GRANT INSERT ON orders TO maintenance",
		"ALTER ROLE maintenance SET session_replication_role = replica", "GRANT SET ON PARAMETER session_replication_role TO app")
	r := examine(t, p.settings()).finds(t, "roles.owner", "note", "can act as wirefence_owner: deployer", "REVOKE wirefence_owner FROM").
		finds(t, "guards.bypass", "note", "without a token: maintenance", "REVOKE wirefence_bypass FROM").
		finds(t, "guards.replica-role", "problem", "session_replication_role is replica for role maintenance", "ALTER ROLE maintenance RESET session_replication_role").
		finds(t, "guards.replica-role", "warning", "app may set session_replication_role", "REVOKE SET ON PARAMETER session_replication_role FROM app")
	r.ends(t, exitProblem, "guards.replica-role")
	p.exec(t, "ALTER ROLE maintenance RESET session_replication_role", "REVOKE SET ON PARAMETER session_replication_role FROM app")
	stack.Exec(t, p.URLFor("maintenance", p.name), "INSERT INTO orders VALUES (1)")
	examine(t, p.settings()).finds(t, "guards.bypass", "note", "maintenance wrote past guards in the last 24 hours, in transactions: 1, last to public.orders", "").ends(t, 0)
	p.exec(t, "DROP OWNED BY maintenance", "DROP ROLE maintenance", "DROP ROLE deployer")

	p.exec(t, "ALTER ROLE wirefence_bypass RENAME TO renamed")
	examine(t, p.settings()).finds(t, "roles.prepared", "problem", "the role wirefence_bypass doesn't exist", "wirefence migrate").ends(t, exitProblem, "roles.prepared")
	p.exec(t, "ALTER ROLE renamed RENAME TO wirefence_bypass")
	examine(t, p.settings()).ends(t, 0)
}
