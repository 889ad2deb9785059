package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/connstring"
)

// Target is the wanted role of servers: libpq's target_session_attrs.
type Target string

// The targets.
const (
	Any           Target = "any"
	ReadWrite     Target = "read-write"
	ReadOnly      Target = "read-only"
	Primary       Target = "primary"
	Standby       Target = "standby"
	PreferStandby Target = "prefer-standby"
)

// Role is a server's role, by the settings that it reports to each session (documentation,
// "ParameterStatus"): in_hot_standby and default_transaction_read_only. The zero value is
// unknown.
type Role struct {
	Known           bool
	Standby         bool
	ReadOnly        bool // sessions begin read-only, as on every standby
	readOnlyUnknown bool // ReadOnly is known of another user's or database's sessions only
}

// Report records a ParameterStatus.
func (r *Role) Report(name, value string) {
	switch name {
	case "in_hot_standby":
		r.Known, r.Standby = true, value == "on"
	case "default_transaction_read_only":
		r.Known, r.ReadOnly = true, value == "on"
	}
}

// Admits reports whether a session may use a server of this role. An unknown role is
// admitted: a pooler may not report these settings.
func (t Target) Admits(r Role) bool {
	if !r.Known {
		return true
	}
	switch t {
	case ReadWrite:
		return !r.Standby && !r.ReadOnly
	case ReadOnly:
		return r.Standby || r.ReadOnly || r.readOnlyUnknown
	case Primary:
		return !r.Standby
	case Standby, PreferStandby:
		return r.Standby
	}
	return true
}

func (r Role) String() string {
	switch {
	case !r.Known:
		return "unknown"
	case r.Standby:
		return "standby"
	case r.ReadOnly:
		return "read-only"
	}
	return "primary"
}

// Learn records the role that a session has found. key is the session's startup packet:
// whether sessions begin read-only depends on the user, the database and the options, so
// ReadOnly holds only for sessions with the same key.
func (h *Host) Learn(r Role, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.role, h.roleKey, h.probeErr, h.learnedAt = r, key, nil, time.Now()
}

// roleFor returns the role for sessions with this key. The caller holds h.mu.
func (h *Host) roleFor(key string) Role {
	role := h.role
	if h.roleKey != "" && h.roleKey != key {
		role.ReadOnly, role.readOnlyUnknown = false, true
	}
	return role
}

// mismatches reports whether the last known role, of any age, isn't the wanted one.
func (h *Host) mismatches(target Target, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !target.Admits(h.roleFor(key))
}

// A role counts as known for roleLifetime, so the proxy notices a promotion within that
// time. Without probes, and if another role is acceptable, it counts for longer: otherwise
// a client would be refused again after each roleLifetime.
const (
	roleLifetime         = time.Second
	roleLifetimeUnprobed = time.Minute
)

func (u *Upstream) maxRoleAge() time.Duration {
	if u.probe == nil && u.Target == PreferStandby {
		return roleLifetimeUnprobed
	}
	return roleLifetime
}

// Role returns the host's role. It probes the server if the role isn't known or too old.
// Without probes it is the role that the last session found, see Learn. An error is a
// *RoleError, or ctx's.
func (u *Upstream) Role(ctx context.Context, h *Host, key string) (Role, error) {
	for {
		h.mu.Lock()
		role, failure, fresh, asking := h.roleFor(key), h.probeErr, time.Since(h.learnedAt) < u.maxRoleAge(), h.probing
		if u.probe != nil && !fresh && asking == nil {
			h.probing = make(chan struct{})
		}
		h.mu.Unlock()
		switch {
		case u.probe == nil && !fresh:
			return Role{}, nil
		case u.probe == nil || fresh:
			return role, failure
		case asking == nil:
			return u.probeRole(ctx, h)
		}
		// A probe is under way: hundreds of clients that reconnect after a failover
		// share one.
		select {
		case <-asking:
		case <-ctx.Done():
			return Role{}, ctx.Err()
		}
	}
}

// RoleError is the error of a probe. Its text names the proxy's own user and database,
// which clients must not see.
type RoleError struct {
	Host *Host
	Err  error
}

func (e *RoleError) Error() string {
	return fmt.Sprintf("%s: asking for the server's role: %s", e.Host, e.Err)
}
func (e *RoleError) Unwrap() error { return e.Err }

// probeRole asks the server for its role, by one route after the other, for all callers that
// wait for h.probing. If this caller's ctx ends, that says nothing about the server: then
// the next waiting caller probes.
func (u *Upstream) probeRole(ctx context.Context, h *Host) (role Role, err error) {
	err = errors.New("the probe panicked")
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		close(h.probing)
		h.probing = nil
		if err == nil || !expired(ctx) {
			h.role, h.roleKey, h.probeErr, h.learnedAt = role, "", err, time.Now()
		}
	}()
	var failures []error
	for _, r := range u.routesTo(h) {
		role, err := u.probeRoute(ctx, r)
		if err == nil {
			return role, nil
		}
		failures = append(failures, err)
		if down := (*UnreachableError)(nil); errors.As(err, &down) || expired(ctx) {
			break
		}
	}
	return Role{}, &RoleError{h, errors.Join(failures...)}
}

func (u *Upstream) probeRoute(ctx context.Context, r Route) (Role, error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	return u.probe.role(ctx, func(ctx context.Context) (net.Conn, error) { return u.Dial(ctx, r) })
}

// expired reports whether ctx has ended or its deadline is over: a socket may notice the
// deadline before ctx does.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// probe asks servers for their role and timeline by logging in.
type probe struct{ url string }

func newProbe(url string) (*probe, error) {
	p := &probe{url}
	_, err := p.config()
	return p, err
}

// config reads the connection string anew: the files that it names may have changed.
func (p *probe) config() (*pgconn.Config, error) {
	cfg, err := connstring.Conn(p.url)
	if err != nil {
		return nil, err
	}
	c := &cfg.Config
	c.Fallbacks, c.TLSConfig, c.ValidateConnect = nil, nil, nil
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "wirefence"
	}
	return c, nil
}

func (p *probe) connect(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*pgconn.PgConn, error) {
	c, err := p.config()
	if err != nil {
		return nil, err
	}
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	return pgconn.ConnectConfig(ctx, c)
}

func (p *probe) role(ctx context.Context, dial func(context.Context) (net.Conn, error)) (Role, error) {
	conn, err := p.connect(ctx, dial)
	if err != nil {
		return Role{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var role Role
	for _, name := range []string{"in_hot_standby", "default_transaction_read_only"} {
		if value := conn.ParameterStatus(name); value != "" {
			role.Report(name, value)
		}
	}
	return role, nil
}
