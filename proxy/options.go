// Package proxy is the fencing proxy: it accepts PostgreSQL clients, connects each to a
// PostgreSQL server, and makes the server check the fences of their statements. This
// package has the sockets, timers and goroutines. internal/session, which does no I/O,
// decides which bytes go to which side.
package proxy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// Mode says what the proxy does with a verdict.
type Mode string

// The modes.
const (
	Enforce Mode = "enforce" // refuse what a check refuses
	Shadow  Mode = "shadow"  // count and log what would be refused
	Off     Mode = "off"     // forward everything untouched
)

// UnfencedWrites says whether a write may carry no fence.
type UnfencedWrites string

// The policies for unfenced writes.
const (
	Allow  UnfencedWrites = "allow"
	Reject UnfencedWrites = "reject" // WF002
)

// Options configure a Server. The zero value of a field means its default.
type Options struct {
	// Listen are the addresses to accept clients at: host:port,
	// unix:/path/of/the/socket, unix:@name for an abstract socket of Linux, or
	// fd:NAME for Sockets. Default 127.0.0.1:6433.
	Listen []string
	// Sockets are listening sockets that another process has opened and passed to this
	// one, by name, as systemd does. Between the drain of one server and the start of the
	// next their clients wait instead of being refused. The server closes those that
	// Listen or ListenAdmin names.
	Sockets map[string][]net.Listener
	// ReusePort lets a new process listen at the addresses of an old one that was
	// given the same option, and take over from it: once the old one drains, all
	// new clients come to the new one. Linux only.
	ReusePort bool
	// TCPKeepalive is how long a connection of either side may be quiet before the
	// system probes whether the other end is still there; a dead one is noticed
	// after twice that time. Default 60s, at least 1s; negative for no probes.
	TCPKeepalive time.Duration
	// TCPUserTimeout is how long sent bytes may stay unacknowledged, or a peer's receive
	// window closed, before the system closes a connection of either side. Default: the
	// system's, about 15 minutes on Linux. Linux only.
	TCPUserTimeout time.Duration
	// Upstream are the servers to connect to, in the terms of libpq:
	// postgres://host1:5432,host2:5432/?sslmode=verify-full&sslrootcert=ca.pem.
	// Required. Hosts are tried in order. Of a connection pooler pooling=session says that
	// a client keeps its server connection until it disconnects, pooling=transaction that
	// it doesn't; by default each session detects a pooler, and assumes transaction.
	Upstream string
	// DatabaseURL is the connection string of the proxy's own role, for AuthQuery and to
	// look for functions that release advisory locks. With several hosts or a target_session_attrs in Upstream the proxy asks
	// each server for its role with the URL's user, password and database.
	DatabaseURL string
	// TLS configures the encryption of clients' connections. By default there is none.
	TLS TLS
	// AuthFile is a user file in PgBouncer's format. With it, or AuthQuery, the proxy
	// authenticates clients by SCRAM-SHA-256 and logs in to servers with their keys. By
	// default servers authenticate clients through the proxy.
	AuthFile string
	// AuthQuery is SQL that takes a user's name as $1 and returns the name and the stored
	// password, as in pg_authid. The proxy runs it by DatabaseURL, for users that AuthFile
	// doesn't have.
	AuthQuery string
	// Mode is Enforce by default.
	Mode Mode
	// UnfencedWrites is Allow by default.
	UnfencedWrites UnfencedWrites
	// Resource is the resource of a bare token. By default a bare token is malformed.
	Resource string
	// Lease is the lease that the proxy holds, or waits for, for its clients. Writes
	// without a fence are checked with the lease's fence, and refused with WF007 while it
	// isn't held. By default there is none.
	Lease Lease
	// Guarded returns the fences of the locks that the proxy's clients hold by themselves, ""
	// for none. Each session, behind a transaction pooler each transaction, has them in
	// wirefence.lease, which guards read; nothing else is checked for them. It must be quick, and
	// safe for concurrent use. By default there are none.
	Guarded func() string
	// Locks follows the advisory locks that a session takes by itself: by the process ID of its
	// server process, and its database. It returns nil if they aren't followed there. It must be
	// quick, and safe for concurrent use. By default none are followed, and behind a transaction
	// pooler never.
	Locks func(pid uint32, database string) SessionLocks
	// Rows follows the locks that sessions take in rows of declared classes. By default none are.
	Rows RowLocks
	// Standby says how clients are served while the Lease isn't held. Default ReadOnly.
	Standby Standby
	// StandbyWait is how long a client waits for the Lease with Standby Wait, before
	// it is refused with 57P03. It counts towards StartupTimeout and must be shorter.
	// Default 30s.
	StandbyWait time.Duration
	// MaxConnections bounds the clients that are served at once; more get 53300.
	// Default 1000.
	MaxConnections int
	// MaxUserConnections bounds the clients of one user that are served at once;
	// more get 53300. A client counts from its startup packet on. By default only
	// MaxConnections counts.
	MaxUserConnections int
	// MaxAddressLogins bounds the connections of one client's address whose clients
	// have not logged in: of an IPv4 address, or of an IPv6 /64. At the limit the proxy
	// closes the oldest one for which it waits, with 53300; if there is none, it refuses
	// the new one. Unix sockets have no address. Default half of MaxConnections, at least
	// 100.
	MaxAddressLogins int
	// IdleTimeout is how long a session may be idle outside of a transaction before
	// it is ended with 57P05. Default: no limit.
	IdleTimeout time.Duration
	// IdleInTransactionTimeout is how long the server may wait for the client in a
	// transaction before the session is ended with 25P03. Default: no limit.
	IdleInTransactionTimeout time.Duration
	// TransactionTimeout is how long a transaction may be open, also one of a single
	// statement, before it is cancelled and the session ended with 25P04. Default: no
	// limit.
	TransactionTimeout time.Duration
	// StartupTimeout bounds the time from accepting a client to the end of its
	// login. Default 60s, as PostgreSQL's authentication_timeout.
	StartupTimeout time.Duration
	// ConnectTimeout bounds connecting to one upstream host. Default 5s.
	ConnectTimeout time.Duration
	// Hold is how long a busy session keeps the locks of its fence after the last proof that
	// no takeover wants them. With DatabaseURL the proxy asks for such proofs, so sessions of
	// that database keep the locks until a takeover comes. It decides cost and latency, never
	// safety. Default 50ms, at most 10s. Above 200ms a takeover may end a session that has
	// just become idle. A negative value checks every transaction instead, and refuses
	// statements that no check can cover with WF006.
	Hold time.Duration
	// MaxStatement is the largest statement in bytes that the proxy reads. It refuses a
	// larger one in a session with a fence. In any other it forwards it in parts, and ends the
	// session at one that could be a fence. Default 16 MiB, at least 1 KiB.
	MaxStatement int
	// DrainGrace is how long Shutdown still accepts clients, since applications reconnect
	// while they shut down. Default 0.
	DrainGrace time.Duration
	// DrainTimeout is how long Shutdown then waits for transactions to end before it
	// closes their connections. Default 30s.
	DrainTimeout time.Duration
	// Witness knows which server leads. With it, a session with a fence ends with 57P01 on a
	// server that the witness hasn't confirmed within WitnessBound, and the client gets no
	// acknowledgment from it any more. Standby servers need no confirmation, and it has no
	// effect in the modes Shadow and Off. Optional.
	Witness Witness
	// WitnessBound is how long a confirmation counts, from when its question was sent.
	// Required with a Witness.
	WitnessBound time.Duration
	// Refusals gets each refusal. Optional.
	Refusals Refusals
	// Timelines gets the system identifier and timeline of each primary, each time the
	// proxy has asked it: every second, with several hosts. It must not block. Optional.
	Timelines func(system string, timeline uint32)
	// Ready returns an error while clients shouldn't connect yet, for a reason outside the
	// server. Optional.
	Ready func() error
	// Logger gets log lines for operators. By default nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics. By default there are none.
	Registerer prometheus.Registerer
	// ResourceLabel returns the value of the label resource for a resource, one of a
	// bounded number; for "" it returns the value that the others share. It must be safe
	// for concurrent use. By default no metric has that label.
	ResourceLabel func(fence.Resource) string
	// Tracer records a span for each check or hold for which a statement waited 10 ms or
	// longer, in the trace of the traceparent in the statement's comment, if that has the
	// flag "sampled". By default there are none.
	Tracer trace.Tracer
}

// Validate sets the defaults, and returns an error for each invalid option, joined by
// errors.Join.
func (o *Options) Validate() error {
	invalid := o.validate()
	_, err := o.newUpstream(func(error) {})
	return errors.Join(invalid, err)
}

func (o *Options) setDefaults() {
	if len(o.Listen) == 0 {
		o.Listen = []string{"127.0.0.1:6433"}
	}
	setDefault(&o.Mode, Enforce)
	setDefault(&o.UnfencedWrites, Allow)
	setDefault(&o.Standby, ReadOnly)
	setDefault(&o.StandbyWait, 30*time.Second)
	setDefault(&o.MaxConnections, 1000)
	setDefault(&o.MaxAddressLogins, max(o.MaxConnections/2, 100))
	setDefault(&o.TCPKeepalive, 60*time.Second)
	setDefault(&o.StartupTimeout, 60*time.Second)
	setDefault(&o.ConnectTimeout, 5*time.Second)
	setDefault(&o.MaxStatement, 16<<20)
	setDefault(&o.Hold, 50*time.Millisecond)
	setDefault(&o.DrainTimeout, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
}

// validate is Validate without the upstream.
func (o *Options) validate() error {
	o.setDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Mode == Enforce || o.Mode == Shadow || o.Mode == Off, "mode %q is none of enforce, shadow, off", o.Mode)
	check(o.UnfencedWrites == Allow || o.UnfencedWrites == Reject, "unfenced writes %q is none of allow, reject", o.UnfencedWrites)
	if o.Resource != "" {
		_, err := fence.ParseResource(o.Resource)
		check(err == nil, "default resource: %w", err)
	}
	for _, each := range []struct {
		name string
		time time.Duration
	}{
		{"startup timeout", o.StartupTimeout}, {"connect timeout", o.ConnectTimeout},
		{"drain timeout", o.DrainTimeout}, {"drain grace", o.DrainGrace}, {"idle timeout", o.IdleTimeout},
		{"idle-in-transaction timeout", o.IdleInTransactionTimeout}, {"transaction timeout", o.TransactionTimeout},
	} {
		check(each.time >= 0, "%s is negative", each.name)
	}
	check(o.MaxConnections >= 1, "the limit of connections is less than 1")
	check(o.MaxUserConnections >= 0, "the limit of a user's connections is negative")
	check(o.Hold <= 10*time.Second, "the hold is longer than 10s, which would delay takeovers")
	check(o.MaxAddressLogins >= 1, "the limit of an address's connections that have not logged in is less than 1")
	check(o.MaxStatement >= 1<<10, "the limit of a statement's size is less than 1 KiB")
	check(o.AuthQuery == "" || o.DatabaseURL != "", "the authentication query has no connection: set WIREFENCE_DATABASE_URL")
	return errors.Join(append(errs, o.checkSockets(), o.checkStandby(), o.checkWitness(), o.TLS.validate())...)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// SessionLocks follows the advisory locks of one session.
type SessionLocks interface {
	// Look is called outside of transactions, behind statements that may have taken or released
	// a lock; their answer waits for its return. An error ends the session with 57P01, which frees
	// its locks.
	Look() error
	// End is called once, when the session is over. A Look that is under way returns soon then.
	End()
}

// RowLocks follows locks in rows. Its methods may be called at the same time.
type RowLocks interface {
	// Names are the rows, as a fence names them. They don't change.
	Names() []string
	// Look is called behind statements that have changed claims of these rows, each a name, and behind a
	// space the transaction if that took the row, which may be open yet; the answer waits for its return. An
	// error ends the session with 57P01.
	Look(claims []string) error
}

func (o *Options) sessionConfig(pooling string) *session.Config {
	modes := map[Mode]session.Mode{Enforce: session.Enforce, Shadow: session.Shadow, Off: session.Off}
	var lease session.Lease
	if o.Lease != nil {
		lease = o.Lease
	}
	var rows []string
	if o.Rows != nil {
		rows = o.Rows.Names()
	}
	poolings := map[string]session.Pooling{"session": session.PoolingSession, "transaction": session.PoolingTransaction}
	return session.NewConfig(session.Config{
		Mode:            modes[o.Mode],
		RequireFence:    o.UnfencedWrites == Reject,
		DefaultResource: fence.Resource(o.Resource),
		Lease:           lease,
		Guarded:         o.Guarded,
		FollowsLocks:    o.Locks != nil,
		FollowsRows:     rows,
		MaxStatement:    o.MaxStatement,
		Pooling:         poolings[pooling],
		Hold:            o.Hold,
		Traces:          o.Tracer != nil,
	})
}
