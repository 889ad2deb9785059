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
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

	bin string
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
	var err error
	if p.process, err = newForeign("pg"); err == nil {
		// A fast shutdown, and the end of all backends as in a crash.
		p.SocketDir, p.ask, p.kill = p.dir, syscall.SIGINT, syscall.SIGQUIT
		err = prepare(p)
	}
	if err == nil {
		err = p.Start(ctx)
	}
	return orClosed(p, err)
}

// initialise makes a cluster and configures it.
func (p *Postgres) initialise(ctx context.Context, cfg PostgresConfig) error {
	initdb := p.command(ctx, "initdb", "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err := p.writeSettings(cfg); err != nil {
		return err
	}
	if cfg.HBA != "" {
		return os.WriteFile(filepath.Join(p.data(), "pg_hba.conf"), []byte(cfg.HBA), 0o644)
	}
	return nil
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

// Start starts a server that was ended by Stop or Kill, on the same port and
// data.
func (p *Postgres) Start(ctx context.Context) error {
	return p.run(ctx, p.command(context.Background(), "postgres", "-D", p.data()), func(ctx context.Context) error { return logsIn(ctx, p.URL("postgres")) })
}

// URL is the superuser's connection string to a database.
func (p *Postgres) URL(database string) string { return p.URLFor("postgres", database) }

// URLFor is the connection string of a role to a database.
func (p *Postgres) URLFor(role, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", role, p.Port, database)
}

func (p *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, name), args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", "HOME="+p.dir) // the server is a client, too, of other nodes
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	endWithParent(cmd.SysProcAttr, syscall.SIGQUIT)
	return cmd
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
