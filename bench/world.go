package main

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
)

//go:embed scripts
var scripts embed.FS

// database has what most is measured in, and guardedDatabase the same with guards: a
// database with a guard checks more.
const (
	database        = "bench"
	guardedDatabase = "guarded"
)

// maxClients is how many clients the servers must bear.
const maxClients = 200

// world is what is measured: servers, what is between them and clients, and scripts.
type world struct {
	dir      string
	postgres *servers.Postgres
	running  map[target]*process
	binary   map[target]string // the proxy's; wirefence is for all that have none

	authority       string         // file of its certificate
	server, between authority.Pair // of the server, and of what is between it and clients
}

// process is one between clients and the server.
type process struct {
	port, pid     int
	close         func()
	pause, resume func() error
}

// newWorld starts all servers. It builds the proxy; baseBinary is another one, "" is none.
func newWorld(ctx context.Context, baseBinary string) (w *world, err error) {
	w = &world{running: map[target]*process{}, binary: map[target]string{base: baseBinary, baseTLS: baseBinary}}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = os.MkdirTemp("", "wf-bench-"); err != nil {
		return w, err
	}
	if err := w.writeScripts(); err != nil {
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
	for name, files := range map[string][]string{database: {"schema.sql", "worker.sql"}, guardedDatabase: {"schema.sql", "guards.sql"}} {
		if err := w.fill(ctx, name, files); err != nil {
			return w, err
		}
	}
	w.binary[wirefence] = filepath.Join(w.dir, "wirefence")
	if err := servers.BuildWirefence(ctx, ".", w.binary[wirefence]); err != nil {
		return w, err
	}
	all := maps.Clone(rivals)
	if baseBinary != "" {
		all[base], all[baseTLS] = rivals[wirefence], rivals[wirefenceTLS]
	}
	for t, r := range all {
		if w.running[t], err = w.start(ctx, t, r, w.postgres.Addr(), nil); err != nil {
			return w, err
		}
	}
	return w, nil
}

// start starts a process in front of upstream. more overrides its settings.
func (w *world) start(ctx context.Context, t target, r rival, upstream string, more map[string]string) (*process, error) {
	settings := maps.Clone(r.settings)
	if settings == nil {
		settings = map[string]string{}
	}
	if r.bouncer {
		cfg := servers.PgBouncerConfig{Upstream: upstream, Clients: maxClients, Settings: settings}
		if r.tls {
			cfg.CertFile, cfg.KeyFile, cfg.CAFile = w.between.CertFile, w.between.KeyFile, w.authority
		}
		b, err := servers.StartPgBouncer(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &process{b.Port, b.Pid(), b.Close, b.Pause, b.Resume}, nil
	}
	settings["WIREFENCE_UPSTREAM"] = "postgres://" + upstream + "/?sslmode=disable"
	if r.tls {
		settings["WIREFENCE_UPSTREAM"] = "postgres://" + upstream + "/?sslmode=verify-full&sslrootcert=" + w.authority
		settings["WIREFENCE_TLS_CERT_FILE"], settings["WIREFENCE_TLS_KEY_FILE"] = w.between.CertFile, w.between.KeyFile
	}
	settings["WIREFENCE_DATABASE_URL"] = w.postgres.URL(database) // where it asks whether its holds are wanted
	settings["WIREFENCE_ADMIN_LISTEN"], settings["WIREFENCE_LOG_LEVEL"] = "off", "warn"
	settings["WIREFENCE_MAX_CONNECTIONS"] = fmt.Sprint(maxClients)
	maps.Copy(settings, more)
	var list []string
	for name, value := range settings {
		list = append(list, name+"="+value)
	}
	p, err := servers.StartWirefence(ctx, cmp.Or(w.binary[t], w.binary[wirefence]), list...)
	if err != nil {
		return nil, err
	}
	return &process{p.Port, p.Pid(), p.Close, p.Pause, p.Resume}, nil
}

var fenceComment = regexp.MustCompile(` /\*wirefence[^*]*\*/`)

// writeScripts writes each script as it is, and without its fences.
func (w *world) writeScripts() error {
	for _, folder := range []string{"fenced", "plain"} {
		if err := os.Mkdir(filepath.Join(w.dir, folder), 0o755); err != nil {
			return err
		}
	}
	files, err := scripts.ReadDir("scripts")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := scripts.ReadFile("scripts/" + file.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(w.dir, "fenced", file.Name()), text, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(w.dir, "plain", file.Name()), fenceComment.ReplaceAll(text, nil), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) script(name string, comment bool) string {
	folder := "plain"
	if comment {
		folder = "fenced"
	}
	return filepath.Join(w.dir, folder, name)
}

// fill makes a database with Wirefence's schema and those of files.
func (w *world) fill(ctx context.Context, name string, files []string) error {
	conn, err := pgx.Connect(ctx, w.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	filled, err := pgx.Connect(ctx, w.postgres.URL(name))
	if err != nil {
		return err
	}
	defer filled.Close(ctx)
	if err := migrations.Apply(ctx, filled, nil); err != nil {
		return err
	}
	for _, file := range files {
		if err := play(ctx, filled, file); err != nil {
			return err
		}
	}
	return nil
}

// play runs a script line by line.
func play(ctx context.Context, conn *pgx.Conn, file string) error {
	text, err := scripts.ReadFile("scripts/" + file)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		if _, err := conn.Exec(ctx, string(line)); err != nil {
			return fmt.Errorf("%s: %s: %w", file, line, err)
		}
	}
	return nil
}

// level gives every run of writes the same start: empty tables, no dead rows and no
// checkpoint due. As a replica it meets no guard.
func (w *world) level(ctx context.Context) error {
	for _, name := range []string{database, guardedDatabase} {
		conn, err := pgx.Connect(ctx, w.postgres.URL(name))
		if err != nil {
			return err
		}
		err = play(ctx, conn, "level.sql")
		_ = conn.Close(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// port is where a target is reached.
func (w *world) port(t target) int {
	if t == postgres {
		return w.postgres.Port
	}
	return w.running[t].port
}

// measure runs one way once.
func (w *world) measure(ctx context.Context, r run, by way, seconds int) (sample, error) {
	if r.writes {
		if err := w.level(ctx); err != nil {
			return nil, err
		}
	}
	l := load{port: w.port(by.target), database: database, script: w.script(cmp.Or(by.script, r.script), by.comment || by.script != ""),
		protocol: r.row.protocol, clients: r.row.clients, seconds: seconds, fence: by.fence, more: r.more}
	if by.guarded {
		l.database = guardedDatabase
	}
	between := w.running[by.target]
	if between == nil {
		s, _, err := l.run(ctx)
		return s, err
	}
	before, err := cpuTime(between.pid)
	if err != nil {
		return nil, err
	}
	s, transactions, err := l.run(ctx)
	if err != nil {
		return s, err
	}
	after, err := cpuTime(between.pid)
	s[cpu] = float64((after - before).Microseconds()) / transactions
	return s, err
}

// close ends all servers. It may be called on a world that is not complete.
func (w *world) close() {
	for p := range maps.Values(w.running) {
		if p != nil {
			p.close()
		}
	}
	if w.postgres != nil {
		w.postgres.Close()
	}
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
}

// url is that of the superuser, unless user is named.
func url(port int, user, parameters string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?%s", user, port, database, parameters)
}
