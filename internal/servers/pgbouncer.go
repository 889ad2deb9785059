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
	"slices"
	"strconv"
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
type PgBouncer struct{ process }

// StartPgBouncer starts a PgBouncer and returns when it answers.
func StartPgBouncer(ctx context.Context, cfg PgBouncerConfig) (*PgBouncer, error) {
	b := &PgBouncer{}
	err := b.prepareUnprivileged("pgbouncer")
	if err == nil {
		b.command = append(b.command, b.file("pgbouncer.ini"))
		b.ready = func(ctx context.Context) error { return logsIn(ctx, b.url("postgres", cfg.Passwords["postgres"])) }
		err = b.configure(cfg)
	}
	if err == nil {
		err = b.Start(ctx)
	}
	return orClosed(b, err)
}

// configure writes the configuration and what it names.
func (b *PgBouncer) configure(cfg PgBouncerConfig) error {
	host, port, err := net.SplitHostPort(cfg.Upstream)
	if err != nil {
		return err
	}
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.Port), "unix_socket_dir": "",
		"auth_type": "trust", "auth_file": b.file("users.txt"), "pool_mode": cmp.Or(cfg.PoolMode, "session"),
		"max_client_conn": strconv.Itoa(cfg.Clients), "default_pool_size": strconv.Itoa(cmp.Or(cfg.PoolSize, cfg.Clients)),
		"ignore_startup_parameters": "extra_float_digits,options",
		"log_connections":           "0", "log_disconnections": "0", "stats_period": "3600",
	}
	if cfg.CertFile != "" {
		settings["client_tls_sslmode"] = "allow"
		settings["client_tls_cert_file"], settings["client_tls_key_file"] = b.file("client.crt"), b.file("client.key")
	}
	if cfg.CAFile != "" {
		settings["server_tls_sslmode"], settings["server_tls_ca_file"] = "verify-full", b.file("ca.crt")
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
	for name, file := range map[string]string{"client.crt": cfg.CertFile, "client.key": cfg.KeyFile, "ca.crt": cfg.CAFile} {
		if err := b.copyFile(file, b.file(name)); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(b.file("users.txt"), []byte(list), 0o644), os.WriteFile(b.file("pgbouncer.ini"), []byte(text), 0o644))
}

// URL is the superuser's connection string to a database, for a user postgres
// without a password.
func (b *PgBouncer) URL(database string) string { return b.url(database, "") }

func (b *PgBouncer) url(database, password string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: b.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	if password != "" {
		u.User = url.UserPassword("postgres", password)
	}
	return u.String()
}
