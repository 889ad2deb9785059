// Package servers starts and ends real PostgreSQL, Redis, etcd and ZooKeeper
// servers for tests, the demo and the benchmarks, PostgreSQL also under Patroni: on free
// loopback ports, in temporary folders, ended by process id.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresConfig says what kind of server to start. The zero value is a
// PostgreSQL of the default version that trusts everybody on loopback, writes
// without fsync and allows logical decoding.
type PostgresConfig struct {
	// Major is the major version, 14 to 18; 0 is the newest that Debian's
	// packages have installed, else the newest found.
	Major int
	// Settings are lines of postgresql.conf by name, over the defaults.
	Settings map[string]string
	// HBA replaces pg_hba.conf; "" trusts everybody.
	HBA string
	// Fsync keeps fsync on, for benchmarks that mean it.
	Fsync bool
	// CertFile and KeyFile switch TLS on; CAFile lets clients show certificates.
	CertFile, KeyFile, CAFile string
}

// Postgres is a running server. Its superuser is postgres, without a password.
type Postgres struct {
	process
	Major     int
	SocketDir string

	bin  string
	kept struct { // of RunKept
		sync.Mutex
		conn *pgx.Conn
	}
}

// StartPostgres makes a cluster and starts it. It returns when the server
// accepts connections.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	bins := postgresBinaries()
	if len(bins) == 0 {
		return nil, errors.New("no PostgreSQL server found: run scripts/install-servers (Debian, Ubuntu), or put postgres and initdb on the PATH")
	}
	major := cfg.Major
	if major == 0 {
		major = defaultMajor(bins)
	}
	bin, ok := bins[major]
	if !ok {
		return nil, fmt.Errorf("no PostgreSQL %d found: run scripts/install-servers --test", major)
	}
	return startPostgres(ctx, major, bin, func(p *Postgres) error { return p.initialise(ctx, cfg) })
}

// startPostgres starts a server whose data prepare makes.
func startPostgres(ctx context.Context, major int, bin string, prepare func(p *Postgres) error) (*Postgres, error) {
	p := &Postgres{Major: major, bin: bin}
	p.ask, p.kill = syscall.SIGINT, syscall.SIGQUIT // a fast shutdown, and the end of all backends as in a crash
	err := p.prepareUnprivileged(filepath.Join(bin, "postgres"))
	if err == nil {
		p.SocketDir = p.dir
		p.command = append(p.command, "-D", p.data())
		p.env = []string{"LC_ALL=C", "TZ=UTC", "HOME=" + p.dir} // the server is a client, too, of other nodes
		p.ready = func(ctx context.Context) error { return logsIn(ctx, p.URL("postgres")) }
		err = prepare(p)
	}
	if err == nil {
		err = p.Start(ctx)
	}
	return orClosed(p, err)
}

// initialise makes a cluster and configures it.
func (p *Postgres) initialise(ctx context.Context, cfg PostgresConfig) error {
	if err := p.makeCluster(ctx); err != nil {
		return err
	}
	if err := p.writeSettings(cfg); err != nil {
		return err
	}
	if cfg.HBA != "" {
		return os.WriteFile(p.File("pg_hba.conf"), []byte(cfg.HBA), 0o644)
	}
	return nil
}

// tool runs one of PostgreSQL's programs.
func (p *Postgres) tool(ctx context.Context, name string, args ...string) error {
	if out, err := p.program(ctx, filepath.Join(p.bin, name), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// Exec runs statements as the superuser.
func (p *Postgres) Exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// RunKept runs a statement in the database postgres over a connection that stays, unless it is in use:
// for tests that make a database each, since to log in takes as long as that.
func (p *Postgres) RunKept(ctx context.Context, sql string) (err error) {
	if !p.kept.TryLock() {
		return p.Exec(ctx, "postgres", sql)
	}
	defer p.kept.Unlock()
	for range 2 { // the server may have been restarted
		if p.kept.conn == nil || p.kept.conn.IsClosed() {
			if p.kept.conn, err = pgx.Connect(ctx, p.URL("postgres")); err != nil {
				return err
			}
		}
		if _, err = p.kept.conn.Exec(ctx, sql); err == nil || !p.kept.conn.IsClosed() {
			break
		}
	}
	return err
}

// writeSettings writes the defaults, and over them those of cfg.
func (p *Postgres) writeSettings(cfg PostgresConfig) error {
	settings := map[string]string{
		"port": strconv.Itoa(p.Port), "listen_addresses": "127.0.0.1", "unix_socket_directories": p.dir,
		"max_connections": "200", "wal_level": "logical", "max_prepared_transactions": "10",
		"shared_buffers": "64MB", "max_wal_size": "256MB", "wal_keep_size": "512MB", "log_line_prefix": "%m [%p] %a ", "timezone": "UTC",
	}
	if !cfg.Fsync {
		settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"] = "off", "off", "off"
	}
	if cfg.CertFile != "" {
		settings["ssl"] = "on"
	}
	for name, file := range map[string]string{"ssl_cert_file": cfg.CertFile, "ssl_key_file": cfg.KeyFile, "ssl_ca_file": cfg.CAFile} {
		if file == "" {
			continue
		}
		settings[name] = p.File(name)
		if err := p.copyFile(file, settings[name]); err != nil {
			return err
		}
	}
	maps.Copy(settings, cfg.Settings)
	var conf bytes.Buffer
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	return os.WriteFile(p.File("postgresql.auto.conf"), conf.Bytes(), 0o644)
}

// URL is the superuser's connection string to a database.
func (p *Postgres) URL(database string) string { return p.URLFor("postgres", database) }

// URLFor is the connection string of a role to a database.
func (p *Postgres) URLFor(role, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", role, p.Port, database)
}

// serverAccount returns the account to run servers as: our own, nil, unless we are root,
// which PostgreSQL refuses.
func serverAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no account postgres or nobody to run it as")
}

// File is the path of a file in the data directory; a setting that names one has its own name, such
// as ssl_cert_file.
func (p *Postgres) File(name string) string { return filepath.Join(p.data(), name) }
