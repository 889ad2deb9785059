package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// lockSettingsFor are settings of `wirefence lock` on the shared servers, and a
// resource that no other test takes.
func lockSettingsFor(t *testing.T, url string) (settings []string, resource string) {
	t.Helper()
	return []string{"WIREFENCE_REDIS_URL=" + redisServer(t).URL(), "WIREFENCE_DATABASE_URL=" + url},
		fmt.Sprintf("%s:%d", t.Name(), time.Now().UnixNano())
}

// leaseStores are the settings that name each store besides the database.
var leaseStores = map[string]func(t *testing.T) []string{
	"PostgreSQL": func(*testing.T) []string { return nil },
	"Redis":      func(t *testing.T) []string { return []string{"WIREFENCE_REDIS_URL=" + redisServer(t).URL()} },
	"ZooKeeper":  func(t *testing.T) []string { return []string{"WIREFENCE_ZOOKEEPER_URL=" + zookeeperServer(t).URL()} },
	"etcd":       func(t *testing.T) []string { return []string{"WIREFENCE_ETCD_URL=" + etcdServer(t).URL()} },
}

// onEachStore runs a test with the lease in each of the stores.
func onEachStore(t *testing.T, test func(t *testing.T, settings []string, resource string)) {
	t.Helper()
	t.Parallel()
	for name, store := range leaseStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, resource := lockSettingsFor(t, database(t, true))
			test(t, append(store(t), settings[1]), resource)
		})
	}
}

func TestLockPassesTheExitStatus(t *testing.T) { onEachStore(t, lockPassesTheExitStatus) }

func lockPassesTheExitStatus(t *testing.T, settings []string, resource string) {
	var first, second int64
	r := wirefence(t, settings, "lock", resource, "--", "sh", "-c", "echo $WIREFENCE_TOKEN $WIREFENCE_FENCE").expect(t, 0)
	if _, err := fmt.Sscan(r.stdout, &first); err != nil || first < 1 {
		t.Fatalf("token %q", r.stdout)
	}
	r.says(t, fmt.Sprintf("%d %s=%d\n", first, resource, first))
	r = wirefence(t, settings, "lock", resource, "--", "sh", "-c", "echo $WIREFENCE_TOKEN; exit 7").expect(t, 7)
	if _, err := fmt.Sscan(r.stdout, &second); err != nil || second <= first {
		t.Errorf("token %q after %d", r.stdout, first)
	}
	wirefence(t, settings, "lock", resource, "--", "sh", "-c", "kill -TERM $$").expect(t, 128+int(syscall.SIGTERM))
	wirefence(t, settings, "lock", resource, "--", "no-such-command").expect(t, 127, "no-such-command")
}

func TestLockWithoutADatabase(t *testing.T) {
	t.Parallel()
	settings, resource := lockSettingsFor(t, "")
	wirefence(t, settings[:1], "lock", resource, "--", "echo", "ran").expect(t, exitUsage, "WIREFENCE_REDIS_URL is set without WIREFENCE_DATABASE_URL", "WIREFENCE_UNSEALED=true")
	wirefence(t, append(settings[:1:1], "WIREFENCE_UNSEALED=true"), "lock", resource, "--", "sh", "-c", "echo $WIREFENCE_FENCE").
		expect(t, 0, "leases are not sealed").says(t, resource+"=1@redis")
	wirefence(t, settings[:1], "lock", "--unsealed", resource, "--", "sh", "-c", "echo $WIREFENCE_FENCE").expect(t, 0, "leases are not sealed").says(t, resource+"=2@redis")
}

func TestLockHeldByAnother(t *testing.T) { onEachStore(t, lockHeldByAnother) }

func lockHeldByAnother(t *testing.T, settings []string, resource string) {
	first := start(t, append(settings, "WIREFENCE_HOLDER=first"), "lock", resource, "--", "sh", "-c", "echo held; exec sleep 60")
	first.stdout.Await(t, "held")
	wirefence(t, settings, "lock", resource, "--", "echo", "ran").expect(t, 75, "first/")
	if r := wirefence(t, settings, "lock", "--wait=300ms", resource, "--", "echo", "ran").expect(t, 75, "300ms", "first/"); r.stdout != "" {
		t.Errorf("the command ran: %s", r.stdout)
	}
	waiting := start(t, settings, "lock", "--wait=30s", resource, "--", "sh", "-c", "echo token $WIREFENCE_TOKEN")
	first.signal(t, syscall.SIGTERM)
	first.end(t).expect(t, 128+int(syscall.SIGTERM))
	waiting.end(t).expect(t, 0).says(t, "token ")
}

// Two who compete for a resource in different stores by mistake are told, by
// whichever comes second.
func TestLockInAnotherStore(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	settings, resource := lockSettingsFor(t, url)
	alone := []string{"WIREFENCE_DATABASE_URL=" + url}
	wirefence(t, settings, "lock", resource, "--", "true").expect(t, 0)
	wirefence(t, alone, "lock", resource, "--", "true").expect(t, exitConfig, `it comes from "postgres", not from "redis"`, "WF003")
	wirefence(t, alone, "lock", "other", "--", "true").expect(t, 0)
	wirefence(t, settings, "lock", "other", "--", "true").expect(t, exitConfig, `it comes from "redis", not from "postgres"`, "WF003")
	wirefence(t, settings, "lock", resource, "--", "true").expect(t, 0) // nothing of the refused one is left
}

// An unmodified psql is fenced through the proxy, and refused once a rival has
// taken over.
func TestLockFencesPsql(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
	p := startProxy(t, url)
	settings, _ := lockSettingsFor(t, url)
	insert := func(worker string) string {
		return fmt.Sprintf(`psql -X '%s' -c "INSERT INTO jobs VALUES ('%s')"`, p.url, worker)
	}
	wirefence(t, settings, "lock", "jobs:night", "--", "sh", "-c", insert("current")).expect(t, 0).says(t, "INSERT 0 1")
	rival := fmt.Sprintf(`psql -X '%s' -c "SELECT wirefence.seal('jobs:night', 1000, 'rival')"`, url)
	wirefence(t, settings, "lock", "jobs:night", "--", "sh", "-ec", rival+"; "+insert("zombie")).
		expect(t, 1, `stale fencing token for resource "jobs:night"`, "presented token 2, current token 1000", `granted to "rival"`)
	var all []string
	if err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT array_agg(worker) FROM jobs").Scan(&all); err != nil || fmt.Sprint(all) != "[current]" {
		t.Errorf("the table has %v, %v", all, err)
	}
	// The store's counter is behind the rival's token; the next holder doesn't see it.
	wirefence(t, settings, "lock", "jobs:night", "--", "sh", "-c", "echo $WIREFENCE_TOKEN; "+insert("next")).expect(t, 0).says(t, "1001", "INSERT 0 1")

	// Within another lock both fences count.
	within := func(script string) result {
		return wirefence(t, settings, "lock", "jobs:night", "--", os.Args[0], "lock", "reports", "--", "sh", "-ec", script)
	}
	within("echo $WIREFENCE_FENCE; "+insert("both")).expect(t, 0).says(t, "jobs:night=1002,reports=1\n", "INSERT 0 1")
	within(strings.Replace(rival, "1000", "2000", 1)+"; "+insert("zombie")).expect(t, 1, `stale fencing token for resource "jobs:night"`)
}

// A store that refuses the connection string isn't down, and no wait helps.
func TestLockDoesNotWaitForAnotherConfiguration(t *testing.T) {
	t.Parallel()
	url := strings.TrimSuffix(redisServer(t).URL(), "/0")
	for wrong, says := range map[string]string{
		url + "/99": "DB index is out of range",
		strings.Replace(url, "redis://", "redis://u:geheim@", 1): "WRONGPASS",
	} {
		wirefence(t, []string{"WIREFENCE_REDIS_URL=" + wrong, "WIREFENCE_UNSEALED=true"}, "lock", "orders", "--wait=1h", "--", "true").
			expect(t, exitConfig, says)
	}
}

// A store that is gone ends the command with the lease, with a status of its own.
func TestLockLosesItsLease(t *testing.T) {
	type server interface {
		URL() string
		Kill()
		Close()
	}
	for setting, startServer := range map[string]func(context.Context) (server, error){
		"WIREFENCE_REDIS_URL":     func(ctx context.Context) (server, error) { return servers.StartRedis(ctx) },
		"WIREFENCE_ETCD_URL":      func(ctx context.Context) (server, error) { return servers.StartEtcd(ctx) },
		"WIREFENCE_ZOOKEEPER_URL": func(ctx context.Context) (server, error) { return servers.StartZooKeeper(ctx) },
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			if setting != "WIREFENCE_REDIS_URL" {
				stack.NeedsMore(t, "the store of "+setting)
			}
			store, err := startServer(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			r := start(t, []string{setting + "=" + store.URL(), "WIREFENCE_TTL=2s", "WIREFENCE_UNSEALED=true"}, "lock", "orders", "--", "sh", "-c", "echo held; exec sleep 60")
			r.stdout.Await(t, "held")
			store.Kill()
			r.end(t).expect(t, 76, "orders")
		})
	}
}

// Ctrl-C while it waits for the lease ends the wait, and the command isn't run.
func TestLockIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	settings, resource := lockSettingsFor(t, "")
	settings = append(settings[:1:1], "WIREFENCE_UNSEALED=true")
	first := start(t, settings, "lock", resource, "--", "sh", "-c", "echo held; exec sleep 60")
	first.stdout.Await(t, "held")
	waiting := start(t, settings, "lock", "--wait=60s", resource, "--", "echo", "ran")
	awaitSubscriber(t, settings[0], resource)
	waiting.signal(t, os.Interrupt)
	if r := waiting.end(t).expect(t, 128+int(syscall.SIGINT)); r.stdout != "" {
		t.Errorf("the command ran: %s", r.stdout)
	}
}

// awaitSubscriber returns when someone waits for the release of a resource.
func awaitSubscriber(t *testing.T, setting, resource string) {
	t.Helper()
	_, url, _ := strings.Cut(setting, "=")
	options, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	stack.Eventually(t, "a client waits for the lease", func() bool {
		names, err := client.PubSubChannels(t.Context(), "*"+resource+"*").Result()
		return err == nil && len(names) > 0
	})
}

// go-redis writes nothing to the standard error, which is the command's. A grant waits for
// replicas if the settings say so.
func TestLockBehindSentinel(t *testing.T) {
	t.Parallel()
	s := stack.Started(servers.StartRedisSentinel(t.Context())).EndWith(t)
	r := wirefence(t, []string{"WIREFENCE_REDIS_URL=" + s.URL(), "WIREFENCE_UNSEALED=true", "WIREFENCE_LOG_LEVEL=error"}, "lock", "orders", "--", "sh", "-c", "echo mine >&2").expect(t, 0)
	if r.stderr != "mine\n" {
		t.Errorf("standard error %q", r.stderr)
	}
	waits := []string{"WIREFENCE_REDIS_URL=" + s.URL(), "WIREFENCE_REDIS_WAIT_REPLICAS=1", "WIREFENCE_REDIS_WAIT_TIMEOUT=4s", "WIREFENCE_UNSEALED=true"}
	wirefence(t, waits, "lock", "orders", "--", "true").expect(t, 0)
	wirefence(t, append(waits, "WIREFENCE_REDIS_WAIT_REPLICAS=2", "WIREFENCE_REDIS_WAIT_TIMEOUT=100ms"), "lock", "orders", "--", "true").
		expect(t, exitUnavailable, "1 of 2")
}

// An outage is told from a holder, and --wait waits it out: that of the store, and that of
// the database.
func TestLockWaitsOutAnOutage(t *testing.T) {
	t.Parallel()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	if err := migrations.Apply(t.Context(), stack.Connect(t, pg.URL("postgres")), nil); err != nil {
		t.Fatal(err)
	}
	redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	settings := []string{"WIREFENCE_REDIS_URL=" + redis.URL(), "WIREFENCE_DATABASE_URL=" + pg.URL("postgres")}
	run := func(flags ...string) *running {
		t.Helper()
		return start(t, settings, append(append([]string{"lock"}, flags...), "orders", "--", "sh", "-c", "echo token $WIREFENCE_TOKEN")...)
	}
	outages := map[string]struct {
		stop  func()
		start func() error
	}{
		"the store":    {redis.Kill, func() error { return redis.Start(t.Context()) }},
		"the database": {pg.Stop, func() error { return pg.Start(t.Context()) }},
	}
	for what, outage := range outages {
		outage.stop()
		run().end(t).expect(t, exitUnavailable)
		if r := run("--wait=2s").end(t).expect(t, exitUnavailable, "not acquired within 2s"); r.stdout != "" {
			t.Errorf("%s is down, and the command ran: %s", what, r.stdout)
		}
		waiting := run("--wait=60s")
		waiting.stderr.Await(t, "cannot acquire the lease, retrying")
		if err := outage.start(); err != nil {
			t.Fatal(err)
		}
		waiting.end(t).expect(t, 0).says(t, "token ")
	}
}
