package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy"
)

type proxySettings struct {
	CheckConfig bool `env:"--check-config" help:"read all settings and the files that they name, print the settings in effect without passwords, or all errors, and end: neither listen nor connect"`
	OutputSettings
	LeaseSettings
	LeaseOf string `env:"WIREFENCE_LEASE" group:"Leases" type:"resource" help:"the resource whose [lease this proxy holds](sidecar.md), or waits for: statements without a fence run under the lease's fence, and writes get ~WF007~ while it isn't held. Needs ~WIREFENCE_DATABASE_URL~"`
	AdoptSettings
	TLS TLSSettings
	ServerSettings
	PasswordSettings
	WitnessURL         string        `env:"WIREFENCE_WITNESS" group:"Fencing" type:"url" file:"yes" help:"[who says which server leads](../failover.md#a-witness): ~patroni://host1:8008,host2:8008?bound=10s~, ~etcd://host1,host2/service/SCOPE/leader~, ~kubernetes://NAMESPACE/LEASE~ or ~cloudnativepg://NAMESPACE/CLUSTER~. Sessions with a fence end on a server that it has not confirmed as the leader within the bound"`
	AdminListen        string        `env:"WIREFENCE_ADMIN_LISTEN" group:"Connections" type:"address" envDefault:"127.0.0.1:9433" help:"address of ~/livez~, ~/readyz~, ~/metrics~, and [leases over HTTP](api.md) at ~/v1~; ~fd:NAME~ for a socket that systemd passes; ~off~ for none"`
	APIListen          []string      `env:"WIREFENCE_API_LISTEN" group:"Connections" type:"address,..." help:"addresses of a [listener for applications](api.md#a-listener-for-applications), separated by commas: ~host:port~, ~unix:/dir/api.sock~, ~unix:@name~, ~fd:NAME~. It serves leases but no operators' requests"`
	AdminTokenFile     string        `env:"WIREFENCE_ADMIN_TOKEN_FILE" group:"TLS and authentication" help:"file with the [tokens](api.md#the-token-file) for ~/v1~, reloaded when it changes. Without it, ~/v1~ is served at loopback addresses [only](../howto/tls.md#the-admin-listener)"`
	AdminTLSCert       string        `env:"WIREFENCE_ADMIN_TLS_CERT_FILE" group:"TLS and authentication" help:"certificate with its chain, in PEM form. With it, the [admin listener](../howto/tls.md#the-admin-listener) accepts only TLS 1.2 and later. Reloaded when it changes"`
	AdminTLSKey        string        `env:"WIREFENCE_ADMIN_TLS_KEY_FILE" group:"TLS and authentication" help:"the certificate's key, in PEM form"`
	MaxHTTPConnections int           `env:"WIREFENCE_MAX_HTTP_CONNECTIONS" group:"Limits and timeouts" envDefault:"1000" range:"1.." help:"connections served at once by the admin listener, and by each address of ~WIREFENCE_API_LISTEN~; beyond, [the longest idle one is closed](api.md#limits-of-connections)"`
	History            bool          `env:"WIREFENCE_HISTORY" group:"Observability" envDefault:"true" help:"record refusals in the database's [history](history.md); needs ~WIREFENCE_DATABASE_URL~"`
	MetricsResources   int           `env:"WIREFENCE_METRICS_RESOURCES" group:"Observability" envDefault:"100" range:"0.." help:"number of resources that have a [label value](metrics.md#the-label-resource) of their own in metrics; the others are ~other~"`
	DoctorInterval     time.Duration `env:"WIREFENCE_DOCTOR_INTERVAL" group:"Observability" envDefault:"0s" range:"0|1s.." help:"interval at which the proxy runs the examination of [wirefence doctor](doctor.md), for the metric [wirefence_doctor_grade](metrics.md#the-doctor) and a log line when the grade changes. ~15m~ in one proxy of a database is enough. ~0~: never"`
	ForgetAfter        time.Duration `env:"WIREFENCE_FORGET_AFTER" group:"Leases" envDefault:"0s" range:"0|1h.." help:"age of the last grant from which on the proxy [removes the rows](#rows-of-resources) of unused resources, each day, as in ~720h~; needs ~WIREFENCE_DATABASE_URL~. ~0~: never"`
	LogLevel           string        `env:"WIREFENCE_LOG_LEVEL" group:"Observability" type:"debug|info|warn|error" envDefault:"info" help:"~debug~, ~info~, ~warn~ or ~error~"`
	LogFormat          string        `env:"WIREFENCE_LOG_FORMAT" group:"Observability" type:"text|json|auto" envDefault:"auto" help:"~text~, ~json~, or ~auto~: text on a terminal, otherwise JSON"`
}

// ServerSettings are proxy.Options, to which they convert: an option that has no place here doesn't
// compile. Those without tags are no settings, and set elsewhere.
type ServerSettings struct {
	Listen                   []string `env:"WIREFENCE_LISTEN" group:"Connections" type:"address,..." envDefault:"127.0.0.1:6433" help:"addresses for clients, separated by commas: ~host:port~, ~unix:/dir/.s.PGSQL.6433~, ~unix:@name~ for an abstract socket of Linux, or ~fd:NAME~ for a socket that [systemd passes](../running.md#restarting-under-systemd)"`
	Sockets                  map[string][]net.Listener
	ReusePort                bool          `env:"WIREFENCE_REUSE_PORT" group:"Connections" envDefault:"false" help:"~true~: a new process may listen at the same addresses and [take over](../running.md#replacing-a-process). Linux only"`
	TCPKeepalive             time.Duration `env:"WIREFENCE_TCP_KEEPALIVE" group:"Limits and timeouts" envDefault:"60s" range:"0|1s..9h" help:"idle time after which the system probes a connection of either side; a dead peer is noticed after twice the time. ~0~ sends no probes"`
	TCPUserTimeout           time.Duration `env:"WIREFENCE_TCP_USER_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0|1ms..596h" help:"time that sent bytes may stay unacknowledged; ~0~: the system's default, about 15 minutes. Above ~0~ it also ends connections whose peer is alive but reads nothing for that time. Linux only"`
	Upstream                 string        `env:"WIREFENCE_UPSTREAM" group:"Connections" type:"url" file:"yes" help:"PostgreSQL servers, tried in order, in libpq's syntax: ~postgres://host1,host2/?sslmode=verify-full~. Without user and password, which clients send ([parameters](#the-upstream)) (required)"`
	DatabaseURL              string        `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of [the proxy's own role](#the-proxys-own-connection), to verify the schema, to ask for takeovers, and to seal leases"`
	TLS                      proxy.TLS
	AuthFile                 string               `env:"WIREFENCE_AUTH_FILE" group:"TLS and authentication" help:"user file in PgBouncer's format: the proxy authenticates clients by SCRAM-SHA-256 itself ([more](../howto/tls.md#passwords-and-channel-binding)); by default servers do"`
	AuthQuery                string               `env:"WIREFENCE_AUTH_QUERY" group:"TLS and authentication" type:"sql" help:"SQL query that gets a user's name as ~$1~ and returns the name and the SCRAM secret, run at ~WIREFENCE_DATABASE_URL~ for users that aren't in the file"`
	Mode                     proxy.Mode           `env:"WIREFENCE_MODE" group:"Fencing" oneof:"enforce|shadow|off" envDefault:"enforce" help:"~enforce~; ~shadow~ counts and logs what it would refuse; ~off~ forwards everything"`
	UnfencedWrites           proxy.UnfencedWrites `env:"WIREFENCE_UNFENCED_WRITES" group:"Fencing" oneof:"allow|reject" envDefault:"allow" help:"~allow~; ~reject~: a transaction without a fence is ~READ ONLY~, and a write in it gets ~WF002~"`
	Resource                 string               `env:"WIREFENCE_RESOURCE" group:"Fencing" type:"resource" help:"the resource that a bare token means"`
	Lease                    proxy.Lease
	Guarded                  func() string
	Locks                    func(pid uint32, database string) proxy.SessionLocks
	Rows                     proxy.RowLocks
	Standby                  proxy.Standby `env:"WIREFENCE_STANDBY" group:"Leases" oneof:"read-only|refuse|wait" envDefault:"read-only" help:"without the lease: ~read-only~; ~refuse~: clients get ~57P03~; ~wait~: they wait for it"`
	StandbyWait              time.Duration `env:"WIREFENCE_STANDBY_WAIT" group:"Leases" envDefault:"30s" range:"1ms.." help:"time that clients wait for the lease, then ~57P03~; less than ~WIREFENCE_STARTUP_TIMEOUT~, which includes it"`
	MaxConnections           int           `env:"WIREFENCE_MAX_CONNECTIONS" group:"Limits and timeouts" envDefault:"1000" range:"1.." help:"clients served at once; others get ~53300~. Each needs two file descriptors"`
	MaxUserConnections       int           `env:"WIREFENCE_MAX_USER_CONNECTIONS" group:"Limits and timeouts" envDefault:"0" range:"0.." help:"clients of one user served at once; more get ~53300~. ~0~: no limit"`
	MaxAddressLogins         int           `env:"WIREFENCE_MAX_ADDRESS_LOGINS" group:"Limits and timeouts" envDefault:"0" range:"0.." help:"connections from one IPv4 address, or one IPv6 /64, whose clients have not logged in yet ([more](../running.md#clients-that-do-not-log-in)); beyond, the oldest silent one gets ~53300~. ~0~: half of ~WIREFENCE_MAX_CONNECTIONS~, at least 100"`
	IdleTimeout              time.Duration `env:"WIREFENCE_IDLE_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that a session may be idle outside of a transaction before it ends with ~57P05~. ~0~: no limit. This timeout and the next two may be late by an eighth, at most by a second"`
	IdleInTransactionTimeout time.Duration `env:"WIREFENCE_IDLE_IN_TRANSACTION_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that the server may wait for the client in a transaction or an open pipeline before the session ends with ~25P03~. ~0~: no limit"`
	TransactionTimeout       time.Duration `env:"WIREFENCE_TRANSACTION_TIMEOUT" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time that a transaction may take, also one of a single statement, before the session ends with ~25P04~. ~0~: no limit. Not for replication streams"`
	StartupTimeout           time.Duration `env:"WIREFENCE_STARTUP_TIMEOUT" group:"Limits and timeouts" envDefault:"60s" range:"1ms.." help:"time from accepting a client to the end of its login, which otherwise fails with ~57014~"`
	ConnectTimeout           time.Duration `env:"WIREFENCE_CONNECT_TIMEOUT" group:"Limits and timeouts" envDefault:"5s" range:"1ms.." help:"time to reach one upstream host"`
	Hold                     time.Duration `env:"WIREFENCE_HOLD" group:"Fencing" envDefault:"50ms" range:"0..10s" help:"time that a busy session keeps the lock of its fence after the last proof that no takeover wants it ([more](#the-time-of-a-hold)). It affects speed and the wait of a takeover, never safety. ~0~ checks every transaction instead, and refuses with ~WF006~ the commands that [can't run behind a check](protocol.md#what-a-client-with-a-fence-sees-that-differs)"`
	MaxStatement             int           `env:"WIREFENCE_MAX_STATEMENT" group:"Limits and timeouts" type:"bytes" envDefault:"16777216" range:"1024.." help:"largest statement in bytes that the proxy scans. A larger one gets ~WF006~ in a session with a fence; in another it is forwarded in parts, and the connection is cut if one of them could be a fence"`
	DrainGrace               time.Duration `env:"WIREFENCE_DRAIN_GRACE" group:"Limits and timeouts" envDefault:"0s" range:"0.." help:"time after ~SIGTERM~ in which new clients are still served"`
	DrainTimeout             time.Duration `env:"WIREFENCE_DRAIN_TIMEOUT" group:"Limits and timeouts" envDefault:"30s" range:"1ms.." help:"time that transactions have to end after ~SIGTERM~"`
	Witness                  proxy.Witness
	WitnessBound             time.Duration
	Refusals                 proxy.Refusals
	Timelines                func(system string, timeline uint32)
	Ready                    func() error
	Logger                   *slog.Logger
	Registerer               prometheus.Registerer
	ResourceLabel            func(fence.Resource) string
	Tracer                   trace.Tracer
}

// TLSSettings are proxy.TLS, to which they convert.
type TLSSettings struct {
	CertFile     string           `env:"WIREFENCE_TLS_CERT_FILE" group:"TLS and authentication" help:"certificate with its chain, in PEM form. With it, clients may use TLS. Reloaded when it changes"`
	KeyFile      string           `env:"WIREFENCE_TLS_KEY_FILE" group:"TLS and authentication" help:"the certificate's key, in PEM form"`
	Mode         proxy.TLSMode    `env:"WIREFENCE_TLS_MODE" group:"TLS and authentication" oneof:"allow|require" help:"~allow~ (with a certificate, the default): clients may use TLS; ~require~ (the default and the only mode if clients must show certificates): TCP clients without TLS get ~28000~"`
	MinVersion   string           `env:"WIREFENCE_TLS_MIN_VERSION" group:"TLS and authentication" oneof:"1.2|1.3" help:"oldest TLS version for clients: ~1.2~ (with a certificate, the default) or ~1.3~"`
	ClientCAFile string           `env:"WIREFENCE_TLS_CLIENT_CA_FILE" group:"TLS and authentication" help:"authorities of clients' certificates, in PEM form"`
	ClientCert   proxy.ClientCert `env:"WIREFENCE_TLS_CLIENT_CERT" group:"TLS and authentication" oneof:"optional|verify-ca|verify-full" help:"~verify-ca~ (with a CA, the default): clients must show a valid certificate; ~verify-full~: its common name must also be the user; ~optional~: clients may show none, but not an invalid one"`
}

func proxyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "proxy",
		Short: "Run the proxy",
		Long: `Accepts PostgreSQL clients, connects each to the upstream with its own
credentials, and has the database check the fences of their writes.

SIGTERM or SIGINT drains it: sessions end with their transactions, and the lease of
WIREFENCE_LEASE is released. A second one ends it at once. SIGHUP reloads what can be
reloaded.

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

// serverOptions are the options that settings alone decide. A setting of 0 turns off what has another default.
func (cfg proxySettings) serverOptions() proxy.Options {
	o := proxy.Options(cfg.ServerSettings)
	o.TLS, o.Timelines = proxy.TLS(cfg.TLS), see
	o.TCPKeepalive, o.Hold = cmp.Or(o.TCPKeepalive, -1), cmp.Or(o.Hold, -1)
	return o
}

func addrs(all []net.Addr) []string {
	var names []string
	for _, a := range all {
		names = append(names, a.String())
	}
	return names
}
