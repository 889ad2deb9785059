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
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
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
	Major     int
	Port      int
	SocketDir string

	child
	dir     string
	bin     string
	account *syscall.Credential
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
	p := &Postgres{Major: major, bin: bin}
	var err error
	if p.account, err = serverAccount(); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "wf-pg-"); err != nil {
		return nil, err
	}
	p.SocketDir = p.dir
	err = p.initialise(ctx, cfg)
	if err == nil {
		err = p.Start(ctx)
	}
	return orClosed(p, err)
}

// initialise makes a cluster and configures it.
func (p *Postgres) initialise(ctx context.Context, cfg PostgresConfig) error {
	if p.account != nil {
		if err := os.Chown(p.dir, int(p.account.Uid), int(p.account.Gid)); err != nil {
			return err
		}
	}
	data := filepath.Join(p.dir, "data")
	initdb := p.command(ctx, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	p.Port = port
	if err := p.writeSettings(data, cfg); err != nil {
		return err
	}
	if cfg.HBA != "" {
		return os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(cfg.HBA), 0o644)
	}
	return nil
}

// writeSettings writes the defaults, and over them those of cfg.
func (p *Postgres) writeSettings(data string, cfg PostgresConfig) error {
	settings := map[string]string{
		"port": strconv.Itoa(p.Port), "listen_addresses": "127.0.0.1", "unix_socket_directories": p.dir,
		"max_connections": "200", "wal_level": "logical", "max_prepared_transactions": "10",
		"shared_buffers": "64MB", "max_wal_size": "256MB", "wal_keep_size": "512MB", "log_line_prefix": "%m [%p] %a ", "timezone": "UTC",
	}
	if !cfg.Fsync {
		settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"] = "off", "off", "off"
	}
	if err := p.useTLS(data, cfg, settings); err != nil {
		return err
	}
	maps.Copy(settings, cfg.Settings)
	var conf bytes.Buffer
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	return os.WriteFile(filepath.Join(data, "postgresql.auto.conf"), conf.Bytes(), 0o644)
}

// useTLS copies certificates to where the server's account can read them.
func (p *Postgres) useTLS(data string, cfg PostgresConfig, settings map[string]string) error {
	if cfg.CertFile == "" {
		return nil
	}
	settings["ssl"] = "on"
	for name, file := range map[string]string{"ssl_cert_file": cfg.CertFile, "ssl_key_file": cfg.KeyFile, "ssl_ca_file": cfg.CAFile} {
		if file == "" {
			continue
		}
		settings[name] = filepath.Join(data, name)
		if err := copyFor(p.account, file, settings[name]); err != nil {
			return err
		}
	}
	return nil
}

// copyFor copies a file that an account alone may read, nil for our own.
func copyFor(account *syscall.Credential, from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, text, 0o600); err != nil || account == nil {
		return err
	}
	return os.Chown(to, int(account.Uid), int(account.Gid))
}

// Start starts a server that was ended by Stop or Kill, on the same port and
// data.
func (p *Postgres) Start(ctx context.Context) error {
	logFile, err := os.OpenFile(filepath.Join(p.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := p.command(context.Background(), "postgres", "-D", filepath.Join(p.dir, "data"))
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := p.start(cmd); err != nil {
		return err
	}
	return p.awaitReady(ctx, fmt.Sprintf("PostgreSQL %d", p.Major), func(ctx context.Context) error {
		conn, err := pgconn.Connect(ctx, p.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}, p.Log)
}

// Stop ends the server by a fast shutdown and waits for it. It may be called
// on a server that isn't running.
func (p *Postgres) Stop() { p.end(syscall.SIGINT) }

// Kill ends the server as a crash would, its backends too, and waits for it.
func (p *Postgres) Kill() { p.end(syscall.SIGQUIT) }

// Close stops the server and removes its folder. It may be called twice.
func (p *Postgres) Close() {
	p.Kill()
	_ = os.RemoveAll(p.dir)
}

// Addr is host:port of the server.
func (p *Postgres) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)) }

// URL is the superuser's connection string to a database.
func (p *Postgres) URL(database string) string { return p.URLFor("postgres", database) }

// URLFor is the connection string of a role to a database.
func (p *Postgres) URLFor(role, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", role, p.Port, database)
}

// Log returns what the server has logged.
func (p *Postgres) Log() string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "server.log"))
	return string(text)
}

func (p *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, name), args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", "HOME="+p.dir) // the server is a client, too, of other nodes
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	endWithParent(cmd.SysProcAttr)
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

// File is the path of a file that a setting names, such as ssl_cert_file.
func (p *Postgres) File(setting string) string { return filepath.Join(p.dir, "data", setting) }
