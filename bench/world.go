package main

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
)

//go:embed scripts
var scripts embed.FS

const database = "bench"

// maxClients is how many clients the servers must bear.
const maxClients = 2200

// world is what is measured: servers, proxies and a folder of scripts.
type world struct {
	dir      string
	postgres *servers.Postgres
	bouncers []*servers.PgBouncer
	binary   string // the proxy's
	proxies  []*servers.Wirefence
	ports    map[target]int
	pids     map[target]int // of the processes between client and database
	launches map[target]launch

	authority       string         // file of its certificate
	server, between authority.Pair // of the server, and of what is between it and clients
}

// newWorld starts all servers. binary is the proxy's; "" builds it. base is another one to
// compare with; "" is none.
func newWorld(ctx context.Context, binary, base string) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = os.MkdirTemp("", "wf-bench-"); err != nil {
		return w, err
	}
	if err := os.CopyFS(w.dir, scripts); err != nil {
		return w, err
	}
	certificates, err := authority.In(w.dir)
	if err != nil {
		return w, err
	}
	w.authority = certificates.CAFile
	if w.server, err = certificates.Pair("db.test", "127.0.0.1"); err != nil {
		return w, err
	}
	if w.between, err = certificates.Pair("proxy.test", "127.0.0.1"); err != nil {
		return w, err
	}
	w.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{CertFile: w.server.CertFile, KeyFile: w.server.KeyFile, Fsync: true, Settings: map[string]string{
		"max_connections": fmt.Sprint(maxClients + 20), "shared_buffers": "256MB",
		// What runs now and then would hit one way and spare another.
		"autovacuum": "off", "checkpoint_timeout": "1d", "max_wal_size": "32GB", "wal_level": "replica",
	}})
	if err != nil {
		return w, err
	}
	for name, schema := range map[string]string{
		database: "schema.sql", guardedDatabase: "guards_schema.sql", rowsDatabase: "rows_schema.sql", unguardedRows: "rows_schema.sql",
	} {
		if err := w.fill(ctx, name, schema); err != nil {
			return w, err
		}
	}
	if err := w.exec(ctx, w.postgres.URL(rowsDatabase), "SELECT wirefence.protect('results_guarded', 'job({job_id})')"); err != nil {
		return w, err
	}
	w.ports, w.pids = map[target]int{postgres: w.postgres.Port}, map[target]int{}
	for t, cfg := range map[target]servers.PgBouncerConfig{
		pgbouncer: {}, encryptedBouncer: {CertFile: w.between.CertFile, KeyFile: w.between.KeyFile, CAFile: w.authority},
	} {
		cfg.Upstream, cfg.Clients = w.postgres.Addr(), maxClients
		b, err := servers.StartPgBouncer(ctx, cfg)
		if err != nil {
			return w, err
		}
		w.bouncers = append(w.bouncers, b)
		w.ports[t], w.pids[t] = b.Port, b.Pid()
	}
	if w.binary = binary; binary == "" {
		w.binary = filepath.Join(w.dir, "wirefence")
		if err := servers.BuildWirefence(ctx, ".", w.binary); err != nil {
			return w, err
		}
	}
	encrypted := []string{
		w.issuer(), "WIREFENCE_UPSTREAM=postgres://" + w.postgres.Addr() + "/?sslmode=verify-full&sslrootcert=" + w.authority,
		"WIREFENCE_TLS_CERT_FILE=" + w.between.CertFile, "WIREFENCE_TLS_KEY_FILE=" + w.between.KeyFile,
	}
	w.launches = map[target]launch{
		wirefence: {w.binary, []string{w.issuer()}}, checking: {w.binary, []string{"WIREFENCE_HOLD=0"}}, encryptedProxy: {w.binary, encrypted},
	}
	if base != "" {
		w.launches[baseProxy], w.launches[encryptedBase] = launch{base, []string{w.issuer()}}, launch{base, encrypted}
	}
	for t, s := range w.launches {
		p, err := w.startProxy(ctx, w.postgres.Addr(), s)
		if err != nil {
			return w, err
		}
		w.proxies = append(w.proxies, p)
		w.ports[t], w.pids[t] = p.Port, p.Pid()
	}
	return w, nil
}

// issuer is the setting of the connection on which a proxy asks whether its holds are wanted.
func (w *world) issuer() string { return "WIREFENCE_DATABASE_URL=" + w.postgres.URL(database) }

// launch is how a proxy is started: its binary, and settings.
type launch struct {
	binary   string
	settings []string
}

// startProxy starts a proxy in front of upstream.
func (w *world) startProxy(ctx context.Context, upstream string, how launch) (*servers.Wirefence, error) {
	return servers.StartWirefence(ctx, how.binary, append([]string{"WIREFENCE_UPSTREAM=postgres://" + upstream + "/?sslmode=disable",
		"WIREFENCE_ADMIN_LISTEN=off", "WIREFENCE_LOG_LEVEL=warn", fmt.Sprintf("WIREFENCE_MAX_CONNECTIONS=%d", maxClients)}, how.settings...)...)
}

// fill makes a database with its schemas and rows.
func (w *world) fill(ctx context.Context, name, script string) error {
	if err := w.exec(ctx, w.postgres.URL("postgres"), "CREATE DATABASE "+name); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, w.postgres.URL(name))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := migrations.Apply(ctx, conn, nil); err != nil {
		return err
	}
	schema, err := scripts.ReadFile("scripts/" + script)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(schema)) {
		if _, err := conn.Exec(ctx, line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

func (w *world) exec(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func url(port int) string { return urlBy(port, false) }

func urlBy(port int, tls bool) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=%s", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), database, sslmode(tls))
}

func sslmode(tls bool) string {
	if tls {
		return "require"
	}
	return "disable"
}

// measure runs one way of a group once.
func (w *world) measure(ctx context.Context, g group, by way, seconds int) (sample, error) {
	pid := w.pids[by.target]
	before, err := cpuOf(pid)
	if err != nil {
		return sample{}, err
	}
	counter := countInstructions(pid)
	defer counter.close()
	others, err := startWatch(ctx)
	if err != nil {
		return sample{}, err
	}
	s, err := load{
		host: "127.0.0.1", port: w.ports[by.target], database: cmp.Or(by.database, database), variables: slices.Concat(g.workload.variables, by.variables),
		script:   filepath.Join(w.dir, "scripts", by.script),
		protocol: g.protocol, clients: g.clients, seconds: seconds, fence: by.fence, tls: by.tls,
	}.run(ctx)
	if err != nil {
		return s, fmt.Errorf("%s: %w", g.key(by.name), err)
	}
	after, err := cpuOf(pid)
	if err != nil {
		return s, err
	}
	s.cpu = (after - before) / time.Duration(s.transactions)
	s.instructions = counter.count() / float64(s.transactions)
	s.busy, err = others.busy()
	return s, err
}

// cpuOf is 0 where there is no process between.
func cpuOf(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	return cpuTime(pid)
}

// level gives every run of inserts the same start: empty tables, no dead rows
// and no checkpoint due. As a replica it meets no guard.
func (w *world) level(ctx context.Context) error {
	for _, step := range []struct{ database, sql string }{
		{guardedDatabase, "SET session_replication_role = replica; TRUNCATE entries, entries_guarded, entries_templated, lines, lines_guarded"},
		{rowsDatabase, "SET session_replication_role = replica; TRUNCATE results, results_guarded"}, {unguardedRows, "TRUNCATE results"}, {unguardedRows, "VACUUM jobs"},
		{database, "TRUNCATE entries"}, {database, "VACUUM locks"}, {database, "CHECKPOINT"},
	} {
		if err := w.exec(ctx, w.postgres.URL(step.database), step.sql); err != nil {
			return err
		}
	}
	return nil
}

// close ends all servers. It may be called on a world that is not complete.
func (w *world) close() {
	for _, p := range w.proxies {
		p.Close()
	}
	for _, b := range w.bouncers {
		b.Close()
	}
	if w.postgres != nil {
		w.postgres.Close()
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
}
