//go:build linux

package incidenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// world is an application whose leader and standby, a and b, have a sidecar each. Beside
// them are a proxy c for programs that carry fences, and a proxy s in shadow mode.
type world struct {
	primary, standby *servers.Postgres
	redis            *servers.Redis
	link             *servers.Link // between c and the database, for what c does by itself
	a, b, c, s       *wirefence
	monitor          *monitor
	stopLoad         func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{}
	w.redis = stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	w.startPostgres(t)
	w.link = stack.Started(servers.StartLink(w.primary.Addr())).EndWith(t)
	store := "WIREFENCE_REDIS_URL=" + w.redis.URL()
	upstream := "WIREFENCE_UPSTREAM=postgres://" + w.primary.Addr() + "," + w.standby.Addr() + "/?sslmode=disable&target_session_attrs=read-write"
	database := func(first string) string {
		return "WIREFENCE_DATABASE_URL=postgres://postgres@" + first + "," + w.standby.Addr() + "/postgres?sslmode=disable&target_session_attrs=read-write"
	}
	w.a = newProxy(t, "a", store, upstream, database(w.primary.Addr()), "WIREFENCE_LEASE=orders")
	w.a.awaitLead(t)
	// A seal has to succeed within four fifths of the TTL.
	stack.Exec(t, w.primary.URL("postgres"), "UPDATE wirefence.resource_locks SET preempt_after = '1 s' WHERE resource_id = 'orders'")
	w.b = newProxy(t, "b", store, upstream, database(w.primary.Addr()), "WIREFENCE_LEASE=orders")
	w.c = newProxy(t, "c", store, upstream, database(w.link.Addr()))
	w.s = newProxy(t, "s", store, upstream, database(w.primary.Addr()), "WIREFENCE_MODE=shadow", "WIREFENCE_UNFENCED_WRITES=reject")
	w.hold(t, "invoices", "worker")
	w.monitor = startMonitor(t, w.proxies()...)
	w.startLoad(t)
	return w
}

func (w *world) proxies() []*wirefence { return []*wirefence{w.a, w.b, w.c, w.s} }

// startPostgres starts a primary with the schema and a table, and its standby.
func (w *world) startPostgres(t *testing.T) {
	t.Helper()
	w.primary = stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	migrate(t, w.primary.URL("postgres"))
	stack.Exec(t, w.primary.URL("postgres"), "CREATE TABLE jobs (worker text)", "CREATE ROLE app LOGIN", "GRANT ALL ON jobs TO app",
		"SELECT wirefence.seal('steady', 1)", "CREATE DATABASE elsewhere")
	migrate(t, w.primary.URL("elsewhere"))
	w.standby = stack.Started(w.primary.StartStandby(t.Context())).EndWith(t)
}

func migrate(t *testing.T, url string) {
	t.Helper()
	conn := stack.Connect(t, url)
	defer conn.Close(t.Context())
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
}

// startLoad has clients write through the sidecars, and with a fence of their own through
// c, until the test ends or stopLoad is called. What fails is tried again: that is what
// incidents are about.
func (w *world) startLoad(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	w.stopLoad = func() { cancel(); clients.Wait() }
	t.Cleanup(w.stopLoad)
	for url, sql := range map[string]string{
		w.a.url: "INSERT INTO jobs VALUES ('a')",
		w.b.url: "INSERT INTO jobs VALUES ('b')",
		w.c.url: "INSERT INTO jobs VALUES ('c') /*wirefence.token='steady=1'*/",
		w.s.url: "SELECT count(*) FROM jobs",
	} {
		clients.Go(func() {
			for ctx.Err() == nil {
				writeFor(ctx, url, sql)
			}
		})
	}
}

// writeFor runs a statement again and again for a second.
func writeFor(ctx context.Context, url, sql string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	}
	for ctx.Err() == nil {
		if conn != nil {
			_, _ = conn.Exec(ctx, sql)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}

// lease is what a grant over HTTP says.
type lease struct {
	Fence   string `json:"fence"`
	GrantID string `json:"grant_id"`
}

// call does something with the lease of a resource, over HTTP.
func (w *world) call(t *testing.T, resource, operation string, body any) (l lease) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+w.c.Admin+"/v1/resources/"+resource+"/"+operation, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s of %s answers %s", operation, resource, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		t.Fatal(err)
	}
	return l
}

// hold grants a resource to a holder, and gives the lease back.
func (w *world) hold(t *testing.T, resource, holder string) lease {
	t.Helper()
	l := w.call(t, resource, "acquire", map[string]any{"holder": holder, "ttl_seconds": 30})
	w.call(t, resource, "release", map[string]any{"grant_id": l.GrantID})
	return l
}

// fails runs a statement through a proxy, which must refuse it.
func fails(t *testing.T, p *wirefence, sql, state string) {
	t.Helper()
	conn := stack.Connect(t, p.url)
	defer conn.Close(t.Context())
	_, err := conn.Exec(t.Context(), sql)
	stack.WantState(t, err, state, sql)
}

const staleWrite = "INSERT INTO jobs VALUES ('zombie') /*wirefence.token='orders=1'*/"

// Every alert fires in an incident that it is for, and resolves behind it. In between all
// queries of the dashboards yield data.
func TestIncidents(t *testing.T) {
	w := newWorld(t)
	stack.Eventually(t, "all proxies have read their database", func() bool {
		time.Sleep(100 * time.Millisecond)
		return w.monitor.query(t, `wirefence_resource_handoffs_total{resource="invoices"}`) == 4 && w.monitor.query(t, "wirefence_store_up") == 4
	})
	if active := w.monitor.active(t); len(active) > 0 {
		t.Errorf("active before anything happened: %q", active)
	}
	for _, incident := range []struct {
		name string
		play func(*world, *testing.T)
	}{
		{"the leader is stopped and its zombie writes", (*world).stopLeader},
		{"the lease store dies", (*world).killStore},
		{"nobody leads", (*world).stopBoth},
		{"a proxy loses its database, and two lead", (*world).cutDatabase},
		{"a standby is promoted", (*world).promote},
	} {
		if !t.Run(incident.name, func(t *testing.T) { incident.play(w, t) }) {
			return
		}
	}
	w.monitor.inspect(t)
}

func (w *world) stopLeader(t *testing.T) {
	w.a.awaitLead(t)
	zombie := begin(t, w.a.url, "INSERT INTO jobs VALUES ('zombie')")
	must(t, w.a.Pause())
	w.slowHandoff(t)
	for i := range 8 {
		w.hold(t, "invoices", fmt.Sprint("worker ", i%2))
	}
	w.monitor.fire(t, "WirefenceProxyDown a", "WirefenceTakeoverEndedTransactions invoices", "WirefenceHandoffsSlow", "WirefenceHandoffsFlap invoices")
	w.b.awaitLead(t)
	must(t, w.a.Resume())
	if err := zombie.Commit(t.Context()); err == nil {
		t.Error("the zombie committed")
	}
	fails(t, w.c, staleWrite, "WF001")
	stack.Exec(t, w.s.url, staleWrite, "INSERT INTO jobs VALUES ('unfenced')")
	w.monitor.fire(t, "WirefenceStaleWrite c", "WirefenceStaleWrite s in shadow", "WirefenceUnfencedWrite s in shadow")
	w.monitor.show(t)
	w.monitor.calm(t)
}

// slowHandoff has a transaction be ended by a takeover, after preempt_after.
func (w *world) slowHandoff(t *testing.T) {
	t.Helper()
	former := w.hold(t, "invoices", "sleeper")
	tx := begin(t, w.c.url, "INSERT INTO jobs VALUES ('sleeper') /*wirefence.token='"+former.Fence+"'*/")
	w.hold(t, "invoices", "worker")
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the former holder committed")
	}
}

// begin opens a transaction as the application and runs a statement in it.
func begin(t *testing.T, url, sql string) pgx.Tx {
	t.Helper()
	tx, err := stack.Connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return tx
}

func (w *world) killStore(t *testing.T) {
	w.redis.Kill()
	w.monitor.fire(t, "WirefenceStoreDown a", "WirefenceStoreDown b", "WirefenceNobodyHolds orders")
	if err := w.redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.monitor.calm(t)
}

func (w *world) stopBoth(t *testing.T) {
	must(t, w.a.Pause())
	must(t, w.b.Pause())
	w.monitor.fire(t, "WirefenceNobodyHolds orders", "WirefenceProxyDown a", "WirefenceProxyDown b")
	must(t, w.a.Resume())
	must(t, w.b.Resume())
	w.monitor.resolve(t, "WirefenceNobodyHolds orders", "WirefenceProxyDown a", "WirefenceProxyDown b")
}

func (w *world) cutDatabase(t *testing.T) {
	w.link.Cut()
	fails(t, w.c, staleWrite, "WF001")
	w.leadTwice(t)
	w.monitor.fire(t, "WirefenceDatabaseUnreadable c", "WirefenceRefusalsUnrecorded c")
	w.link.Restore()
	w.monitor.calm(t)
}

// A sidecar with another database and another store leads there.
func (w *world) leadTwice(t *testing.T) {
	elsewhere := w.primary.URL("elsewhere")
	d := newProxy(t, "d", "WIREFENCE_UPSTREAM=postgres://"+w.primary.Addr()+"/?sslmode=disable", "WIREFENCE_DATABASE_URL="+elsewhere, "WIREFENCE_LEASE=orders",
		"WIREFENCE_DOCTOR_INTERVAL=1s") // which finds that fsync is off
	d.awaitLead(t)
	w.monitor.scrape(t, append(w.proxies(), d)...)
	w.monitor.fire(t, "WirefenceManyHold orders", "WirefenceDoctorProblem d")
	d.Kill()
	w.monitor.scrape(t, w.proxies()...)
	w.monitor.resolve(t, "WirefenceManyHold orders", "WirefenceDoctorProblem d")
}

// The old primary goes on for a while.
func (w *world) promote(t *testing.T) {
	w.stopLoad()
	if err := w.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.monitor.fire(t, "WirefenceTimelineChanged", "WirefencePrimaryLeftBehind "+w.primary.Addr())
	w.primary.Stop()
	for _, p := range w.proxies() { // they go by what they saw last
		p.Kill()
		must(t, p.Start(t.Context()))
	}
	w.monitor.calm(t)
}
