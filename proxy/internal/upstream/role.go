package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Target is the role of the servers that sessions want: libpq's
// target_session_attrs.
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

func parseTarget(text string) (Target, error) {
	switch t := Target(text); t {
	case "":
		return Any, nil
	case Any, ReadWrite, ReadOnly, Primary, Standby, PreferStandby:
		return t, nil
	}
	return "", fmt.Errorf("the upstream's target_session_attrs %q is none of any, read-write, read-only, primary, standby, prefer-standby", text)
}

// Role is what a server told of itself, by the settings that it reports to each
// session (documentation, "ParameterStatus"): in_hot_standby and
// default_transaction_read_only. The zero value is that of a server that told
// nothing.
type Role struct {
	Known           bool
	Standby         bool
	ReadOnly        bool // sessions begin read-only, as on every standby
	readOnlyUnknown bool // ReadOnly isn't known: others' sessions say nothing of it
}

// Report takes a ParameterStatus in.
func (r *Role) Report(name, value string) {
	switch name {
	case "in_hot_standby":
		r.Known, r.Standby = true, value == "on"
	case "default_transaction_read_only":
		r.Known, r.ReadOnly = true, value == "on"
	}
}

// Admits reports whether a session may stay at a server of this role. A server
// that told nothing (a pooler may not) is admitted.
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

// Learn remembers what a session found out about its server. whose is what the
// session was asked for with: whether sessions begin read-only is a matter of
// the user, the database and the options as well, so that it holds for the same
// whose alone.
func (h *Host) Learn(r Role, whose string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.role, h.roleKey, h.probeErr, h.learnedAt = r, whose, nil, time.Now()
}

// roleFor is the role as sessions asked for with whose would find it. h.mu is
// held.
func (h *Host) roleFor(whose string) Role {
	role := h.role
	if h.roleKey != "" && h.roleKey != whose {
		role.ReadOnly, role.readOnlyUnknown = false, true
	}
	return role
}

// unfit reports whether the host had another role when a session last found out,
// however long ago that was.
func (h *Host) mismatches(target Target, whose string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !target.Admits(h.roleFor(whose))
}

// How long a role counts as known. A server that was promoted since is found
// within this time. Where servers can't be asked and another role would do, it
// is longer: else each client that comes after a while were sent away once more.
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

// Role returns the host's role, asking the server where it isn't known, or not
// lately enough. Without the means to ask, it is what the last session found,
// see Learn. An error is a *RoleError, or ctx's.
func (u *Upstream) Role(ctx context.Context, h *Host, whose string) (Role, error) {
	for {
		h.mu.Lock()
		role, failure, fresh, asking := h.roleFor(whose), h.probeErr, time.Since(h.learnedAt) < u.maxRoleAge(), h.probing
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
		// Somebody asks already: hundreds of clients that come back after a
		// failover are one question.
		select {
		case <-asking:
		case <-ctx.Done():
			return Role{}, ctx.Err()
		}
	}
}

// RoleError says that a server could not be asked for its role. It names the
// proxy's own role and database, which are not the clients' business.
type RoleError struct {
	Host *Host
	Err  error
}

func (e *RoleError) Error() string {
	return fmt.Sprintf("%s: asking for the server's role: %s", e.Host, e.Err)
}
func (e *RoleError) Unwrap() error { return e.Err }

// ask asks the server, by each of its routes in turn, for all that wait for
// h.learning. Who gives up meanwhile says nothing of the server: then the next
// of those who wait asks again.
func (u *Upstream) probeRole(ctx context.Context, h *Host) (role Role, err error) {
	err = errors.New("it was given up")
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

// gaveUp reports whether whoever asks for something with ctx doesn't want it any
// more. A socket may notice its deadline before ctx does.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// probe asks servers for their role, and for more, by logging in.
type probe struct{ config *pgconn.Config }

func newProbe(url string) (*probe, error) {
	c, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c.Fallbacks, c.TLSConfig, c.ValidateConnect = nil, nil, nil
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "wirefence"
	}
	return &probe{c}, nil
}

func (p *probe) connect(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*pgconn.PgConn, error) {
	c := p.config.Copy()
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
