package upstream

import (
	"context"
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
	Known    bool
	Standby  bool
	ReadOnly bool // sessions begin read-only, as on every standby
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
		return r.Standby || r.ReadOnly
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

// Learn remembers what a session found out about its server.
func (h *Host) Learn(r Role) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.role, h.unasked, h.learned = r, nil, time.Now()
}

// believed is how long a role counts as known. A server that was promoted since
// is found within this time.
const believed = time.Second

// Role returns the host's role, asking the server where it isn't known, or not
// lately enough. Without the means to ask, it is what the last session found.
func (u *Upstream) Role(ctx context.Context, r Route) (Role, error) {
	h := r.Host
	for {
		h.mu.Lock()
		role, failure, fresh, asking := h.role, h.unasked, time.Since(h.learned) < believed, h.learning
		if u.probe != nil && !fresh && asking == nil {
			h.learning = make(chan struct{})
		}
		h.mu.Unlock()
		switch {
		case u.probe == nil && !fresh:
			return Role{}, nil
		case u.probe == nil || fresh:
			return role, failure
		case asking == nil:
			return u.ask(ctx, r)
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

// ask asks the server, for all that wait for h.learning.
func (u *Upstream) ask(ctx context.Context, r Route) (role Role, err error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	role, err = u.probe.ask(ctx, func(ctx context.Context) (net.Conn, error) { return u.Dial(ctx, r) })
	h := r.Host
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.learning)
	h.role, h.unasked, h.learned, h.learning = role, err, time.Now(), nil
	return role, err
}

// probe asks servers for their role by logging in.
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

func (p *probe) ask(ctx context.Context, dial func(context.Context) (net.Conn, error)) (Role, error) {
	c := p.config.Copy()
	c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return Role{}, fmt.Errorf("asking for the server's role: %w", err)
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
