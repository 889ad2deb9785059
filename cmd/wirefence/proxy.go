package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/proxy"
)

type proxySettings struct {
	CheckConfig bool `env:"--check-config" help:"read all settings and the files that they name, print the settings in effect without passwords, and end: neither listen nor connect"`
	OutputSettings
	LeaseSettings
	Listen                   []string      `env:"WIREFENCE_LISTEN" group:"Connections" type:"address,..." envDefault:"127.0.0.1:6433" help:"addresses to accept clients at, separated by commas: host:port, unix:/dir/.s.PGSQL.6433, unix:@name, or fd:NAME for a socket that systemd passes"`
	Upstream                 string        `env:"WIREFENCE_UPSTREAM" group:"Connections" type:"url" file:"yes" help:"PostgreSQL servers, tried in order: postgres://host1,host2/?sslmode=verify-full (required)"`
	DatabaseURL              string        `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"yes" help:"connection string of the proxy's own role, to verify the schema, to query users' secrets and servers' roles, and to seal leases"`
	TLSCert                  string        `env:"WIREFENCE_TLS_CERT_FILE" group:"TLS and authentication" help:"certificate with its chain, in PEM form, for TLS with clients; reloaded when it changes"`
	TLSKey                   string        `env:"WIREFENCE_TLS_KEY_FILE" group:"TLS and authentication" help:"the certificate's key, in PEM form"`
	TLSMode                  string        `env:"WIREFENCE_TLS_MODE" group:"TLS and authentication" oneof:"allow|require" help:"allow (with a certificate, the default), or require (the default if clients must show one): TCP clients without TLS get 28000"`
	TLSMinVersion            string        `env:"WIREFENCE_TLS_MIN_VERSION" group:"TLS and authentication" oneof:"1.2|1.3" help:"oldest TLS version for clients: 1.2 (with a certificate, the default) or 1.3"`
	TLSClientCA              string        `env:"WIREFENCE_TLS_CLIENT_CA_FILE" group:"TLS and authentication" help:"authorities of clients' certificates, in PEM form; by default the proxy asks for no certificate"`
	TLSClientCert            string        `env:"WIREFENCE_TLS_CLIENT_CERT" group:"TLS and authentication" oneof:"optional|verify-ca|verify-full" help:"optional, verify-ca (with a CA, the default), or verify-full: its common name must be the user"`
	AuthFile                 string        `env:"WIREFENCE_AUTH_FILE" group:"TLS and authentication" help:"user file in PgBouncer's format: the proxy authenticates clients with SCRAM itself; by default servers do"`
	AuthQuery                string        `env:"WIREFENCE_AUTH_QUERY" group:"TLS and authentication" type:"sql" help:"SQL query for the name and the SCRAM secret of the user $1, run at WIREFENCE_DATABASE_URL for users that are not in the file"`
	Mode                     string        `env:"WIREFENCE_MODE" group:"Fencing" oneof:"enforce|shadow|off" envDefault:"enforce" help:"enforce; shadow counts and logs what it would refuse; off forwards everything untouched"`
	UnfencedWrites           string        `env:"WIREFENCE_UNFENCED_WRITES" group:"Fencing" oneof:"allow|reject" envDefault:"allow" help:"allow; reject refuses a write without a fence with WF002"`
	Resource                 string        `env:"WIREFENCE_RESOURCE" group:"Fencing" type:"resource" help:"the resource that a bare token means"`
	Lease                    string        `env:"WIREFENCE_LEASE" group:"Leases" type:"resource" help:"the resource whose lease this proxy holds, or waits for: statements without a fence run under the lease's fence, and writes get WF007 while it isn't held"`
	Standby                  string        `env:"WIREFENCE_STANDBY" group:"Leases" oneof:"read-only|refuse|wait" envDefault:"read-only" help:"without the lease: read-only; refuse clients with 57P03; or let them wait"`
	StandbyWait              time.Duration `env:"WIREFENCE_STANDBY_WAIT" group:"Leases" envDefault:"30s" range:"1ms.." help:"time that a client waits for the lease before it gets 57P03; part of the startup timeout"`
	AdminListen              string        `env:"WIREFENCE_ADMIN_LISTEN" group:"Connections" type:"address" envDefault:"127.0.0.1:9433" help:"address of /livez, /readyz, /metrics and the HTTP API of leases, /v1; fd:NAME for a socket that systemd passes; off for none"`
	APIListen                []string      `env:"WIREFENCE_API_LISTEN" group:"Connections" type:"address,..." help:"addresses of the HTTP API for applications, separated by commas: host:port, unix:/dir/api.sock, or unix:@name; they serve leases but no operators' requests, with the tokens and the certificate of the admin listener; off for none"`
	AdminTokenFile           string        `env:"WIREFENCE_ADMIN_TOKEN_FILE" group:"TLS and authentication" help:"file with the bearer tokens of /v1, each line a name, a scope (read, lease or operate) and a token; reloaded when it changes. Without it, /v1 is served at loopback addresses only, with the scope lease"`
	AdminTLSCert             string        `env:"WIREFENCE_ADMIN_TLS_CERT_FILE" group:"TLS and authentication" help:"certificate with its chain, in PEM form, for TLS on the admin listener; reloaded when it changes"`
	AdminTLSKey              string        `env:"WIREFENCE_ADMIN_TLS_KEY_FILE" group:"TLS and authentication" help:"the certificate's key, in PEM form"`
	ReusePort                bool          `env:"WIREFENCE_REUSE_PORT" group:"Connections" envDefault:"false" help:"let a new process with the same setting listen at the same addresses and take over"`
	TCPKeepalive             time.Duration `env:"WIREFENCE_TCP_KEEPALIVE" group:"Limits and timeouts" envDefault:"60s" range:"0|1s.." help:"idle time after which the system probes the other end of a connection, on both sides; 0 for never"`
	TCPUserTimeout           time.Duration `env:"WIREFENCE_TCP_USER_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0|1ms.." help:"time that sent bytes may stay unacknowledged before a connection ends; 0 for the system's default"`
	MaxConnections           int           `env:"WIREFENCE_MAX_CONNECTIONS" group:"Limits and timeouts" envDefault:"1000" range:"1.." help:"clients served at once; more get 53300"`
	MaxUserConnections       int           `env:"WIREFENCE_MAX_USER_CONNECTIONS" group:"Limits and timeouts" envDefault:"0" range:"0.." help:"clients of one user served at once; more get 53300; 0 for no limit per user"`
	MaxAddressLogins         int           `env:"WIREFENCE_MAX_ADDRESS_LOGINS" group:"Limits and timeouts" envDefault:"0" range:"0.." help:"connections from one IPv4 address or IPv6 /64 that have not logged in; beyond, the oldest silent one gets 53300; 0 for half of the clients served at once, at least 100"`
	MaxHTTPConnections       int           `env:"WIREFENCE_MAX_HTTP_CONNECTIONS" group:"Limits and timeouts" envDefault:"1000" range:"1.." help:"connections served at once by the admin listener, and by each address of the API listener; beyond, the one that has been without a request for longest is closed"`
	IdleTimeout              time.Duration `env:"WIREFENCE_IDLE_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that a session may be idle outside of a transaction; 0 for ever"`
	IdleInTransactionTimeout time.Duration `env:"WIREFENCE_IDLE_IN_TRANSACTION_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that the server may wait for the client in a transaction; 0 for ever"`
	TransactionTimeout       time.Duration `env:"WIREFENCE_TRANSACTION_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that a transaction may take; 0 for ever"`
	StartupTimeout           time.Duration `env:"WIREFENCE_STARTUP_TIMEOUT" group:"Limits and timeouts" envDefault:"60s" range:"1ms.." help:"time from accepting a client to the end of its login"`
	ConnectTimeout           time.Duration `env:"WIREFENCE_CONNECT_TIMEOUT" group:"Limits and timeouts" envDefault:"5s" range:"1ms.." help:"time to reach one upstream host"`
	Hold                     time.Duration `env:"WIREFENCE_HOLD" group:"Fencing" envDefault:"50ms" range:"0..10s" help:"time that a busy session keeps the locks of its fence when the proxy can't learn whether a takeover wants them, at most 10s; otherwise it keeps them until one does. 0 checks every transaction, and refuses with WF006 the commands that can't run behind a check"`
	MaxStatement             int           `env:"WIREFENCE_MAX_STATEMENT" group:"Limits and timeouts" type:"bytes" envDefault:"16777216" range:"1024.." help:"largest statement that is scanned, in bytes; a larger one is refused under a fence, and otherwise passes unless something in it could be a fence"`
	DrainGrace               time.Duration `env:"WIREFENCE_DRAIN_GRACE" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time after SIGTERM in which new clients are still served"`
	DrainTimeout             time.Duration `env:"WIREFENCE_DRAIN_TIMEOUT" group:"Limits and timeouts" envDefault:"30s" range:"1ms.." help:"time that transactions have to end after SIGTERM"`
	History                  bool          `env:"WIREFENCE_HISTORY" group:"Observability" envDefault:"true" help:"record refusals in the history that the database keeps, with WIREFENCE_DATABASE_URL"`
	MetricsResources         int           `env:"WIREFENCE_METRICS_RESOURCES" group:"Observability" envDefault:"100" range:"0.." help:"number of resources with a label value of their own in metrics; the others are other"`
	DoctorInterval           time.Duration `env:"WIREFENCE_DOCTOR_INTERVAL" group:"Observability" envDefault:"0s" range:"0|1s.." help:"interval of examinations like wirefence doctor's, for the metric wirefence_doctor_grade; 0: never"`
	LogLevel                 string        `env:"WIREFENCE_LOG_LEVEL" group:"Observability" type:"debug|info|warn|error" envDefault:"info" help:"debug, info, warn or error"`
	LogFormat                string        `env:"WIREFENCE_LOG_FORMAT" group:"Observability" type:"text|json|auto" envDefault:"auto" help:"text, json, or auto: text on a terminal, otherwise JSON"`
}

func proxyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "proxy",
		Short: "Run the proxy",
		Long: `Accepts PostgreSQL clients, connects each to the upstream with its own
credentials, and has the fences of their writes checked by the database, in
their own transactions.

SIGTERM or SIGINT drains it: sessions end with their transactions, and the lease of
WIREFENCE_LEASE is released. A second one ends it at once. SIGHUP reloads what can be
reloaded.

With --check-config it reads the settings and the files that they name, and prints
all errors, one on each line.

Exit status:

    0    it has drained; with --check-config, the settings are good
    1    it could not start to serve, or failed while it served
    2    the command line, the environment or a file that they name is wrong
    130  a second SIGINT ended it at once
    143  a second SIGTERM did`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			signals := catchSignals()
			defer signals.stop()
			cfg, faults := readAll[proxySettings](c)
			if err := checkVariables(c.Root(), os.Environ()); cfg.CheckConfig && err != nil {
				faults = append(faults, fault{"", err})
			}
			return runProxy(c.Context(), cfg, faults, signals, c.OutOrStdout())
		},
	}
	settings[proxySettings](c)
	return c
}

// runProxy runs the proxy, or returns all faults of the settings, those among them that
// could not be read.
func runProxy(ctx context.Context, cfg proxySettings, unread []fault, signals *signals, stdout io.Writer) error {
	log, err := newLogger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		log = slog.New(slog.DiscardHandler)
	}
	invalid := errors.Join(err, cfg.validate())
	sockets, err := passedSockets()
	if err != nil {
		return err
	}
	usable := cfg.withoutInvalidURLs()
	usable.CheckConfig = cfg.CheckConfig || invalid != nil || len(unread) > 0 // then nothing is pushed
	d, err := newDaemon(ctx, usable, sockets, log)
	defer d.end()
	if err := allFaults(unread, invalid, err); err != nil {
		return usageError{err}
	}
	if cfg.CheckConfig {
		return cfg.printSettings(stdout)
	}
	warnOfUnused(sockets, cfg, log)
	return d.serve(ctx, signals)
}

// serverOptions are the options that settings alone decide.
func (cfg proxySettings) serverOptions() proxy.Options {
	return proxy.Options{
		Listen: cfg.Listen, Upstream: cfg.Upstream, DatabaseURL: cfg.DatabaseURL,
		TLS: proxy.TLS{
			CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey, Mode: proxy.TLSMode(cfg.TLSMode), MinVersion: cfg.TLSMinVersion,
			ClientCAFile: cfg.TLSClientCA, ClientCert: proxy.ClientCert(cfg.TLSClientCert),
		},
		AuthFile: cfg.AuthFile, AuthQuery: cfg.AuthQuery, Mode: proxy.Mode(cfg.Mode),
		UnfencedWrites: proxy.UnfencedWrites(cfg.UnfencedWrites), Resource: cfg.Resource,
		ReusePort: cfg.ReusePort, TCPKeepalive: cmp.Or(cfg.TCPKeepalive, -1), TCPUserTimeout: cfg.TCPUserTimeout,
		MaxUserConnections: cfg.MaxUserConnections, MaxAddressLogins: cfg.MaxAddressLogins, IdleTimeout: cfg.IdleTimeout,
		IdleInTransactionTimeout: cfg.IdleInTransactionTimeout, TransactionTimeout: cfg.TransactionTimeout,
		Standby: proxy.Standby(cfg.Standby), StandbyWait: cfg.StandbyWait,
		MaxConnections: cfg.MaxConnections, StartupTimeout: cfg.StartupTimeout, ConnectTimeout: cfg.ConnectTimeout,
		Hold: cmp.Or(cfg.Hold, -1), MaxStatement: cfg.MaxStatement, DrainGrace: cfg.DrainGrace, DrainTimeout: cfg.DrainTimeout,
		Timelines: see,
	}
}

func addrs(all []net.Addr) []string {
	var names []string
	for _, a := range all {
		names = append(names, a.String())
	}
	return names
}

// speakUTF8 has the server send and take texts as Go has them, whatever the database's
// encoding is.
func speakUTF8(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["client_encoding"] == "" {
		cfg.RuntimeParams["client_encoding"] = "UTF8"
	}
}

// nameSession lets the history, and what is recorded of changes, say who it was, where
// the connection string doesn't: operators share the issuer's role.
func nameSession(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["application_name"] != "" {
		return
	}
	name := "wirefence"
	if who, err := user.Current(); err == nil {
		name += "/" + who.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	cfg.RuntimeParams["application_name"] = name
}

// connect opens the issuer's own connection.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	if url == "" {
		return nil, usageError{errNoDatabase}
	}
	return connectBy(ctx, "WIREFENCE_DATABASE_URL", url)
}

var errNoDatabase = errors.New("WIREFENCE_DATABASE_URL is not set (--database-url): it is the connection string of the issuer's role, as in postgres://issuer@db.internal/app")

// connectBy connects with what a setting names.
func connectBy(ctx context.Context, setting, url string) (*pgx.Conn, error) {
	cfg, err := connstring.Conn(url)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", setting, err)}
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A pooler may stand before the database: nothing is prepared by name.
		cfg.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	}
	nameSession(cfg)
	speakUTF8(cfg)
	return pgx.ConnectConfig(ctx, cfg)
}
