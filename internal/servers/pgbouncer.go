package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncerConfig says what a PgBouncer stands before and how it pools.
type PgBouncerConfig struct {
	// Upstream is host:port of what it pools connections to. Required. It serves
	// every database there.
	Upstream string
	// Clients is how many clients it takes at once, and, unless PoolSize is
	// less, how many server connections it makes. Required.
	Clients int
	// PoolSize is how many server connections it makes for a user and database.
	PoolSize int
	// PoolMode is session, transaction or statement; session by default.
	PoolMode string
	// Passwords are those of its users by name, for clients and for the
	// upstream. The user postgres is always there, by default without one.
	Passwords map[string]string
	// CertFile and KeyFile let clients use TLS, if they want to. With CAFile it speaks
	// TLS to the upstream, whose certificate it verifies in full.
	CertFile, KeyFile, CAFile string
	// Settings are further lines of its section [pgbouncer], by name; they
	// override the starter's own. auth_type is trust unless set here.
	Settings map[string]string
}

// PgBouncer is a running PgBouncer.
type PgBouncer struct {
	Port int

	child
	dir string
}

// StartPgBouncer starts a PgBouncer and returns when it answers.
func StartPgBouncer(ctx context.Context, cfg PgBouncerConfig) (*PgBouncer, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil { // Debian has it where an ordinary user's PATH doesn't lead
		path, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		return nil, errors.New("no pgbouncer found: run scripts/install-servers --test (Debian, Ubuntu), or put pgbouncer on the PATH")
	}
	account, err := serverAccount() // PgBouncer refuses root too
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{}
	if b.Port, err = FreePort(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "wf-pgb-"); err != nil {
		return nil, err
	}
	return orClosed(b, b.run(ctx, path, account, cfg))
}

// files writes the configuration and returns its path and that of the log.
func (b *PgBouncer) files(cfg PgBouncerConfig) (config, logs string, err error) {
	host, port, err := net.SplitHostPort(cfg.Upstream)
	if err != nil {
		return "", "", err
	}
	users := filepath.Join(b.dir, "users.txt")
	config, logs = filepath.Join(b.dir, "pgbouncer.ini"), filepath.Join(b.dir, "pgbouncer.log")
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.Port), "unix_socket_dir": "",
		"auth_type": "trust", "auth_file": users, "pool_mode": cmp.Or(cfg.PoolMode, "session"),
		"max_client_conn": strconv.Itoa(cfg.Clients), "default_pool_size": strconv.Itoa(cmp.Or(cfg.PoolSize, cfg.Clients)),
		"ignore_startup_parameters": "extra_float_digits,options", "logfile": logs,
		"log_connections": "0", "log_disconnections": "0", "stats_period": "3600",
	}
	if cfg.CertFile != "" {
		settings["client_tls_sslmode"] = "allow"
		settings["client_tls_cert_file"], settings["client_tls_key_file"] = filepath.Join(b.dir, "client.crt"), filepath.Join(b.dir, "client.key")
	}
	if cfg.CAFile != "" {
		settings["server_tls_sslmode"], settings["server_tls_ca_file"] = "verify-full", filepath.Join(b.dir, "ca.crt")
	}
	maps.Copy(settings, cfg.Settings)
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\n", host, port)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text += name + " = " + settings[name] + "\n"
	}
	passwords := map[string]string{"postgres": ""}
	maps.Copy(passwords, cfg.Passwords)
	list := ""
	for _, name := range slices.Sorted(maps.Keys(passwords)) {
		list += fmt.Sprintf("%q %q\n", name, passwords[name])
	}
	return config, logs, errors.Join(os.WriteFile(users, []byte(list), 0o644), os.WriteFile(config, []byte(text), 0o644))
}

func (b *PgBouncer) run(ctx context.Context, path string, account *syscall.Credential, cfg PgBouncerConfig) error {
	config, logs, err := b.files(cfg)
	if err != nil {
		return err
	}
	if account != nil {
		if err := os.Chown(b.dir, int(account.Uid), int(account.Gid)); err != nil {
			return err
		}
	}
	for name, file := range map[string]string{"client.crt": cfg.CertFile, "client.key": cfg.KeyFile, "ca.crt": cfg.CAFile} {
		if file == "" {
			continue
		}
		if err := copyFor(account, file, filepath.Join(b.dir, name)); err != nil {
			return err
		}
	}
	cmd := exec.Command(path, "-q", config)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	endWithParent(cmd.SysProcAttr)
	if err := b.start(cmd); err != nil {
		return err
	}
	return b.awaitReady(ctx, "PgBouncer", func(ctx context.Context) error {
		conn, err := pgconn.Connect(ctx, b.url("postgres", cfg.Passwords["postgres"]))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}, func() string {
		text, _ := os.ReadFile(logs)
		return string(text)
	})
}

// Addr is host:port of the process.
func (b *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port)) }

// URL is the superuser's connection string to a database, for a user postgres
// without a password.
func (b *PgBouncer) URL(database string) string {
	return b.url(database, "")
}

func (b *PgBouncer) url(database, password string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: b.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	if password != "" {
		u.User = url.UserPassword("postgres", password)
	}
	return u.String()
}

// Close ends the process and removes its folder. It may be called twice.
func (b *PgBouncer) Close() {
	b.end(syscall.SIGKILL)
	_ = os.RemoveAll(b.dir)
}
